"""The mark on a storage, which says where the storage is."""

from __future__ import annotations

from typing import Any

import torch

# The attribute of ``torch.UntypedStorage`` that holds the mark.
MARK = "_labkit_mark"
# The attribute that says whether the storage is in pinned memory.
PINNED = "_labkit_pinned"
# torch's own device of a storage, which says "cpu" for a simulated GPU.
real_device: Any = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]


class Mark:
    """Mark of storages of ``block`` bytes (rounded as by CUDA's allocator) on ``gpu``."""

    __slots__ = ("block", "gpu")

    def __init__(self, gpu: Any, block: int) -> None:
        self.gpu = gpu
        self.block = block


# The mark of a storage that was never put on a simulated GPU: a class attribute.
HOST = Mark(None, 0)
# The mark of storages that stay on the host, whichever call returns them.
KEPT = Mark(None, 0)
