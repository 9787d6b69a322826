"""Lessons 09 and 19. What is broken there, and its judges, are content: ``labkit_content.repairs`` has the names."""

from typing import Any

from .content import module


def __getattr__(name: str) -> Any:
    return getattr(module("repairs"), name)
