"""Observe a distributed script: wrap functions of torch so that each call is noted in its rank's record.

The wrappers do not change what the script computes, except in the run on one GPU, which gets the batches of all ranks
and ends after a few steps.
"""

from __future__ import annotations

import builtins
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data import dataloader as loading

from labkit import turns
from labkit.base import as_main
from labkit.base.language import say
from labkit.base.patches import Patch, Patches
from labkit.base.tree import map_tensors, tensors, tensors_in
from simgpu import machine_in_use

from ..group.slot import PlainTensors
from ..group.works import SlotWork
from ..rank.rank import Rank, call_recorded, current_thread_rank, work_settled
from ..rank.system_calls import RankExit
from . import operations
from .one_gpu import copy_batch, join_batches
from .records import (
    MOST_NUMBERS,
    STEPS,
    EpochRecord,
    HandReduction,
    RankRecord,
    StepRecord,
    digest_tensor,
    fingerprint,
    user_line,
)

_Look = Callable[..., Any]
# Steps of the first run that are shown as progress.
_SHOWN_STEPS = {digit * 10**power for digit in (1, 2, 5) for power in range(7)}
# The most steps whose weights are compared between ranks.
_MOST_STEPS = 200
_REDUCES = frozenset(("all_reduce", "reduce_scatter", "reduce_scatter_single"))
_SHARES = _REDUCES | {"all_gather", "all_gather_single"}


class Observer:
    """A context manager that keeps a record of each of ``ranks`` ranks.

    enough   end the ranks after this many optimizer steps of all; 0 for no end.
    like     records of other ranks, whose batches and optimizer settings these ranks get.
    """

    def __init__(self, ranks: int, enough: int = 0, like: Sequence[RankRecord] = ()) -> None:
        self.records = [RankRecord() for _ in range(ranks)]
        self._enough, self._like = enough, like
        # Steps whose batches are kept, and steps after which weights are compared between ranks.
        self.kept_steps, self.watched_steps = STEPS, _MOST_STEPS
        self._stack = ExitStack()

    def __enter__(self) -> Observer:
        machine = machine_in_use()
        assert machine is not None  # ranks run on a machine
        mode = machine.mode
        mode.observe_by(partial(operations.note_operation, self.record_here))
        self._stack.callback(mode.observe_by, None)
        as_main.hidden_errors.append(_is_reported)
        self._stack.callback(as_main.hidden_errors.remove, _is_reported)
        self._stack.enter_context(Patches(self._table))
        self._stack.enter_context(work_settled.adding(self._settle))
        self._stack.enter_context(call_recorded.adding(self._note))
        self._stack.callback(optimizers.register_optimizer_step_pre_hook(self._begin_step).remove)
        self._stack.callback(optimizers.register_optimizer_step_post_hook(self._end_step).remove)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def record_here(self) -> RankRecord | None:
        """Return the record of this thread's rank; None if the thread is no rank."""
        rank = current_thread_rank()
        return None if rank is None else self.records[rank.number]

    def _table(self) -> Iterator[Patch]:
        iterator: Any = loading._BaseDataLoaderIter
        yield self._watch(DataLoader, "__init__", after=_keep_place)
        yield self._watch(DataLoader, "__iter__", _begin_epoch)
        yield self._watch(iterator, "__init__", _keep_loader)
        yield self._watch(iterator, "_next_index", after=_read_index)
        yield Patch.wrap(iterator, "__next__", self._read_next)
        yield self._watch(torch.autograd, "backward", _begin_backward)
        yield Patch.wrap(nn.Module, "__call__", self._call)
        yield self._watch(torch.cuda, "synchronize", lambda record, *_, **__: record.pending.clear())
        yield self._watch(torch, "save", operations.note_save)
        yield self._watch(torch, "load", after=operations.note_load)
        yield self._watch(builtins, "open", operations.note_open)
        yield self._watch(nn.utils, "clip_grad_norm_", after=operations.note_clip)
        yield self._watch(fsdp.FullyShardedDataParallel, "__init__", _set_flag("flat"))
        yield self._watch(DistributedDataParallel, "__init__", after=_keep_model)
        yield self._watch(optimizers.Optimizer, "__init__", after=_keep_optimizer)
        for owner in (fsdp, fsdp._fully_shard, fsdp._fully_shard._fully_shard):
            yield self._watch(owner, "fully_shard", _remember_unsharded)
        for name in operations.LOSSES:
            yield Patch.wrap(functional, name, partial(operations.note_loss, self.record_here))
        yield self._watch(functional, "batch_norm", operations.note_batch_norm)
        yield self._watch(torch.amp.GradScaler, "scale", _set_flag("scaled"))

    def _watch(self, owner: Any, name: str, before: _Look | None = None, after: _Look | None = None) -> Patch:
        """Wrap ``owner.name`` in ``before(record, *args, **kwargs)`` and ``after(record, result, *args)``.

        If ``after`` returns a value other than None, that value replaces the result.
        """

        def call_watched(function: _Look, *args: Any, **kwargs: Any) -> Any:
            record = self.record_here()
            if record is not None and before is not None:
                before(record, *args, **kwargs)
            result = function(*args, **kwargs)
            other = after(record, result, *args) if record is not None and after is not None else None
            return result if other is None else other

        return Patch.wrap(owner, name, call_watched)

    def _settle(self, work: SlotWork) -> None:
        record = self.record_here()
        if record is not None:
            operations.settle(record, work)

    def _note(self, rank: Rank, call: Any) -> None:
        """Note a collective of the script itself or of its gradients. Any thread of the rank may have made the call."""
        record = self.records[rank.number]
        record.met += len(call.ranks) == rank.size
        backward = torch._C._current_graph_task_id() != -1
        own = not call.from_cpp and not call.via  # a line of the script made the call
        if backward or record.depth:
            if call.kind in _SHARES:
                record.peers.add(call.ranks)
                record.cut |= {call.ranks} if own and not backward else set()
            elif call.kind.startswith("all_to_all") and any(t.is_floating_point() for t in call.inputs):
                record.exchanges.add(call.ranks)
        if own:
            operations.add_pending(record, call)
            if (record.steps or record.step.reduced) and not backward and not call.makes_a_group:
                record.between += 1
                record.calls.add(() if call.is_message else call.ranks)
        if call.kind not in _REDUCES:
            return
        wrapped = record.models or record.sharded or record.flat
        if backward and record.step.reduced and call.via and wrapped:
            record.step.reduced[-1] += 1
            record.replicas.update(call.ranks)
        elif own and call.kind == "all_reduce":
            _reduce_by_hand(record, call)

    def _call(self, call: _Look, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Note the inputs of modules that the script calls, and the outputs of all modules."""
        record = self.record_here()
        if record is None or not torch.is_grad_enabled():
            return call(module, *args, **kwargs)
        if not record.depth:
            _note_inputs(record, module, (args, kwargs))
        record.depth += 1
        try:
            result = call(module, *args, **kwargs)
        except BaseException:
            record.raised = record.raised or record.names.get(id(module), "")
            raise
        finally:
            record.depth -= 1
        record.keep_fingerprints("output", record.names.get(id(module), ""), result)
        return result

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        record = self.record_here()
        if record is None or record.stepping not in (None, optimizer):
            return  # an optimizer within another one, which has not finished its step
        record.stepping, step = optimizer, len(record.steps)
        record.step.line = user_line()[0]
        if step < self.watched_steps:
            record.watch_shared(step)
        graded = [one for one in record.optimizer_parameters() if one.grad is not None]
        if len(record.by_hand) == len(graded):
            record.replicas.update(*(one.ranks for one in record.by_hand.values()))
        if record.again is not None and not record.times:
            size, gradient, before = record.again[1:]
            record.times = size if abs(_gradient_norm(gradient) / (before or 1.0) - 1) > 0.01 else 1.0
        for root in record.roots if step < STEPS else ():
            for _, parameter in reversed(list(root.named_parameters())):
                record.keep_fingerprints("gradient", record.names.get(id(parameter), ""), parameter.grad)
        groups = optimizer.param_groups
        record.settings.append([{k: v for k, v in group.items() if k != "params"} for group in groups])
        if self._like and step < len(self._like[0].settings):
            for group, settings in zip(groups, self._like[0].settings[step], strict=False):
                group.update(settings)

    def _end_step(self, optimizer: Any, *_: object) -> None:
        record = self.record_here()
        if record is None or record.stepping is not optimizer:
            return
        record.stepping = None
        if len(record.steps) < self.watched_steps:
            record.digest_shared(at=len(record.steps) + 1)
        record.steps.append(record.step)
        if not self._enough and record is self.records[0] and len(record.steps) in _SHOWN_STEPS:
            number = len(record.steps)
            text = say(en=f"rank 0 has done step {number}", zh=f"rank 0 做完了第 {number} 步")
            logging.getLogger(__name__).info(text)
        record.step = StepRecord(place=record.step.place)
        record.unused = record.without_gradient()
        for loader in record.loaders:
            if loader.epochs:
                loader.epochs[-1].steps += 1
        if record.sharded and not record.stale:
            current = {id(p) for module in record.sharded for p in module.parameters()}
            held = [id(p) for group in optimizer.param_groups for p in group["params"]]
            gone = [key for key in held if key in record.before and key not in current]
            record.stale = [record.before[key][0] for key in gone]
        if self._enough and all(len(one.steps) >= self._enough for one in self.records):
            raise RankExit(0)

    def _read_next(self, next_batch: _Look, iterator: Any) -> Any:
        record = self.record_here()
        if record is None:
            return next_batch(iterator)
        try:
            batch = next_batch(iterator)
        except StopIteration:
            _current_epoch(record, iterator).whole = True
            raise
        other = self._read_batch(record, batch, iterator)
        return batch if other is None else other

    def _read_batch(self, record: RankRecord, batch: Any, iterator: Any) -> Any:
        if isinstance(iterator._dataset, IterableDataset):
            _current_epoch(record, iterator).rows += _row_digests(batch)
        loader = getattr(iterator, "_labkit_loader", None)
        if loader is None or len(record.steps) >= self.kept_steps:
            return None
        mine = record.loader(loader)
        if not self._like:
            if sum(t.numel() for t in tensors_in(batch)) * (len(mine.batches) + 1) < MOST_NUMBERS:
                mine.batches.append(copy_batch(batch))
            return None
        number, at = record.loaders.index(mine), mine.given
        mine.given, own = at + 1, tensors(batch)
        try:
            together = join_batches([one.loaders[number].batches[at] for one in self._like])
            return map_tensors(together, lambda way, tensor: tensor.to(own[way].device))
        except (RuntimeError, ValueError, LookupError):
            raise RankExit(0) from None  # the ranks' batches cannot be joined, or ran out


# Data.


def _begin_epoch(record: RankRecord, loader: Any) -> None:
    record.loader(loader).epochs.append(EpochRecord())


def _keep_place(_: RankRecord, __: None, loader: Any, *___: Any) -> None:
    loader._labkit_place = user_line()[0]


def _keep_loader(record: RankRecord, iterator: Any, loader: Any) -> None:
    iterator._labkit_loader = loader


def _current_epoch(record: RankRecord, iterator: Any) -> EpochRecord:
    loader = getattr(iterator, "_labkit_loader", None)
    if loader is None:  # the iterator was made outside of the ranks
        return EpochRecord()
    epochs = record.loader(loader).epochs
    if not epochs:
        epochs.append(EpochRecord())
    return epochs[-1]


def _read_index(record: RankRecord, index: Any, iterator: Any) -> None:
    if not isinstance(iterator._dataset, IterableDataset):
        rows = index if isinstance(index, list) else [index]
        _current_epoch(record, iterator).rows += [_row_number(iterator._dataset, row) for row in rows]


def _is_reported(error: BaseException) -> bool:
    """Whether the result of the check-up reports ``error``, so that no traceback is needed."""
    return isinstance(error, turns.Deadlock) or hasattr(error, "report")


# Gradients and weights.


def _begin_backward(record: RankRecord, tensors: Any = (), *_: Any, **__: Any) -> None:
    step = record.step
    if step.reduced and step.reduced[-1]:
        record.unsynced = record.unsynced or record.unsyncing
    step.place = user_line()[0]
    without_sync = any(not model.require_backward_grad_sync for model in record.models)
    record.unsyncing = step.place if without_sync else ""
    record.keep_fingerprints("loss", "loss", tensors)
    step.reduced.append(0)


def _reduce_by_hand(record: RankRecord, call: Any) -> None:
    """Note the gradients that the script's own all-reduce sends, or that backward has reduced them already."""
    several = len(record.replicas & set(call.ranks)) > 1
    with torch._C.DisableTorchFunction():
        brought = {t.untyped_storage().data_ptr() for t in call.inputs}
        for parameter in record.optimizer_parameters():
            gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
            if gradient is None or gradient.untyped_storage().data_ptr() not in brought:
                continue
            if not (id(parameter) in record.wrapped or record.sharded or record.flat):
                late = bool(record.steps) and not record.step.reduced
                record.by_hand.setdefault(id(parameter), HandReduction(call.ranks, call.short_place, late))
            elif several and any(record.step.reduced) and record.again is None:
                size = len(call.ranks) if call.op == "SUM" else 1
                record.again = call.short_place, size, gradient, _gradient_norm(gradient)


def _gradient_norm(gradient: Tensor) -> float:
    with PlainTensors():
        return float(gradient.double().norm())


def _note_inputs(record: RankRecord, module: Any, given: Any) -> None:
    """Note the inputs of ``module``, which the script calls; on its first call, name its modules and parameters."""
    inputs = tensors_in(*given)
    record.inputs.setdefault(len(record.steps) + 1, []).extend(fingerprint(t, "") for t in inputs)
    if id(module) not in record.names and len(record.steps) < STEPS:
        first = f"{type(module).__name__}#{len(record.roots)}"
        record.roots.append(module)
        for name, one in (*module.named_modules(), *module.named_parameters()):
            record.names.setdefault(id(one), f"{first}.{name}" if name else first)
        for parameter in module.parameters():
            record.keep_fingerprints("weight", record.names[id(parameter)], parameter)
    data = [t for t in inputs if not t.requires_grad]
    record.keep_fingerprints("input", record.names.get(id(module), ""), data)


def _keep_model(record: RankRecord, _: None, model: Any, *__: Any) -> None:
    record.models.append(model)
    record.wrapped.update(id(parameter) for parameter in model.module.parameters() if parameter.requires_grad)
    record.replicas.update(model.process_group.transport().ranks)


def _set_flag(name: str) -> _Look:
    """Return a function that sets the flag ``name`` of a rank's record."""
    return lambda record, *_, **__: setattr(record, name, True)


def _keep_optimizer(record: RankRecord, _: None, optimizer: Any, *__: Any) -> None:
    record.optimizers.append(optimizer)


def _remember_unsharded(record: RankRecord, module: Any, *_: Any, **__: Any) -> None:
    """Before ``fully_shard(module)``: keep its parameters, to find an optimizer that still holds them afterwards."""
    for one in module if isinstance(module, (list, tuple)) else [module]:
        record.sharded.append(one)
        for name, parameter in one.named_parameters():
            if type(parameter) is nn.Parameter:  # a DTensor is sharded already
                record.before.setdefault(id(parameter), (name, parameter))


def _row_number(dataset: Any, row: Any) -> Any:
    """Return the number of a row in the whole data set, through any Subsets."""
    while isinstance(dataset, Subset):
        dataset, row = dataset.dataset, int(dataset.indices[row])
    return row


def _row_digests(batch: Any) -> list[int]:
    """Return a digest of each row of the first tensor of a batch."""
    while isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    if isinstance(batch, dict):
        return _row_digests(next(iter(batch.values()), None))
    if isinstance(batch, Tensor):
        return [digest_tensor(row) for row in (batch if batch.dim() else [batch])]
    return [zlib.crc32(repr(batch).encode())]
