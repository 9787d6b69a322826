"""Lesson 09. Its models and judges are content: what ``labkit.content.repairs`` gives has the same name here."""

from typing import Any

from ..content import module


def __getattr__(name: str) -> Any:
    return getattr(module("repairs"), name)
