"""The classroom: assignments, handed out, collected, graded and given back.

A student's notebook says ``from labkit.classroom import begin, check``; they are loaded when they are asked for, so
that handing in needs no PyTorch.
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
