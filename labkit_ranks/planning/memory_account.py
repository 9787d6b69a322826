"""Count the bytes on a rank's GPU by purpose: weights, gradients, optimizer state, activations, buckets.

Each storage carries a note with its purpose, for as long as the storage lives. The purpose is first guessed from the
code that makes the storage (the innermost frame of the script, the optimizer, autograd or torch.distributed) and later
corrected: an optimizer holds weights, gradients and state.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from labkit.base.ours import is_our_file, torch_files
from labkit.base.tree import tensors_in
from labkit.cost.plan import KINDS
from simgpu import Gpu, hooks, parts

from ..rank.rank import current_thread_rank
from .timing import ModelClock

_NOTE = "_labkit_note"

_TORCH = os.path.dirname(torch_files("__init__.py")[0]) + os.sep
# Folder or file of torch -> the purpose of the storages made there; "" for code that only passes calls on.
_MAKES = {
    "distributed/tensor": "", "distributed/pipelining": "", "distributed/algorithms/_checkpoint": "",
    "distributed/_functional_collectives": "", "distributed/optim": "optimizer", "distributed": "buckets",
    "nn/parallel": "buckets", "nn/modules": "activations", "optim": "optimizer", "autograd/graph.py": "gradients",
    "utils/checkpoint.py": "",
}  # fmt: skip


@cache
def _purpose_of_file(path: str) -> str | None:
    """Return the purpose of storages made by the file at ``path``; "" for code between, None for the script."""
    if path.startswith("<") or is_our_file(path):
        return ""
    if not path.startswith(_TORCH):
        return None
    inside = path[len(_TORCH) :].replace(os.sep, "/")
    return next((kind for start, kind in _MAKES.items() if inside.startswith(start)), "")


def _purpose_here(whole: bool = False) -> tuple[str, str]:
    """Return the purpose of allocations in this thread, and with ``whole`` also the script's line."""
    frame: Any = sys._getframe(2)
    kind = ""
    while frame is not None:
        path = frame.f_code.co_filename
        found = _purpose_of_file(path)
        if found is None:
            if not kind:
                kind = "activations"
            return kind, f"{os.path.basename(path)}:{frame.f_lineno}"
        if not kind and found:
            kind = found
            if not whole:
                break
        frame = frame.f_back
    return kind or "activations", ""


class StorageNote:
    """A count of ``size`` bytes as ``kind`` in ``live``, until the note is deleted with its storage."""

    __slots__ = ("kind", "live", "size")

    def __init__(self, live: dict[str, int], kind: str, size: int) -> None:
        self.live, self.kind, self.size = live, kind, size
        live[kind] += size

    def __del__(self) -> None:
        self.live[self.kind] -= self.size

    def change_kind(self, kind: str) -> None:
        self.live[self.kind] -= self.size
        self.live[kind] += self.size
        self.kind = kind


@dataclass
class RankPlan:
    """The memory of a rank's GPU, in bytes.

    allocated   after an optimizer step, by kind; the sum is memory_allocated.
    at_peak     at the peak, by kind; ``phase`` ("forward", "backward", "step") and ``line`` say where the script was.
    parts       the seconds of the last step: computing, communication, waiting. ``operations`` counts its flops.
    elsewhere   the GPU with these bytes, if the rank never used its own.
    routed      whether the rank sends rows chosen by an operator to other ranks, as a router does.
    like        the first rank that was run and holds the same bytes; the rank itself if no earlier one does.
    steps       the optimizer steps that the rank took.
    """

    rank: int
    allocated: dict[str, int] = field(default_factory=dict)
    at_peak: dict[str, int] = field(default_factory=dict)
    phase: str = ""
    line: str = ""
    like: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    operations: float = 0.0
    elsewhere: str = ""
    routed: bool = False
    steps: int = 0

    @property
    def peak(self) -> int:
        return sum(self.at_peak.values())

    def holds_same(self, other: RankPlan) -> bool:
        """Return whether two ranks hold the same bytes, with the peak at the same line."""
        mine, theirs = ((one.allocated, one.at_peak, one.line, not one.elsewhere) for one in (self, other))
        return mine == theirs


@dataclass(eq=False)
class MemoryAccount:
    """The bytes on a rank's GPU, by kind, now (``live``), and the rank's ``plan``, which is made from them.

    all         the accounts of all ranks.
    gpu         the rank's GPU; until the rank uses its own, the first GPU that it uses.
    """

    plan: RankPlan
    all: dict[int, MemoryAccount]
    gpu: Gpu | None = None
    live: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    stepping: int = 0  # nested steps: ZeRO-1's optimizer steps another one
    times: ModelClock | None = None
    arriving: bool = False  # whether the next storage is a bucket of C++'s
    # First parameter of each optimizer -> steps, time, operations.
    _done: dict[int, tuple[int, dict[str, float], float]] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    # DTensors among the parameters: FSDP cuts their gradients out of a buffer before the optimizer sees them.
    _shards: list[weakref.ref[Any]] = field(default_factory=list)

    def take(self, gpu: Gpu, storage: Any, size: int, own: bool) -> None:
        """Count ``storage``, which was put on ``gpu``; ``own`` says whether that is the rank's GPU."""
        if self.gpu is None or (own and gpu is not self.gpu):
            self.gpu, self.live, self.plan.at_peak = gpu, dict.fromkeys(KINDS, 0), {}
        if gpu is not self.gpu:
            return
        kind, _ = _purpose_here()
        if self.stepping:
            kind = "optimizer"
        if self.arriving:
            kind, self.arriving = "buckets", False
        old = getattr(storage, _NOTE, None)
        if old is not None:
            kind = old.kind
        setattr(storage, _NOTE, StorageNote(self.live, kind, size))
        if sum(self.live.values()) > self.plan.peak:
            self._look()

    def _look(self) -> None:
        """Keep the bytes and the script's line if this is the peak so far."""
        now = self.by_kind()
        if sum(now.values()) > self.plan.peak:
            self.know_gradients(held for one in self._shards if (held := one()) is not None)
            self.plan.at_peak = self.by_kind()
            making, self.plan.line = _purpose_here(whole=True)
            backward = making == "gradients" or torch._C._current_graph_task_id() != -1
            self.plan.phase = "step" if self.stepping else "backward" if backward else "forward"

    def by_kind(self) -> dict[str, int]:
        """Return the bytes by kind, without other ranks' bytes; tensors of C++ count as buckets."""
        found = dict(self.live)
        if self.gpu is not None:
            known = sum(sum(one.live.values()) for one in self.all.values() if one.gpu is self.gpu)
            found["buckets"] += self.gpu.live() - known
        return found

    def know(self, tensors: Iterable[Any], kind: str, *, only: str = "") -> None:
        """Mark ``tensors`` as ``kind``; with ``only``, change just tensors of kind ``only``."""
        for tensor in tensors:
            for part in _plain_tensors(tensor):
                note = getattr(part.untyped_storage(), _NOTE, None)
                if note is not None and note.kind != kind and only in ("", note.kind):
                    note.change_kind(kind)

    def know_module(self, module: torch.nn.Module) -> None:
        """Mark parameters and buffers of ``module`` as weights; in later modules only those taken for activations."""
        only = "activations" if self._known else ""
        for one in module.modules() if id(module) not in self._known else ():
            self._known.add(id(one))
            own = [
                tensor for tensor in (*one._parameters.values(), *one._buffers.values()) if tensor is not None
            ]
            self._shards += [weakref.ref(tensor) for tensor in own if hasattr(tensor, "_local_tensor")]
            self.know(own, "weights", only=only)

    def know_gradients(self, parameters: Iterable[Any]) -> None:
        """Mark the gradients of ``parameters``, except plain views: those lie in a bucket of DDP's, and stay there."""
        grads = [one.grad for one in parameters if one.grad is not None]
        self.know((one for one in grads if hasattr(one, "_local_tensor") or not one._is_view()), "gradients")

    def before_step(self, optimizer: Any, *_: object) -> None:
        self.stepping += 1
        held = [one for group in optimizer.param_groups for one in group["params"]]
        self.know(held, "weights")
        self.know_gradients(held)

    def after_step(self, optimizer: Any, *_: object) -> None:
        self.stepping -= 1
        self.know(tensors_in(*map(dict, optimizer.state.values())), "optimizer")
        if self.stepping:
            return
        first = id(optimizer.param_groups[0]["params"][0])  # a script may make a new optimizer per step
        count, before, did = self._done.get(first, (0, {}, 0.0))
        self.plan.steps = max(self.plan.steps, count + 1)
        self.plan.allocated = self.by_kind()
        now, operations = {}, 0.0
        if self.times is not None:
            now, operations = self.times.parts(), self.times.operations
            self.plan.parts = {part: seconds - before.get(part, 0.0) for part, seconds in now.items()}
            self.plan.operations = operations - did
        self._done[first] = (count + 1, now, operations)


def _plain_tensors(tensor: Any) -> Iterator[Any]:
    """Yield the plain tensors that hold the memory of ``tensor``."""
    held = getattr(tensor, "_local_tensor", None)  # a DTensor's
    yield from parts(tensor) if held is None else _plain_tensors(held)


class EnoughSteps(SystemExit):
    """The exit of a script that has made enough steps."""

    def __init__(self) -> None:
        super().__init__(0)


@contextmanager
def count_memory(accounts: dict[int, MemoryAccount], steps: int) -> Iterator[None]:
    """Count the memory of each rank with an account; end a rank that begins another step after ``steps``."""

    def take(gpu: Gpu, storage: Any) -> None:
        rank = current_thread_rank()
        if rank is not None and (account := accounts.get(rank.number)) is not None:
            account.take(gpu, storage, storage._labkit_mark.block, gpu is rank.gpu)

    def on_rank(count: Callable[..., None]) -> Callable[..., None]:
        """Return a hook that calls ``count`` with the account of this thread's rank."""

        def hook(*args: Any) -> None:
            rank = current_thread_rank()
            if rank is not None and (account := accounts.get(rank.number)) is not None:
                count(account, *args)

        return hook

    def note_arrival(account: MemoryAccount) -> None:
        account.arriving = True

    def check_steps(account: MemoryAccount, module: torch.nn.Module, _: object) -> None:
        if account.plan.steps >= steps and not account.stepping:
            raise EnoughSteps
        account.know_module(module)

    with ExitStack() as stack:
        for handle in (
            register_module_forward_pre_hook(on_rank(check_steps)),
            register_optimizer_step_pre_hook(on_rank(MemoryAccount.before_step)),
            register_optimizer_step_post_hook(on_rank(MemoryAccount.after_step)),
        ):
            stack.callback(handle.remove)
        stack.enter_context(hooks.storage_taken.adding(take))
        stack.enter_context(hooks.tensor_met.adding(on_rank(note_arrival)))
        yield
