"""Names of single lessons, from the content: ``labkit_content.repairs`` (09, 19) and ``.pictures`` (classes)."""

from typing import Any

from .content import module


def __getattr__(name: str) -> Any:
    return getattr(module("pictures" if name[0].isupper() else "repairs"), name)
