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


# The mark of every storage that was never put on a simulated GPU: a class attribute.
HOST = Mark(None, 0)
# The mark of storages that are known to be the host's: no call that returns one of them takes it to a GPU.
KEPT = Mark(None, 0)
