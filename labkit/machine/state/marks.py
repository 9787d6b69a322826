"""The mark on a storage, which says where it lives."""

from __future__ import annotations

from typing import Any

# The attribute of ``torch.UntypedStorage`` that holds the mark.
MARK = "_labkit_mark"
# And the one that says whether it is in pinned memory.
PINNED = "_labkit_pinned"


class Mark:
    """That a storage of ``block`` bytes (rounded as CUDA's allocator would) is on ``gpu``."""

    __slots__ = ("block", "gpu")

    def __init__(self, gpu: Any, block: int) -> None:
        self.gpu = gpu
        self.block = block


# What every storage that was never put on a simulated GPU has, by class attribute.
HOST = Mark(None, 0)
# What those have that are known to be the host's: no call whose result they are takes them to a GPU.
KEPT = Mark(None, 0)
