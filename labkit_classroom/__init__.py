"""Hand out assignments, collect submissions, grade, and give feedback.

A student's notebook says ``from labkit.classroom import begin, check``. Both are loaded on first use, so that handing
in needs no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.base.lazy_names import LazyNames

if TYPE_CHECKING:
    from .checking import begin, check

__all__ = ["begin", "check"]

__getattr__ = LazyNames(__name__, __file__)
