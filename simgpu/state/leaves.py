"""The tensors in which autograd accumulates gradients, by GPU: gradients that C++ makes are counted at once.

Python learns of a gradient where it reads it; memory is taken when the engine makes it. So each GPU remembers,
weakly, its tensors that get a gradient, and looks at them when a backward pass ends, and whenever bytes are counted
while one runs. A training step pays for its own parameters, once.
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
from .marks import HOST

_grads: Any = Tensor.grad  # a property in C, which torch's stubs have as its value
_get_grad = _grads.__get__
_storage: Any = Tensor.untyped_storage
# A weak reference to a tensor that only C++ holds must be made good before use (torch/utils/weak.py, WeakIdRef).
_make_good: Any = getattr(Tensor, "_fix_weakref", None)
# Each thread that is in a backward pass -> the GPUs from which its passes began, one pass inside another.
_running: dict[int, list[set[Any]]] = {}
# Those of them in which the engine waits for a backward in Python, and makes no gradients meanwhile.
_waiting: set[int] = set()


class Held:
    """Bytes that C++ holds in tensors that Python has not met. This object has a mark for each, by which they count."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def hold(self, gpu: Any, size: int, *, met: bool = True) -> None:
        """One more tensor of ``size`` bytes is on ``gpu``. Raises torch.OutOfMemoryError when the GPU is full.

        met   whether Python may meet it.
        """
        self._marks.append(gpu.marks.get(size) or gpu.new_mark(size))
        if met:
            self.can_be_met()
        gpu.room -= self._marks[-1].block
        if gpu.room < 0:
            gpu.recount()

    def can_be_met(self) -> None:
        """From now on Python may meet these tensors."""
        for mark in self._marks:
            mark.gpu.leaves.held.add(self)

    def release(self, gpu: Any = None, size: int = 0) -> bool:
        """A tensor of ``size`` bytes on ``gpu`` was met, and counts by itself: whether it was one of these.

        Without arguments: all are gone.
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
        """Whether a tensor of ``size`` bytes on ``gpu`` is among them."""
        return gpu.marks.get(size) in self._marks


class Leaves:
    """The tensors on one GPU that get a gradient."""

    __slots__ = ("_gpu", "_refs", "due", "held")

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        # The id of a tensor -> a weak reference to it.
        self._refs: dict[int, weakref.ref[Tensor]] = {}
        # Whether a backward pass ran, or runs, since they were looked at.
        self.due = False
        # Other tensors that C++ has here.
        self.held: weakref.WeakSet[Held] = weakref.WeakSet()

    def note(self, tensor: Tensor) -> None:
        """``tensor``, which is here, gets a gradient from now on."""
        key = id(tensor)
        self._refs[key] = weakref.ref(tensor, functools.partial(self._refs.pop, key))

    def forget(self, tensor: Tensor) -> None:
        """Drop the weak reference to ``tensor``: torch.utils.swap_tensors refuses tensors that have one."""
        self._refs.pop(id(tensor), None)

    def holds(self, size: int) -> bool:
        """Whether C++ has a tensor of ``size`` bytes here that nobody met."""
        return any(held.has(self._gpu, size) for held in tuple(self.held))

    def release(self, size: int) -> None:
        """A tensor of ``size`` bytes that C++ made here was met, and will be marked."""
        any(held.release(self._gpu, size) for held in tuple(self.held))

    def look(self) -> torch.UntypedStorage | None:
        """Mark the gradients that have come; returns the last one's storage. The caller checks whether there is room.

        Nothing is read while another thread is in a backward pass, because C++ may be writing there.
        """
        newest, gpu = None, self._gpu
        if not self.due or (_running and not self._ours()):
            return None
        self.due = False
        with torch._C.DisableTorchFunction():
            for key, ref in self._refs.copy().items():  # in one step: tensors may go at any moment
                leaf = ref()
                if leaf is None:
                    continue
                if _make_good is not None:
                    _make_good(leaf)
                if _storage(leaf)._labkit_mark.gpu is not gpu:  # it has moved
                    self._refs.pop(key, None)
                    continue
                if not leaf.is_leaf and not leaf.retains_grad:  # it was written in place since
                    continue
                grad = _get_grad(leaf)
                if grad is None:
                    continue
                for storage in _storages(grad):
                    if storage._labkit_mark is HOST and storage.device.type != "meta":
                        if self.held and grad._is_view():  # of a bucket
                            self.release(storage.nbytes())
                        gpu.take(storage)
                        newest = storage
        self.due = bool(_running.keys() - _waiting)
        return newest

    def _ours(self) -> bool:
        """Whether no thread but this one can be writing gradients here."""
        here, gpu = threading.get_ident(), self._gpu
        others = [passes for thread, passes in _running.items() if thread != here]
        if not others:
            return True
        mine = gpu.index == gpu.machine.current.index or any(gpu in gpus for gpus in _running.get(here, ()))
        return mine and not any(gpu in gpus for passes in others for gpus in passes)


def _storages(grad: Tensor) -> Iterable[Any]:
    if grad.layout is torch.strided:
        return (_storage(grad),)
    return map(_storage, (grad._indices(), grad._values())) if grad.layout is torch.sparse_coo else ()


class backward_runs:
    """Context manager: inside, this thread is in a backward pass that begins on ``gpus`` of all ``every``.

    At its end the gradients on ``gpus`` are looked at; on the others, when their bytes are counted. Raises
    torch.OutOfMemoryError if they are too many.
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
    """Inside, a backward in Python runs, for which the engine on this thread waits."""
    _waiting.add(threading.get_ident())
    try:
        yield
    finally:
        _waiting.discard(threading.get_ident())
        for gpu in every:
            gpu.leaves.due = True
