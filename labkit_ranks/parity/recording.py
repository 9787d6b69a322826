"""Record what each rank trains with, as plain tensors: first weights, gradients, losses and printed norms."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.base.patches import Patch
from labkit.base.tree import map_tensors, tensors, tensors_in

from ..diagnosis.observer import Observer
from ..diagnosis.operations import LOSSES
from ..diagnosis.records import RankRecord
from ..group.slot import PlainTensors
from ..rank.rank import current_thread_rank

# Steps whose tensors are kept whole; of later steps only norms are kept.
WHOLE_STEPS = 2
_WRAPPERS = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_NORM = re.compile(r"norm\W{0,9}(\d+\.?\d*(?:e[-+]?\d+)?)", re.IGNORECASE)


class RankPiece(NamedTuple):
    """A rank's part of a tensor of ``shape``: the part's ``value``, and the ``places`` of its numbers in the whole."""

    shape: tuple[int, ...]
    places: Tensor
    value: Tensor


@dataclass(eq=False)
class RankTraining:
    """The training of one rank; see ``record`` for the rest.

    weights    step -> name -> piece; step 0 is before the first.
    gradients  step -> name -> piece, before clipping; ``squares`` has sums of squares, and counts, of every step.
    losses     step -> scalars on which the rank called backward.
    read       (step, "targets" of losses or "inputs" of called modules) -> their numbers.
    classes    the number of classes of the cross entropy; ``printed`` the rank's output.
    """

    rank: int
    record: RankRecord
    weights: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    gradients: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    squares: dict[int, dict[str, tuple[float, int]]] = field(default_factory=dict)
    losses: dict[int, list[float]] = field(default_factory=dict)
    read: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)
    classes: int = 0
    printed: io.StringIO = field(default_factory=io.StringIO)
    busy: bool = False

    @property
    def step(self) -> int:
        return len(self.record.steps) + 1

    def printed_norms(self) -> list[str]:
        """Return the numbers printed after the word "norm"."""
        return _NORM.findall(self.printed.getvalue())

    def keep_read(self, what: str, tensor: Any, ignored: int) -> None:
        if self.step <= WHOLE_STEPS:
            values = _local(tensor).double().reshape(-1)
            self.read.setdefault((self.step, what), []).append(values[values != ignored])

    def keep_gradients(self) -> None:
        """Keep the gradients unless the step's have been kept, which were not clipped yet."""
        if self.step not in self.squares:
            found = {name: one.grad for name, one in self.parameters().items() if one.grad is not None}
            pieces = {name: make_piece(one) for name, one in found.items()}
            sums = {
                name: (float(one.value.double().square().sum()), len(one.value))
                for name, one in pieces.items()
            }
            self.squares[self.step] = sums
            if self.step <= WHOLE_STEPS:
                self.gradients[self.step] = pieces

    def keep_weights(self, step: int) -> None:
        self.weights[step] = {name: make_piece(one) for name, one in self.parameters().items()}

    def parameters(self) -> dict[str, Any]:
        """Return the trained parameters by their names in the called module."""
        found, done = dict[str, Any](), set[int]()
        for at, parameter in enumerate(self.record.optimizer_parameters()):
            known = self.record.names.get(id(parameter), f"parameter {at}")
            if parameter.requires_grad and id(parameter) not in done:
                done.add(id(parameter))
                found[name if (name := public_name(known)) not in found else known] = parameter
        return found


class TrainingObserver(Observer):
    """An observer to keep each rank's training, and to change first weights and batches.

    start   (rank, name) -> numbers for the rank's piece of a parameter, set before the first forward.
    rows    (rank, number of the loader, number of the batch) -> batch that the loader gives instead.
    """

    def __init__(
        self, ranks: int, steps: int, start: Mapping[Any, Tensor] | None, rows: Mapping[Any, Any] | None
    ) -> None:
        super().__init__(ranks, steps)
        self.kept_steps, self._start, self._rows = steps, dict(start or {}), rows or {}
        self.trainings = [RankTraining(*one) for one in enumerate(self.records)]

    def _table(self) -> Iterator[Patch]:
        ours: dict[str, Any] = {"backward": self._backward, "clip_grad_norm_": self._clip} | dict.fromkeys(
            LOSSES, self._lose
        )
        for patch in super()._table():
            mine = ours.get(patch.name)
            yield patch if mine is None else Patch(patch.owner, patch.name, partial(mine, patch.value))
        yield Patch.wrap(nn.utils, "clip_grads_with_norm_", self._clip)

    def _clip(self, clip: Any, *args: Any, **kwargs: Any) -> Any:
        if (here := self._here()) is not None:
            here.keep_gradients()
        return clip(*args, **kwargs)

    def _here(self) -> Any:
        rank = current_thread_rank()
        return None if rank is None else self.trainings[rank.number]

    def _backward(self, backward: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kw: Any) -> Any:
        here = self._here()
        if here is None or here.busy or torch._C._current_graph_task_id() != -1:
            return backward(tensors, grad_tensors, *args, **kw)
        scalars = [float(_local(one)) for one in tensors_in(tensors) if one.numel() == 1]
        if scalars and not tensors_in(grad_tensors):
            here.losses.setdefault(here.step, []).append(sum(scalars))
        here.busy = True  # the machine's mode calls the function again from within
        try:
            return backward(tensors, grad_tensors, *args, **kw)
        finally:
            here.busy = False

    def _lose(self, lose: Any, *args: Any, **kwargs: Any) -> Any:
        here, given = self._here(), dict(zip(("input", "target"), args, strict=False)) | kwargs
        if here is None or here.busy:
            return lose(*args, **kwargs)
        here.busy = True
        try:
            loss = lose(*args, **kwargs)
        finally:
            here.busy = False
        target, ignored = given.get("target"), given.get("ignore_index", -100)
        if isinstance(target, Tensor) and loss.requires_grad:
            # Count targets only in the script's own backward, not where a schedule infers shapes.
            loss.register_hook(lambda _: here.keep_read("targets", target, ignored) if here.busy else None)
            if not target.is_floating_point() and given["input"].dim() > 1:
                here.classes = given["input"].shape[1]
        return loss

    def _call(self, call: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = self._here()
        if here is None or here.record.depth or not torch.is_grad_enabled():
            return super()._call(call, module, *args, **kwargs)
        for one in tensors_in(args, kwargs):
            if not one.requires_grad:
                here.keep_read("inputs", one, -100)

        def call_from_start(*inside: Any, **named: Any) -> Any:
            for name, parameter in here.parameters().items() if self._start and here.step == 1 else ():
                if (numbers := self._start.pop((here.rank, name), None)) is not None:
                    with PlainTensors():
                        local = getattr(parameter, "_local_tensor", parameter).detach()
                        local.copy_(numbers.reshape(local.shape))
            return call(*inside, **named)

        return super()._call(call_from_start, module, *args, **kwargs)

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here.record.stepping is None:
            if here.step == 1:
                here.keep_weights(0)
            here.keep_gradients()
        super()._begin_step(optimizer)

    def _end_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here.record.stepping is optimizer:
            here.keep_weights(here.step if here.step <= WHOLE_STEPS else -1)  # -1: the latest
        super()._end_step(optimizer)

    def _read_batch(self, record: RankRecord, batch: Any, iterator: Any) -> Any:
        super()._read_batch(record, batch, iterator)
        loader = record.loader(getattr(iterator, "_labkit_loader", None)) if self._rows else None
        if loader is None:
            return None
        at, loader.given, own = loader.given, loader.given + 1, tensors(batch)
        other = self._rows.get((self._here().rank, record.loaders.index(loader), at))
        return other and map_tensors(other, lambda way, tensor: tensor.to(own[way].device))


def public_name(known: str) -> str:
    """Return a module's or parameter's name without the root's class and without wrappers."""
    name = re.sub(r"^(module\.)+", "", known.partition(".")[2])
    return _WRAPPERS.sub("", name) or known.partition("#")[0]


def _local(tensor: Any) -> Tensor:
    """Return a plain copy of this rank's numbers."""
    with PlainTensors():
        local: Tensor = getattr(tensor, "_local_tensor", tensor)
        return local.detach().clone()


def make_piece(tensor: Any) -> RankPiece:
    """Return this rank's piece of ``tensor``, copied."""
    places = torch.arange(tensor.numel()).reshape(tuple(tensor.shape))
    if (mesh := getattr(tensor, "device_mesh", None)) is not None:
        cuts = [
            (hasattr(how, "split_factor"), how.dim, mesh.size(at), place)
            for at, (how, place) in enumerate(
                zip(tensor.placements, mesh.get_coordinate() or (), strict=False)
            )
            if hasattr(how, "dim")
        ]
        # FSDP cuts the pieces of tensor parallelism, though its mesh dimension comes first (_StridedShard).
        for _, dim, parts, place in sorted(cuts, key=lambda cut: cut[0]):
            chunks = places.chunk(parts, dim)
            places = chunks[place] if place < len(chunks) else places.narrow(dim, 0, 0)
    return RankPiece(tuple(tensor.shape), places.reshape(-1), _local(tensor).reshape(-1).float())
