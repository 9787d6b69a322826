"""One simulated GPU: its number, its properties, and the bytes that live on it.

What is on a GPU is known from a mark on each tensor storage (:data:`.marks.MARK`). The mark is an object shared
by all storages of one size on one GPU, so that counting bytes costs nothing when memory is freed: the
interpreter's own reference count of the mark *is* the number of live storages of that size.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from labkit.base.language import say
from labkit.base.patches import Patches
from labkit.base.units import cuda_bytes

from .. import hooks
from . import host
from .leaves import Leaves
from .marks import HOST, MARK, Mark

# The peak may be missed by less than this many bytes: counting at every allocation would cost more than
# most operations do. What is allocated now, and the limit, are always exact.
PEAK_STEP = 16 * 1024

# CUDA's allocator hands out multiples of this many bytes (c10/cuda/CUDACachingAllocator.cpp, round_size), and
# memory_allocated() counts them. The segments that it asks of the driver, of 2 MiB and more, are "reserved" there.
BLOCK = 512

# Bytes per virtual second: about the memory bandwidth of an A100.
BANDWIDTH = 2e12


def _block(size: int) -> int:
    """The bytes that CUDA's allocator hands out for ``size`` bytes."""
    return -(-size // BLOCK) * BLOCK


class TheMachine(Protocol):
    """A machine, as the modules below :mod:`simgpu.machine` know it; each attribute is explained there."""

    chosen: set[int]
    closed: bool
    current: Any
    gpus: tuple[Gpu, ...]
    mode: Any
    model: Any
    numbers: tuple[int, ...]
    order: str | tuple[int, ...] | None
    random: Any
    stream_ids: Iterator[int]
    description: str

    def has_initialized_cuda(self) -> bool: ...
    def gpu(self, index: int | None) -> Gpu: ...
    def resolve(self, device: int | str | torch.device) -> Gpu | None: ...
    def real(self, target: Gpu | None, device: Any = None) -> torch.device: ...
    def use_in_thread(self) -> AbstractContextManager[None]: ...
    def describe(self) -> str: ...
    def stale_text(self, gpu: Gpu) -> str: ...
    def activate(self) -> None: ...
    def deactivate(self) -> None: ...
    def add_patches(self, patches: Patches) -> None: ...
    def remove_patches(self, patches: Patches) -> None: ...
    def close(self) -> None: ...


class Clock:
    """Virtual seconds on one GPU: later with every byte it allocates (see :mod:`.streams`)."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._extra = 0.0

    def time(self) -> float:
        return self._extra + self._gpu.total() / BANDWIDTH

    def advance(self, seconds: float) -> float:
        """Let ``seconds`` (≥ 0) pass; returns the new time."""
        self._extra += seconds
        return self.time()


# A mark in ``Gpu.marks`` is referenced by the dictionary, by a loop over its values and by getrefcount.
_probe = {0: Mark(None, 0)}
_IDLE_REFERENCES = next(sys.getrefcount(mark) for mark in _probe.values())


def _has_memory(storage: torch.UntypedStorage) -> bool:
    """Whether there are bytes behind ``storage``: not for a tensor subclass that wraps others.

    It has a size and no data (torch/csrc/autograd/python_variable.cpp, make_tensor_for_subclass_helper).
    """
    try:
        return storage.data_ptr() != 0
    except RuntimeError:
        return False


class Gpu:
    """A simulated GPU. ``capacity`` is in bytes."""

    __slots__ = (
        "cache_emptied", "capacity", "clock", "device", "failures", "fraction", "index", "leaves", "machine",
        "marks", "peak", "room", "suspended", "total_at_reset", "freed_at_reset", "_counted", "_granted", "_highest",
        "_seen",
    )  # fmt: skip

    def __init__(self, index: int, capacity: int, machine: TheMachine) -> None:
        self.index = index
        self.capacity = capacity
        self.machine = machine
        self.device = torch.device("cuda", index)
        self.fraction = 1.0
        # Storage size in bytes -> the mark its storages carry.
        self.marks: dict[int, Mark] = {}
        # The tensors here that autograd accumulates gradients in.
        self.leaves = Leaves(self)
        self.peak = 0
        # The peak since look() was asked last.
        self._highest = 0
        # How many more bytes may be marked before the next count is due: while it is not negative, neither
        # a peak (but for PEAK_STEP) nor the limit can have been passed. _granted is where it began.
        self.room = 0
        self._granted = 0
        # True while the machine is not in use: tensors that are put here are refused.
        self.suspended = False
        self.failures = self.cache_emptied = 0
        # The bytes that lived here when the computer's own memory was last looked at.
        self._seen = 0
        # Bytes ever marked, up to the last count.
        self._counted = 0
        self.total_at_reset = self.freed_at_reset = 0
        self.clock = Clock(self)

    def put(self, storage: torch.UntypedStorage) -> None:
        """Mark ``storage`` as living here. Raises torch.OutOfMemoryError when the GPU is full."""
        self.take(storage)
        if self.room < 0:
            self.recount(storage)

    def take(self, storage: torch.UntypedStorage) -> None:
        """Mark ``storage`` as living here, whether there is room or not; the caller counts afterwards."""
        size = storage.nbytes() if _has_memory(storage) else 0
        try:
            mark = self.marks[size]
        except KeyError:
            mark = self.new_mark(size)
        setattr(storage, MARK, mark)
        self.room -= mark.block
        del mark  # a reference to it counts as a storage
        for tell in hooks.storage_taken:
            tell(self, storage)

    def new_mark(self, size: int) -> Mark:
        """The mark for storages of ``size`` bytes."""
        return self.marks.setdefault(size, Mark(self, _block(size)))

    def make_room(self, size: int, *, written: bool = True) -> None:
        """Raise before the computer is asked for ``size`` bytes for this GPU, if they would be too many.

        written   whether they will be written to: memory that is never written takes none of the computer's.
        """
        if size <= self.room and size < host.WORTH:
            return
        if self.suspended:
            raise RuntimeError(self.machine.stale_text(self))
        if self.live() + _block(size) > self._limit():
            gc.collect()  # as recount() does
            if (live := self.live()) + _block(size) > self._limit():
                raise self.make_out_of_memory_error(_block(size), live)
        if written and size >= host.WORTH:
            host.check(self.device, size)

    def translate_error(self, error: Exception) -> Exception:
        """``error``; if the computer's allocator gave no memory for this GPU, CUDA's own error in its place."""
        size = host.parse_refused_bytes(error)
        if size is None:
            return error
        live = self.live()
        if live + _block(size) > self._limit():
            return self.make_out_of_memory_error(_block(size), live)
        return host.OutOfHostMemory(self.device, size, None)

    def lend(self, machine: TheMachine, capacity: int) -> Callable[[], None]:
        """Belong to ``machine``, with this capacity, until the function that this returns is called.

        Then the size, peak, counts and time are what they were. The marks are not touched: they are the tensors that
        live here, of which some may have stayed.
        """
        kept = {name: getattr(self, name) for name in _LENT}
        total, now = self.total(), self.clock.time()
        self.machine, self.capacity, self.fraction = machine, capacity, 1.0

        def give_back() -> None:
            for name, value in kept.items():
                setattr(self, name, value)
            # The next tensor is counted with all others.
            self._counted, self._granted, self.room = total, 0, 0
            self.clock.advance(now - self.clock.time())

        return give_back

    def _limit(self) -> int:
        return int(self.capacity * self.fraction)

    def suspend(self) -> None:
        """From now on, refuse tensors that are put here."""
        self._counted += self._granted - self.room
        self.room = self._granted = 0
        self.suspended = True

    def resume(self) -> None:
        """Take tensors again."""
        self.suspended = False

    def live(self) -> int:
        """Bytes allocated now."""
        if self.leaves.due:
            self.leaves.look()
        live = 0
        for mark in tuple(self.marks.values()):
            # One more reference here than in a loop over the dictionary: the tuple's. (A dictionary itself may not
            # grow while it is gone through, and another thread's tensor may be the first of its size.)
            live += mark.block * (sys.getrefcount(mark) - _IDLE_REFERENCES - 1)
        return live

    def blocks(self) -> list[tuple[int, int, int]]:
        """The storages that live here, by size: bytes of one, bytes of its block, how many. Empty ones are left out."""
        if self.leaves.due:
            self.leaves.look()
        found = []
        for size, mark in tuple(self.marks.items()):
            many = sys.getrefcount(mark) - _IDLE_REFERENCES - 1
            if size and many:
                found.append((size, mark.block, many))
        return found

    def total(self) -> int:
        """Bytes ever allocated here."""
        return self._counted + self._granted - self.room

    def recount(self, newest: torch.UntypedStorage | None = None) -> int:
        """Count the live bytes, raise the peak, and check that the GPU is not over-full.

        ``newest``  the storage that was put here last; taken off again when there is no room for it.
        """
        if self.suspended:
            raise RuntimeError(self.machine.stale_text(self))
        live, limit = self.live(), self._limit()
        if live > limit:
            # CUDA's allocator gives its cache back to the driver and tries once more (CUDACachingAllocator.cpp, malloc:
            # release_cached_blocks, then alloc_block). Here only tensors that were dropped in a cycle could come back.
            gc.collect()
            live = self.live()
            if live > limit and newest is not None:
                block = self._take_off(newest)
                raise self.make_out_of_memory_error(block, live - block)
        if live - self._seen >= host.WORTH and newest is not None:
            try:
                host.check(self.device, getattr(newest, MARK).block, written=True)
            except host.OutOfHostMemory:
                self._take_off(newest)
                raise
            self._seen = live
        self._seen = min(self._seen, live)
        self.peak = max(self.peak, live)
        self._highest = max(self._highest, live)
        self._counted += self._granted - self.room
        unseen = max(min(self.peak, self._highest) - live, PEAK_STEP)
        self.room = self._granted = max(0, min(unseen, limit - live))
        return live

    def _take_off(self, newest: torch.UntypedStorage) -> int:
        block: int = getattr(newest, MARK).block
        setattr(newest, MARK, HOST)
        self.room += block
        return block

    def reset_peak(self) -> None:
        """Begin the peak anew at what is live now."""
        self.peak = 0
        self.recount()

    def look(self) -> tuple[int, int]:
        """Bytes allocated now, and the most that were since this was asked last."""
        live = self.recount()
        highest, self._highest = self._highest, live
        self.recount()  # the room before the next count is smaller now
        return live, highest

    def free(self) -> int:
        """Bytes that are not allocated."""
        return max(0, self.capacity - self.recount())

    def make_out_of_memory_error(self, wanted: int, live: int) -> torch.OutOfMemoryError:
        """CUDA's own error, which is counted, for ``wanted`` bytes on this GPU with ``live`` bytes taken.

        The text is that of c10/cuda/CUDACachingAllocator.cpp, malloc: "wanted" is the request rounded up to blocks, and
        what a fraction allows stands in it where one was set (set_per_process_memory_fraction).
        """
        self.failures += 1
        if wanted >= 2**60:  # before anything is looked at (NativeCachingAllocator, allocate)
            return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
        free = cuda_bytes(max(0, self.capacity - live))
        used = cuda_bytes(live)
        allowed = f"{cuda_bytes(self._limit())} allowed; " * (self.fraction < 1)
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {cuda_bytes(wanted)}. GPU {self.index} has a total "
            f"capacity of {cuda_bytes(self.capacity)} of which {free} is free. "
            f"Including non-PyTorch memory, this process has {used} memory in use. {allowed}"
            f"Of the allocated memory {used} is allocated by PyTorch, and 0 bytes is reserved by PyTorch "
            "but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
            "Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
            "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )

    def __repr__(self) -> str:
        size = cuda_bytes(self.capacity)
        return say(
            en=f"<simulated GPU cuda:{self.index}, {size}>", zh=f"<模拟 GPU cuda:{self.index}，{size}>"
        )


# What a GPU is and has counted.
_LENT = sorted({*Gpu.__slots__} - {"marks", "clock", "suspended", "room", "_counted", "_granted"})
