"""Watching a distributed script: what of torch it calls is looked at on its way, in each rank; nothing is changed."""

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
    """Records of ``ranks`` ranks, as long as it is entered."""

    def __init__(self, ranks: int) -> None:
        self.seen = [RankRecord() for _ in range(ranks)]
        self._stack = ExitStack()

    def __enter__(self) -> Observer:
        self._stack.enter_context(Patches(self._table))
        hook = optimizers.register_optimizer_step_pre_hook(self._begin_step)
        self._stack.callback(hook.remove)
        hook = optimizers.register_optimizer_step_post_hook(self._step)
        self._stack.callback(hook.remove)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def here(self) -> RankRecord | None:
        """The records of the rank that this thread is."""
        rank = rank_here()
        return None if rank is None else self.seen[rank.number]

    def _table(self) -> Iterator[Patch]:
        yield Patch(DataLoader, "__iter__", self._iterating(DataLoader.__iter__))
        base: Any = loading._BaseDataLoaderIter
        yield Patch(base, "__init__", self._making_iterator(base.__init__))
        yield Patch(base, "_next_index", self._reading(base._next_index))
        yield Patch(base, "__next__", self._fetching(base.__next__))
        yield Patch(torch.autograd, "backward", self._backward(torch.autograd.backward))
        yield Patch(Rank, "note", self._noting(Rank.note))
        yield Patch(DistributedDataParallel, "__init__", self._replicating(DistributedDataParallel.__init__))
        yield Patch(optimizers.Optimizer, "__init__", self._optimizing(optimizers.Optimizer.__init__))
        shard = self._sharding(fsdp.fully_shard)
        for owner in (fsdp, fsdp._fully_shard, fsdp._fully_shard._fully_shard):
            yield Patch(owner, "fully_shard", shard)
        for name in _FROM_TARGETS:
            yield Patch(functional, name, self._losing(getattr(functional, name), _targets))
        for name in _FROM_INPUTS:
            yield Patch(functional, name, self._losing(getattr(functional, name), _inputs))
        yield Patch(functional, "batch_norm", self._normalising(functional.batch_norm))
        yield Patch(torch.amp.GradScaler, "scale", self._scaling(torch.amp.GradScaler.scale))

    # Data.

    def _iterating(self, iterate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(iterate)
        def watched(loader: Any) -> Any:
            if (seen := self.here()) is not None:
                seen.loader(loader, lambda: _record(loader)).epochs.append(Epoch())
            return iterate(loader)

        return watched

    def _making_iterator(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def watched(iterator: Any, loader: Any) -> None:
            iterator._labkit_loader = loader
            make(iterator, loader)

        return watched

    def _epoch(self, iterator: Any) -> Epoch | None:
        seen, loader = self.here(), getattr(iterator, "_labkit_loader", None)
        if seen is None or loader is None:
            return None
        epochs = seen.loader(loader, lambda: _record(loader)).epochs
        if not epochs:
            epochs.append(Epoch())
        return epochs[-1]

    def _reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def watched(iterator: Any) -> Any:
            index = read(iterator)
            epoch = self._epoch(iterator)
            if epoch is not None and not isinstance(iterator._dataset, IterableDataset):
                rows = index if isinstance(index, list) else [index]
                epoch.rows += [_row(iterator._dataset, row) for row in rows]
            return index

        return watched

    def _fetching(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def watched(iterator: Any) -> Any:
            batch = fetch(iterator)
            if (
                isinstance(iterator._dataset, IterableDataset)
                and (epoch := self._epoch(iterator)) is not None
            ):
                epoch.rows += _rows(batch)
            return batch

        return watched

    # Gradients.

    def _backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if (seen := self.here()) is not None:
                seen.passes += 1
                seen.reduced.append(0)
            return backward(*args, **kwargs)

        return watched

    def _noting(self, note: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(note)
        def watched(rank: Rank, call: Any) -> None:
            note(rank, call)
            seen = self.seen[rank.number]
            if call.kind not in _REDUCES:
                return
            if seen.reduced and torch._C._current_graph_task_id() != -1:
                seen.reduced[-1] += 1
            elif call.kind == "all_reduce" and not seen.models and not seen.by_hand:
                with torch._C.DisableTorchFunction():
                    places = {
                        p.grad.untyped_storage().data_ptr() for p in _parameters(seen) if p.grad is not None
                    }
                    seen.by_hand = any(t.untyped_storage().data_ptr() in places for t in call.inputs)

        return watched

    def _losing(
        self, lose: Callable[..., Any], count: Callable[[tuple[Any, ...], dict[str, Any]], float | None]
    ) -> Callable[..., Any]:
        @functools.wraps(lose)
        def watched(*args: Any, **kwargs: Any) -> Any:
            seen, how = self.here(), kwargs.get("reduction", "mean")
            if seen is None or seen.losing:  # a mode of the machine calls it once more from within
                return lose(*args, **kwargs)
            seen.losing = True
            try:
                loss = lose(*args, **kwargs)
            finally:
                seen.losing = False
            if isinstance(loss, Tensor) and loss.requires_grad and how in ("mean", "sum"):
                number = count(args, kwargs)
                if number:
                    record = Loss(number)
                    seen.losses.append(record)
                    loss.register_hook(functools.partial(_weigh, record, how))
            return loss

        return watched

    def _scaling(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(scale)
        def watched(scaler: Any, *args: Any) -> Any:
            if (seen := self.here()) is not None:
                seen.scaled = True
            return scale(scaler, *args)

        return watched

    # Weights.

    def _replicating(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def watched(model: Any, *args: Any, **kwargs: Any) -> None:
            make(model, *args, **kwargs)
            if (seen := self.here()) is not None:
                seen.models.append(model)

        return watched

    def _sharding(self, shard: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(shard)
        def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
            seen = self.here()
            if seen is not None:
                for one in module if isinstance(module, (list, tuple)) else [module]:
                    seen.sharded.append(one)
                    for name, parameter in one.named_parameters():
                        if type(parameter) is nn.Parameter:
                            seen.before.setdefault(id(parameter), (name, parameter))
            return shard(module, *args, **kwargs)

        return watched

    def _optimizing(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            if (seen := self.here()) is not None:
                seen.optimizers.append(optimizer)

        return watched

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        seen = self.here()
        if seen is not None and not seen.steps and not seen.began:
            seen.began = _weights(seen)

    def _step(self, optimizer: Any, *_: object) -> None:
        seen = self.here()
        if seen is None:
            return
        weights = _weights(seen) if len(seen.steps) < _MOST_STEPS else {}
        seen.steps.append(Step(seen.losses, seen.passes, seen.reduced, weights))
        seen.losses, seen.passes, seen.reduced = [], 0, []
        seen.unused = without_gradient(seen.models)
        for loader in seen.loaders:
            if loader.epochs:
                loader.epochs[-1].steps += 1
        if seen.sharded and not seen.stale:
            current = {id(p) for module in seen.sharded for p in module.parameters()}
            held = [id(p) for group in optimizer.param_groups for p in group["params"]]
            seen.stale = [seen.before[key][0] for key in held if key in seen.before and key not in current]

    def _normalising(self, normalise: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(normalise)
        def watched(x: Tensor, running_mean: Any, *args: Any, **kwargs: Any) -> Any:
            seen = self.here()
            training = kwargs.get("training", args[3] if len(args) > 3 else False)
            if seen is not None and training and x.dim() > 1 and x.size(1):
                seen.norms.append((x.numel() // x.size(1), x.size(0)))
                if seen.running is None:
                    seen.running = running_mean
            return normalise(x, running_mean, *args, **kwargs)

        return watched


def _record(loader: Any) -> Loader:
    sampler = loader.sampler
    try:
        size: int | None = len(loader.dataset)
    except TypeError:
        size = None
    by_epoch = hasattr(sampler, "set_epoch") and bool(getattr(sampler, "shuffle", False))
    return Loader(size, type(sampler).__name__, by_epoch)


def _row(dataset: Any, row: Any) -> Any:
    """The number of a row in the whole data set: a rank may have a Subset of its own."""
    while isinstance(dataset, Subset):
        dataset, row = dataset.dataset, int(dataset.indices[row])
    return row


def _rows(batch: Any) -> list[int]:
    """A digest of each row of the first tensor of a batch."""
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


def _weights(seen: RankRecord) -> dict[str, int]:
    """Digests of what all replicas have alike: parameters, and buffers but for BatchNorm's statistics."""
    found: dict[str, int] = {}
    for number, model in enumerate(seen.models):
        prefix = f"{number}." if len(seen.models) > 1 else ""
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
    if not seen.models and seen.by_hand:
        for at, parameter in enumerate(_parameters(seen)):
            found[f"parameter {at}"] = _digest(parameter)
    return found


def _parameters(seen: RankRecord) -> list[Any]:
    return [
        p
        for optimizer in seen.optimizers
        for group in optimizer.param_groups
        for p in group["params"]
        if type(p) is nn.Parameter
    ]


def _targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """How many targets count in a cross entropy; None where they are weighed, or probabilities."""
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
