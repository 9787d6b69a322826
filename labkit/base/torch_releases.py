"""The releases of torch on which labkit was tried."""

from __future__ import annotations

import warnings
from functools import cache

from .language import say

# The releases on which the tests of the machine and the engine and the probes of private names were run. 2.13 is the
# pinned one, on which everything is tested; the others were their CUDA builds, on a computer without a GPU.
TRIED = ("2.12", "2.13", "2.14", "2.15")


def is_tried(version: str) -> bool:
    """Whether ``version`` (such as "2.13.0+cpu") is of a release in :data:`TRIED`."""
    return ".".join(version.split(".")[:2]) in TRIED


@cache
def warn_if_untried(version: str) -> None:
    """Warn once about a release that was not tried."""
    if not is_tried(version):
        tried = ", ".join(TRIED)
        warnings.warn(
            say(
                en=f"labkit was tested on PyTorch {tried}, not on {version}",
                zh=f"labkit 在 PyTorch {tried} 上运行过，没有在 {version} 上运行过",
            ),
            stacklevel=3,
        )
