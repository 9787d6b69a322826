"""A simulated GPU: number, properties, and allocated bytes.

Each tensor storage on a GPU has a mark (:data:`.marks.MARK`), an object shared by all storages of one size on one GPU.
So freeing memory needs no bookkeeping: the interpreter's reference count of the mark *is* the number of live storages
of that size.
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

# The peak is exact to this many bytes: counting at every allocation would cost more than most operations. The bytes
# allocated now, and the limit, are always exact.
PEAK_STEP = 16 * 1024

# CUDA's allocator hands out multiples of this many bytes, which memory_allocated() counts
# (c10/cuda/CUDACachingAllocator.cpp, round_size). Its segments of 2 MiB and more count as "reserved".
BLOCK = 512

# Bytes per virtual second: about the memory bandwidth of an A100.
BANDWIDTH = 2e12


def _block(size: int) -> int:
    """Round ``size`` up to the bytes that CUDA's allocator hands out."""
    return -(-size // BLOCK) * BLOCK


class TheMachine(Protocol):
    """Protocol of a machine for the modules below :mod:`simgpu.machine`, which explains each attribute."""

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
    """Virtual clock of one GPU, which advances with every allocated byte (see :mod:`.streams`)."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._extra = 0.0

    def time(self) -> float:
        return self._extra + self._gpu.total() / BANDWIDTH

    def advance(self, seconds: float) -> float:
        """Advance by ``seconds`` (≥ 0) and return the new time."""
        self._extra += seconds
        return self.time()


# A mark in ``Gpu.marks`` is referenced by the dictionary, by a loop over its values and by getrefcount.
_probe = {0: Mark(None, 0)}
_IDLE_REFERENCES = next(sys.getrefcount(mark) for mark in _probe.values())


def _has_memory(storage: torch.UntypedStorage) -> bool:
    """Whether ``storage`` has bytes. That of a wrapper subclass has a size and no data.

    torch/csrc/autograd/python_variable.cpp, make_tensor_for_subclass_helper.
    """
    try:
        return storage.data_ptr() != 0
    except RuntimeError:
        return False


class Gpu:
    """A simulated GPU with ``capacity`` bytes of memory."""

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
        # Storage size in bytes -> the mark of its storages.
        self.marks: dict[int, Mark] = {}
        # The tensors here in which autograd accumulates gradients.
        self.leaves = Leaves(self)
        self.peak = 0
        # The peak since the last look().
        self._highest = 0
        # How many more bytes may be marked before the next count is due. While not negative, neither the peak (but for
        # PEAK_STEP) nor the limit can have been passed. _granted is the value at the last count.
        self.room = 0
        self._granted = 0
        # True while the machine is not in use: new tensors are refused.
        self.suspended = False
        self.failures = self.cache_emptied = 0
        # The live bytes when the computer's own memory was last checked.
        self._seen = 0
        # Bytes ever marked, up to the last count.
        self._counted = 0
        self.total_at_reset = self.freed_at_reset = 0
        self.clock = Clock(self)

    def put(self, storage: torch.UntypedStorage) -> None:
        """Mark ``storage`` as on this GPU. Raises torch.OutOfMemoryError when the GPU is full."""
        self.take(storage)
        if self.room < 0:
            self.recount(storage)

    def take(self, storage: torch.UntypedStorage) -> None:
        """Mark ``storage`` as on this GPU, even beyond the limit; the caller must check ``room`` afterwards."""
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
        """Return the mark for storages of ``size`` bytes."""
        return self.marks.setdefault(size, Mark(self, _block(size)))

    def make_room(self, size: int, *, written: bool = True) -> None:
        """Raise if ``size`` more bytes exceed this GPU's memory or the computer's, before they are allocated.

        written   whether the bytes will be written: memory that is never written takes none of the computer's.
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
        """Return CUDA's out-of-memory error for a failure of the computer's allocator; leave other errors unchanged."""
        size = host.parse_refused_bytes(error)
        if size is None:
            return error
        live = self.live()
        if live + _block(size) > self._limit():
            return self.make_out_of_memory_error(_block(size), live)
        return host.OutOfHostMemory(self.device, size, None)

    def lend(self, machine: TheMachine, capacity: int) -> Callable[[], None]:
        """Lend this GPU to ``machine``, with ``capacity`` bytes. Call the returned function to end that.

        Size, peak, counts and time are then restored. The marks stay: tensors made meanwhile may live on.
        """
        saved = {name: getattr(self, name) for name in _LENT}
        total, now = self.total(), self.clock.time()
        self.machine, self.capacity, self.fraction = machine, capacity, 1.0

        def give_back() -> None:
            for name, value in saved.items():
                setattr(self, name, value)
            # Count at the next tensor.
            self._counted, self._granted, self.room = total, 0, 0
            self.clock.advance(now - self.clock.time())

        return give_back

    def _limit(self) -> int:
        return int(self.capacity * self.fraction)

    def suspend(self) -> None:
        """Refuse new tensors from now on."""
        self._counted += self._granted - self.room
        self.room = self._granted = 0
        self.suspended = True

    def resume(self) -> None:
        """Accept tensors again."""
        self.suspended = False

    def live(self) -> int:
        """Return the bytes allocated now."""
        if self.leaves.due:
            self.leaves.look()
        live = 0
        for mark in tuple(self.marks.values()):
            # The tuple holds one more reference than a loop over the dictionary, which must not grow meanwhile: another
            # thread's tensor may be the first of its size.
            live += mark.block * (sys.getrefcount(mark) - _IDLE_REFERENCES - 1)
        return live

    def blocks(self) -> list[tuple[int, int, int]]:
        """Return (bytes of a storage, bytes of its block, how many) for each size of the storages here, but for 0."""
        if self.leaves.due:
            self.leaves.look()
        found = []
        for size, mark in tuple(self.marks.items()):
            many = sys.getrefcount(mark) - _IDLE_REFERENCES - 1
            if size and many:
                found.append((size, mark.block, many))
        return found

    def total(self) -> int:
        """Return the bytes ever allocated here."""
        return self._counted + self._granted - self.room

    def recount(self, newest: torch.UntypedStorage | None = None) -> int:
        """Count and return the live bytes, update the peak, and raise if the GPU is over-full.

        ``newest``  the storage put here last, which loses its mark when there is no room for it.
        """
        if self.suspended:
            raise RuntimeError(self.machine.stale_text(self))
        live, limit = self.live(), self._limit()
        if live > limit:
            # CUDA's allocator frees its cache and tries once more (CUDACachingAllocator.cpp, malloc: alloc_block after
            # release_cached_blocks). Here, only tensors in garbage cycles can be freed.
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
        """Reset the peak to the live bytes."""
        self.peak = 0
        self.recount()

    def look(self) -> tuple[int, int]:
        """Return the live bytes, and the peak since the last call of this function."""
        live = self.recount()
        highest, self._highest = self._highest, live
        self.recount()  # the room before the next count is smaller now
        return live, highest

    def free(self) -> int:
        """Return the bytes that are not allocated."""
        return max(0, self.capacity - self.recount())

    def make_out_of_memory_error(self, wanted: int, live: int) -> torch.OutOfMemoryError:
        """Return and count CUDA's error for ``wanted`` bytes, rounded up to blocks, when ``live`` bytes are taken.

        The text is that of c10/cuda/CUDACachingAllocator.cpp, malloc, with the limit of
        set_per_process_memory_fraction where one was set.
        """
        self.failures += 1
        if wanted >= 2**60:  # the first check of NativeCachingAllocator, allocate
            return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
        free = cuda_bytes(max(0, self.capacity - live))
        used = cuda_bytes(live)
        allowed = f"{cuda_bytes(self._limit())} allowed; " if self.fraction < 1 else ""
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


# The attributes saved while a GPU is lent.
_LENT = sorted({*Gpu.__slots__} - {"marks", "clock", "suspended", "room", "_counted", "_granted"})
