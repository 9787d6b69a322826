"""Names of single lessons, from the content: ``labkit_content.repairs`` (09, 19), ``.pictures`` (classes), Training."""

from typing import Any

from .content import module


def __getattr__(name: str) -> Any:
    where = "exercises.same" if name == "Training" else "pictures" if name[0].isupper() else "repairs"
    return getattr(module(where), name)
