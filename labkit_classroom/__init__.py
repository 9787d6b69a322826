"""Hand out assignments, collect submissions, grade, and give feedback.

A student's notebook says ``from labkit.classroom import begin, check``. Both are loaded on first use, so that handing
in needs no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checking import begin, check

__all__ = ["begin", "check"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import checking

        return getattr(checking, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
