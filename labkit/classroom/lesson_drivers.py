"""The student's answer to a lesson's exercise: what is sent to the worker."""

from collections.abc import Callable
from typing import Any


def value(student: dict[str, Any], name: str) -> Any:
    """The answer; of a function, that it is one."""
    found = student[name]
    return {"function": True} if isinstance(found, Callable) else found  # type: ignore[arg-type]  # a class to isinstance


def call(student: dict[str, Any], name: str, arguments: list[Any]) -> Any:
    return student[name](*arguments)
