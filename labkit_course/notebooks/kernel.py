"""Start a notebook's kernel for nbclient, papermill or nbval.

Import only the standard library here: the tests load this module before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_ATTEMPTS = 3
STARTUP_TIMEOUT = 60  # seconds; a start on an overloaded computer may fail and is retried


def start(kernel: Callable[[], T]) -> T:
    """Call ``kernel()``, which starts a kernel; retry a failure.

    Switch progress off inside: a tool's answers are not the learner's.
    """
    before = os.environ.get("LABKIT_PROGRESS")
    os.environ["LABKIT_PROGRESS"] = "off"  # papermill and nbval pass variables to kernels only by inheritance
    try:
        for _ in range(_ATTEMPTS - 1):
            with suppress(RuntimeError, TimeoutError):
                return kernel()
        return kernel()
    finally:
        if before is None:
            del os.environ["LABKIT_PROGRESS"]
        else:
            os.environ["LABKIT_PROGRESS"] = before
