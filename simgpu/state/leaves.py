"""Count gradients of autograd's engine from the moment of allocation, before Python reads any.

Each GPU keeps weak references to its tensors that get a gradient. It marks their gradients when a backward pass ends,
and whenever bytes are counted while one runs.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .. import hooks
from .marks import HOST, real_device

_grads: Any = Tensor.grad  # a property; torch's stubs give the type of its value
_get_grad = _grads.__get__
_storage: Any = Tensor.untyped_storage
# Repairs a weak reference to a tensor that only C++ holds (torch/utils/weak.py, WeakIdRef).
_make_good: Any = getattr(Tensor, "_fix_weakref", None)
# Each thread in a backward pass -> the GPUs where its passes began, nested passes last.
_running: dict[int, list[set[Any]]] = {}
# The threads whose engine waits for a backward function in Python, and so makes no gradients.
_waiting: set[int] = set()


class Held:
    """Tensors of C++ that Python has not met. A reference to a mark for each makes them count."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def hold(self, gpu: Any, size: int, *, met: bool = True) -> None:
        """Count one more tensor of ``size`` bytes on ``gpu``. Raises torch.OutOfMemoryError when the GPU is full.

        met   whether Python may meet the tensor.
        """
        self._marks.append(gpu.marks.get(size) or gpu.new_mark(size))
        if met:
            self.can_be_met()
        gpu.room -= self._marks[-1].block
        if gpu.room < 0:
            gpu.recount()

    def can_be_met(self) -> None:
        """Expect Python to meet these tensors from now on."""
        for mark in self._marks:
            mark.gpu.leaves.held.add(self)

    def release(self, gpu: Any = None, size: int = 0) -> bool:
        """Stop counting a tensor of ``size`` bytes on ``gpu``, which will get its own mark; return whether it was held.

        Without arguments: stop counting all.
        """
        if gpu is None:
            self._marks.clear()
            return True
        if not self.has(gpu, size):
            return False
        mark = gpu.marks[size]
        self._marks.remove(mark)
        gpu.room += mark.block
        for tell in hooks.tensor_met:
            tell()
        return True

    def has(self, gpu: Any, size: int) -> bool:
        """Whether a tensor of ``size`` bytes on ``gpu`` is held."""
        return gpu.marks.get(size) in self._marks


class Leaves:
    """The tensors with gradients on a GPU."""

    __slots__ = ("_gpu", "_refs", "due", "held")

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        # The id of a tensor -> a weak reference to it.
        self._refs: dict[int, weakref.ref[Tensor]] = {}
        # Whether a backward pass ran, or runs, since the last look.
        self.due = False
        # Other tensors of C++ on this GPU.
        self.held: weakref.WeakSet[Held] = weakref.WeakSet()

    def note(self, tensor: Tensor) -> None:
        """Remember that ``tensor``, on this GPU, gets a gradient."""
        key = id(tensor)
        self._refs[key] = weakref.ref(tensor, functools.partial(self._refs.pop, key))

    def forget(self, tensor: Tensor) -> None:
        """Drop the weak reference to ``tensor``, which torch.utils.swap_tensors would refuse."""
        self._refs.pop(id(tensor), None)

    def holds(self, size: int) -> bool:
        """Whether C++ has a tensor of ``size`` bytes here that Python has not met."""
        return any(held.has(self._gpu, size) for held in tuple(self.held))

    def release(self, size: int) -> None:
        """Stop counting a tensor of ``size`` bytes that C++ made here: it will get a mark."""
        any(held.release(self._gpu, size) for held in tuple(self.held))

    def look(self) -> torch.UntypedStorage | None:
        """Mark new gradients and return the last one's storage. The caller checks whether there is room.

        Read nothing while another thread is in a backward pass: C++ may be writing.
        """
        newest, gpu = None, self._gpu
        if not self.due or (_running and not self._is_safe_to_read()):
            return None
        self.due = False
        with torch._C.DisableTorchFunction():
            for key, ref in self._refs.copy().items():  # copied in one step: tensors may die at any moment
                leaf = ref()
                if leaf is None:
                    continue
                if _make_good is not None:
                    _make_good(leaf)
                if _storage(leaf)._labkit_mark.gpu is not gpu:  # moved to another device
                    self._refs.pop(key, None)
                    continue
                if not leaf.is_leaf and not leaf.retains_grad:  # written in place since
                    continue
                grad = _get_grad(leaf)
                if grad is None:
                    continue
                for storage in _storages(grad):
                    if storage._labkit_mark is HOST and real_device(storage).type != "meta":
                        if self.held and grad._is_view():  # of a bucket
                            self.release(storage.nbytes())
                        gpu.take(storage)
                        newest = storage
        self.due = bool(_running.keys() - _waiting)
        return newest

    def _is_safe_to_read(self) -> bool:
        """Whether no other thread can be writing gradients on this GPU."""
        this_thread, gpu = threading.get_ident(), self._gpu
        others = [passes for thread, passes in _running.items() if thread != this_thread]
        if not others:
            return True
        mine = gpu.index == gpu.machine.current.index or any(
            gpu in gpus for gpus in _running.get(this_thread, ())
        )
        return mine and not any(gpu in gpus for passes in others for gpus in passes)


def _storages(grad: Tensor) -> Iterable[Any]:
    if grad.layout is torch.strided:
        return (_storage(grad),)
    return map(_storage, (grad._indices(), grad._values())) if grad.layout is torch.sparse_coo else ()


class backward_runs:
    """Context manager around a backward pass that begins on ``gpus``; ``every`` are all GPUs.

    The exit marks the gradients on ``gpus`` and raises torch.OutOfMemoryError if they are too large. Those on other
    GPUs are marked when their bytes are counted.
    """

    __slots__ = ("_every", "_gpus")

    def __init__(self, gpus: set[Any], every: Iterable[Any]) -> None:
        self._gpus = gpus
        self._every = every

    def __enter__(self) -> None:
        thread = threading.get_ident()
        _running.setdefault(thread, []).append(self._gpus)
        _waiting.discard(thread)
        for gpu in self._every:
            gpu.leaves.due = True

    def __exit__(self, kind: object, *exc_info: object) -> None:
        try:
            if kind is None:
                for gpu in self._gpus:
                    if gpu is not None and not gpu.suspended:
                        newest = gpu.leaves.look()
                        if gpu.room < 0 and newest is not None:
                            gpu.recount(newest)
        finally:
            thread = threading.get_ident()
            _running[thread].pop()
            if not _running[thread]:
                del _running[thread]


@contextmanager
def engine_waits(every: Iterable[Any]) -> Iterator[None]:
    """Note that this thread's engine waits for a backward function in Python, during a ``with`` block."""
    _waiting.add(threading.get_ident())
    try:
        yield
    finally:
        _waiting.discard(threading.get_ident())
        for gpu in every:
            gpu.leaves.due = True
