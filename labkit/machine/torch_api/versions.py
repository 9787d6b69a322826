"""The releases of PyTorch that the simulated machine was run on."""

from __future__ import annotations

import warnings
from functools import cache

# 2.13 is the pinned one, on which everything is tested; on the others the tests of the machine, the engine
# and the plan were run (their CUDA builds, on a computer without a GPU).
TRIED = ("2.12", "2.13", "2.14")


def is_tried(version: str) -> bool:
    """Whether ``version`` (such as "2.13.0+cpu") is of a release in :data:`TRIED`."""
    return ".".join(version.split(".")[:2]) in TRIED


@cache
def warn_if_untried(version: str) -> None:
    """One line, once, on a release that was not tried."""
    if not is_tried(version):
        warnings.warn(f"labkit was run on PyTorch {', '.join(TRIED)}, not on {version}", stacklevel=3)
