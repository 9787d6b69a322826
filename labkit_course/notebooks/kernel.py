"""Starts a notebook's kernel, whichever tool runs the cells: nbclient, papermill or nbval.

It imports only the standard library: the tests load it before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_ATTEMPTS = 3
STARTUP_TIMEOUT = 60  # seconds; an overloaded computer can miss a start, which is then tried again


def start(kernel: Callable[[], T], *, has_begun: Callable[[], bool] = lambda: False) -> T:
    """Returns what ``kernel()`` gives, which starts one: tried again if it fails, but for once a cell ``has_begun``.

    It keeps no learner's progress: a run by a tool is nobody's.
    """
    before = os.environ.get("LABKIT_PROGRESS")
    os.environ["LABKIT_PROGRESS"] = "off"  # a kernel inherits it, in papermill and nbval in no other way
    try:
        for _ in range(_ATTEMPTS - 1):
            try:
                return kernel()
            except (RuntimeError, TimeoutError):
                if has_begun():
                    raise
        return kernel()
    finally:
        if before is None:
            del os.environ["LABKIT_PROGRESS"]
        else:
            os.environ["LABKIT_PROGRESS"] = before
