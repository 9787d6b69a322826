"""Start a notebook's kernel for nbclient, papermill or nbval.

Import only the standard library here: the tests load this module before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from unittest.mock import patch

T = TypeVar("T")

_ATTEMPTS = 3
STARTUP_TIMEOUT = 60  # seconds; a start on an overloaded computer may fail and is retried


def start(kernel: Callable[[], T]) -> T:
    """Call ``kernel()``, which starts a kernel; retry a failure.

    Switch progress off inside: a tool's answers are not the learner's.
    """
    # papermill and nbval pass variables to kernels only by inheritance.
    with patch.dict(os.environ, LABKIT_PROGRESS="off"):
        for _ in range(_ATTEMPTS - 1):
            with suppress(RuntimeError, TimeoutError):
                return kernel()
        return kernel()
