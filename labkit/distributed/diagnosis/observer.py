"""Observing a distributed script: some functions of torch are replaced by ones that note a call and pass it on.

What is noted of each rank are records, without judgement; nothing is changed of what the script computes.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data import dataloader as loading

from ...base.patches import Patch, Patches
from ..rank.rank import Rank, rank_here
from .records import Epoch, Loader, Loss, RankRecord, Step, without_gradient

# As many steps' weights are compared, and this many numbers of each.
_MOST_STEPS = 200
_MOST_NUMBERS = 2**20
_FROM_TARGETS = ("cross_entropy", "nll_loss")
_FROM_INPUTS = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
)  # fmt: skip
_REDUCES = frozenset(("all_reduce", "reduce_scatter", "reduce_scatter_single"))


class Observer:
    """Keeps a record of each of ``ranks`` ranks while it is entered."""

    def __init__(self, ranks: int) -> None:
        self.records = [RankRecord() for _ in range(ranks)]
        self._stack = ExitStack()

    def __enter__(self) -> Observer:
        self._stack.enter_context(Patches(self._table))
        for hook in (
            optimizers.register_optimizer_step_pre_hook(self._begin_step),
            optimizers.register_optimizer_step_post_hook(self._end_step),
        ):
            self._stack.callback(hook.remove)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def here(self) -> RankRecord | None:
        """Return the record of the rank that this thread is; None for other threads."""
        rank = rank_here()
        return None if rank is None else self.records[rank.number]

    def _table(self) -> Iterator[Patch]:
        iterator: Any = loading._BaseDataLoaderIter
        yield self._before(DataLoader, "__iter__", _begin_epoch)
        yield self._before(iterator, "__init__", _keep_loader)
        yield self._after(iterator, "_next_index", _read_index)
        yield self._after(iterator, "__next__", _read_batch)
        yield self._before(torch.autograd, "backward", _begin_backward)
        yield Patch(Rank, "note", self._noting(Rank.note))
        yield self._after(DistributedDataParallel, "__init__", _keep_model)
        yield self._after(optimizers.Optimizer, "__init__", _keep_optimizer)
        for owner in (fsdp, fsdp._fully_shard, fsdp._fully_shard._fully_shard):
            yield self._before(owner, "fully_shard", _keep_sharded)
        for names, count in ((_FROM_TARGETS, _targets), (_FROM_INPUTS, _inputs)):
            for name in names:
                yield Patch(functional, name, self._losing(getattr(functional, name), count))
        yield self._before(functional, "batch_norm", _normalise)
        yield self._before(torch.amp.GradScaler, "scale", _scale)

    def _before(self, owner: Any, name: str, look: Callable[..., None]) -> Patch:
        """Let a rank call ``look(record, *args, **kwargs)`` before ``owner.name``."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if (record := self.here()) is not None:
                look(record, *args, **kwargs)
            return function(*args, **kwargs)

        return Patch(owner, name, watched)

    def _after(self, owner: Any, name: str, look: Callable[..., None]) -> Patch:
        """Let a rank call ``look(record, result, *args)`` after ``owner.name``."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if (record := self.here()) is not None:
                look(record, result, *args)
            return result

        return Patch(owner, name, watched)

    def _noting(self, note: Callable[..., Any]) -> Callable[..., Any]:
        """Count the collectives of gradients. Another thread than the rank's own may have called one."""

        @functools.wraps(note)
        def watched(rank: Rank, call: Any) -> None:
            note(rank, call)
            record = self.records[rank.number]
            if call.kind not in _REDUCES:
                return
            if record.reduced and torch._C._current_graph_task_id() != -1:
                record.reduced[-1] += 1
            elif call.kind == "all_reduce" and not record.models and not record.by_hand:
                with torch._C.DisableTorchFunction():
                    places = {
                        p.grad.untyped_storage().data_ptr() for p in _parameters(record) if p.grad is not None
                    }
                    record.by_hand = any(t.untyped_storage().data_ptr() in places for t in call.inputs)

        return watched

    def _losing(
        self, lose: Callable[..., Any], count: Callable[[tuple[Any, ...], dict[str, Any]], float | None]
    ) -> Callable[..., Any]:
        @functools.wraps(lose)
        def watched(*args: Any, **kwargs: Any) -> Any:
            record, how = self.here(), kwargs.get("reduction", "mean")
            if record is None or record.losing:  # a mode of the machine calls it once more from within
                return lose(*args, **kwargs)
            record.losing = True
            try:
                loss = lose(*args, **kwargs)
            finally:
                record.losing = False
            if isinstance(loss, Tensor) and loss.requires_grad and how in ("mean", "sum"):
                number = count(args, kwargs)
                if number:
                    record.losses.append(Loss(number))
                    loss.register_hook(functools.partial(_weigh, record.losses[-1], how))
            return loss

        return watched

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        record = self.here()
        if record is not None and not record.steps and not record.began:
            record.began = _weights(record)

    def _end_step(self, optimizer: Any, *_: object) -> None:
        record = self.here()
        if record is None:
            return
        weights = _weights(record) if len(record.steps) < _MOST_STEPS else {}
        record.steps.append(Step(record.losses, record.passes, record.reduced, weights))
        record.losses, record.passes, record.reduced = [], 0, []
        record.unused = without_gradient(record.models)
        for loader in record.loaders:
            if loader.epochs:
                loader.epochs[-1].steps += 1
        if record.sharded and not record.stale:
            current = {id(p) for module in record.sharded for p in module.parameters()}
            held = [id(p) for group in optimizer.param_groups for p in group["params"]]
            record.stale = [
                record.before[key][0] for key in held if key in record.before and key not in current
            ]


# Data.


def _begin_epoch(record: RankRecord, loader: Any) -> None:
    record.loader(loader, lambda: _described(loader)).epochs.append(Epoch())


def _keep_loader(record: RankRecord, iterator: Any, loader: Any) -> None:
    iterator._labkit_loader = loader


def _epoch(record: RankRecord, iterator: Any) -> Epoch:
    loader = getattr(iterator, "_labkit_loader", None)
    if loader is None:  # it was made outside of the ranks
        return Epoch()
    epochs = record.loader(loader, lambda: _described(loader)).epochs
    if not epochs:
        epochs.append(Epoch())
    return epochs[-1]


def _read_index(record: RankRecord, index: Any, iterator: Any) -> None:
    if not isinstance(iterator._dataset, IterableDataset):
        rows = index if isinstance(index, list) else [index]
        _epoch(record, iterator).rows += [_row(iterator._dataset, row) for row in rows]


def _read_batch(record: RankRecord, batch: Any, iterator: Any) -> None:
    if isinstance(iterator._dataset, IterableDataset):
        _epoch(record, iterator).rows += _rows(batch)


# Gradients and weights.


def _begin_backward(record: RankRecord, *_: Any, **__: Any) -> None:
    record.passes += 1
    record.reduced.append(0)


def _scale(record: RankRecord, *_: Any, **__: Any) -> None:
    record.scaled = True


def _keep_model(record: RankRecord, _: None, model: Any, *__: Any) -> None:
    record.models.append(model)


def _keep_optimizer(record: RankRecord, _: None, optimizer: Any, *__: Any) -> None:
    record.optimizers.append(optimizer)


def _keep_sharded(record: RankRecord, module: Any, *_: Any, **__: Any) -> None:
    for one in module if isinstance(module, (list, tuple)) else [module]:
        record.sharded.append(one)
        for name, parameter in one.named_parameters():
            if type(parameter) is nn.Parameter:
                record.before.setdefault(id(parameter), (name, parameter))


def _normalise(
    record: RankRecord,
    input: Tensor,
    running_mean: Any,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> None:
    if training and input.dim() > 1 and input.size(1):
        record.norms.append((input.numel() // input.size(1), input.size(0)))
        if record.running is None:
            record.running = running_mean


def _described(loader: Any) -> Loader:
    sampler = loader.sampler
    try:
        size: int | None = len(loader.dataset)
    except TypeError:
        size = None
    by_epoch = hasattr(sampler, "set_epoch") and bool(getattr(sampler, "shuffle", False))
    return Loader(size, type(sampler).__name__, by_epoch)


def _row(dataset: Any, row: Any) -> Any:
    """Return the number of a row in the whole data set: a rank may have a Subset of its own."""
    while isinstance(dataset, Subset):
        dataset, row = dataset.dataset, int(dataset.indices[row])
    return row


def _rows(batch: Any) -> list[int]:
    """Return a digest of each row of the first tensor of a batch."""
    while isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    if isinstance(batch, dict):
        return _rows(next(iter(batch.values()), None))
    if isinstance(batch, Tensor):
        return [_digest(row) for row in (batch if batch.dim() else [batch])]
    return [zlib.crc32(repr(batch).encode())]


def _digest(tensor: Tensor) -> int:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values = tensor.detach().reshape(-1)
        if values.numel() > _MOST_NUMBERS:
            values = values[:: values.numel() // _MOST_NUMBERS]
        return zlib.crc32(values.contiguous().view(torch.uint8).numpy().tobytes())


def _weights(record: RankRecord) -> dict[str, int]:
    """Return digests of what replicas must have in common: parameters, and buffers except BatchNorm's statistics."""
    found: dict[str, int] = {}
    for number, model in enumerate(record.models):
        prefix = f"{number}." if len(record.models) > 1 else ""
        for name, parameter in model.module.named_parameters():
            found[prefix + name] = _digest(parameter)
        norms = {
            f"{name}.{key}"
            for name, module in model.module.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for key, _ in module.named_buffers(recurse=False)
        }
        for name, buffer in model.module.named_buffers():
            if name not in norms and not buffer.is_sparse:
                found[prefix + name] = _digest(buffer)
    if not record.models and record.by_hand:
        for at, parameter in enumerate(_parameters(record)):
            found[f"parameter {at}"] = _digest(parameter)
    return found


def _parameters(record: RankRecord) -> list[Any]:
    return [
        p
        for optimizer in record.optimizers
        for group in optimizer.param_groups
        for p in group["params"]
        if type(p) is nn.Parameter
    ]


def _targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Return how many targets count in a cross entropy; None if they are weighed, or probabilities."""
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    if kwargs.get("weight", args[2] if len(args) > 2 else None) is not None:
        return None
    if not isinstance(target, Tensor) or target.is_floating_point():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return float((target != kwargs.get("ignore_index", -100)).sum())


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    one = kwargs.get("input", args[0] if args else None)
    if kwargs.get("weight") is not None or not isinstance(one, Tensor):
        return None
    return float(one.numel())


def _weigh(record: Loss, how: str, gradient: Tensor) -> None:
    if gradient.numel() == 1:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            record.weight = float(gradient) / (record.count if how == "mean" else 1.0)
