"""Record what each rank trains with, as plain tensors: first weights, gradients, losses, norms and printed numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from ..diagnosis.observer import Observer
from ..diagnosis.operations import LOSSES
from ..diagnosis.records import RankRecord
from ..group.slot import PlainTensors
from ..rank.rank import current_thread_rank

# Steps whose tensors are kept whole; of later steps only norms are kept.
WHOLE_STEPS = 2
_WRAPPERS = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_NORM = re.compile(r"norm\W{0,9}([-+.\de]+|nan|inf)", re.IGNORECASE)


class RankPiece(NamedTuple):
    """A rank's part of a tensor of ``shape``: the part's ``value``, and the ``places`` of its numbers in the whole."""

    shape: tuple[int, ...]
    places: Tensor
    value: Tensor


@dataclass
class RankTraining:
    """The training of one rank.

    weights    step -> name -> piece; step 0 is before the first.
    gradients  step -> name -> piece, before clipping; ``squares`` has each gradient's sum of squares in every step.
    missing    names of parameters without a gradient in the first step.
    losses     step -> scalars on which the rank called backward.
    read       step -> numbers of the targets of loss functions, and of the inputs of called modules.
    classes    the number of classes of the cross entropy; ``printed`` the rank's output.
    """

    weights: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    gradients: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    squares: dict[int, dict[str, float]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    losses: dict[int, list[float]] = field(default_factory=dict)
    read: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)
    classes: int = 0
    printed: io.StringIO = field(default_factory=io.StringIO)
    clipped: bool = False
    busy: bool = False

    def printed_norms(self) -> list[tuple[float, str]]:
        """Return the numbers printed after the word "norm", with their text."""
        found = [one.rstrip(".e") for one in _NORM.findall(self.printed.getvalue())]
        return [(float(one), one) for one in found if re.fullmatch(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", one)]


class TrainingObserver(Observer):
    """An observer that also keeps a :class:`RankTraining` of each rank, and sets first weights.

    start   (rank, name) -> numbers that the rank's piece of a parameter gets before the first forward.
    """

    def __init__(self, ranks: int, steps: int, start: Mapping[tuple[int, str], Tensor]) -> None:
        super().__init__(ranks, steps)
        self.trainings = [RankTraining() for _ in range(ranks)]
        self._start, self._set = start, set[tuple[int, str]]()

    def _table(self) -> Iterator[Patch]:
        yield from super()._table()
        yield Patch.wrap(torch.autograd, "backward", self._backward)
        for name in LOSSES:
            yield Patch.wrap(functional, name, self._lose)
        for name in ("clip_grad_norm_", "clip_grads_with_norm_"):
            yield self._watch(nn.utils, name, self._clip)

    def _here(self) -> tuple[RankRecord, RankTraining] | None:
        rank = current_thread_rank()
        return None if rank is None else (self.records[rank.number], self.trainings[rank.number])

    def _backward(self, backward: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kw: Any) -> Any:
        here, scalars = self._here(), [one for one in tensors_in(tensors) if one.numel() == 1]
        if here is None or here[1].busy or torch._C._current_graph_task_id() != -1:
            return backward(tensors, grad_tensors, *args, **kw)
        if scalars and not tensors_in(grad_tensors):
            with PlainTensors():
                values = [float(getattr(one, "_local_tensor", one).detach()) for one in scalars]
            here[1].losses.setdefault(len(here[0].steps) + 1, []).append(sum(values))
        here[1].busy = True  # the machine's mode calls the function again from within
        try:
            return backward(tensors, grad_tensors, *args, **kw)
        finally:
            here[1].busy = False

    def _lose(self, lose: Any, *args: Any, **kwargs: Any) -> Any:
        here, given = self._here(), dict(zip(("input", "target"), args, strict=False)) | kwargs
        if here is None or here[1].busy:
            return lose(*args, **kwargs)
        here[1].busy = True
        try:
            loss = lose(*args, **kwargs)
        finally:
            here[1].busy = False
        target, ignored = given.get("target"), given.get("ignore_index", -100)
        if isinstance(target, Tensor) and loss.requires_grad:

            def read(_: Tensor) -> None:
                if here[1].busy:  # in the script's backward, not in a schedule's inference of shapes
                    self._read(here, "targets", target, ignored)

            loss.register_hook(read)
            whole = not target.is_floating_point() and given["input"].dim() > 1
            here[1].classes = given["input"].shape[1] if whole else 0
        return loss

    def _read(
        self, here: tuple[RankRecord, RankTraining], what: str, tensor: Any, ignored: int = -100
    ) -> None:
        step = len(here[0].steps) + 1
        if step <= WHOLE_STEPS:
            with PlainTensors():
                values = getattr(tensor, "_local_tensor", tensor).detach().double().reshape(-1).clone()
            here[1].read.setdefault((step, what), []).append(values[values != ignored])

    def _call(self, call: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = self._here()
        if here is None or here[0].depth or not torch.is_grad_enabled():
            return super()._call(call, module, *args, **kwargs)
        for one in tensors_in(args, kwargs):
            if not one.requires_grad:
                self._read(here, "inputs", one)

        def call_from_start(*inside: Any, **named: Any) -> Any:
            if not here[0].steps:
                self._set_weights(here[0])
            return call(*inside, **named)

        return super()._call(call_from_start, module, *args, **kwargs)

    def _set_weights(self, record: RankRecord) -> None:
        rank = self.records.index(record)
        for name, parameter in named_parameters(record).items():
            numbers = self._start.get((rank, name))
            if numbers is not None and (rank, name) not in self._set:
                self._set.add((rank, name))
                with PlainTensors():
                    local = getattr(parameter, "_local_tensor", parameter).detach()
                    local.copy_(numbers.reshape(local.shape))

    def _clip(self, record: RankRecord, *_: Any, **__: Any) -> None:
        rank = self.records.index(record)
        if record.stepping is None:
            self._keep_gradients(record, self.trainings[rank])
            self.trainings[rank].clipped = True

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here[0].stepping is None:
            if not here[0].steps:
                here[1].weights[0] = _pieces(named_parameters(here[0]))
            if not here[1].clipped:
                self._keep_gradients(*here)
            here[1].clipped = False
        super()._begin_step(optimizer)

    def _keep_gradients(self, record: RankRecord, training: RankTraining) -> None:
        step, found = len(record.steps) + 1, named_parameters(record)
        pieces = _pieces({name: one.grad for name, one in found.items() if one.grad is not None})
        training.squares[step] = {
            name: float(one.value.double().square().sum()) for name, one in pieces.items()
        }
        if step <= WHOLE_STEPS:
            training.gradients[step] = pieces
        if step == 1:
            training.missing = set(found) - set(pieces)

    def _end_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here[0].stepping is optimizer:
            step = len(here[0].steps) + 1
            if step <= WHOLE_STEPS or step == self._enough:
                here[1].weights[step] = _pieces(named_parameters(here[0]))
        super()._end_step(optimizer)


def named_parameters(record: RankRecord) -> dict[str, Any]:
    """Return a rank's trained parameters, by their names in the called module."""
    found, done = dict[str, Any](), set[int]()
    for at, parameter in enumerate(record.optimizer_parameters()):
        known = record.names.get(id(parameter), f"parameter {at}")
        name = public_name(known)
        if parameter.requires_grad and id(parameter) not in done:
            done.add(id(parameter))
            found[name if name not in found else known] = parameter
    return found


def public_name(known: str) -> str:
    """Return a module's or parameter's name without the root's class and without wrappers."""
    name = re.sub(r"^(module\.)+", "", known.partition(".")[2])
    return _WRAPPERS.sub("", name) or known.partition("#")[0]


def _pieces(tensors: Mapping[str, Any]) -> dict[str, RankPiece]:
    with PlainTensors():
        return {name: _piece(one) for name, one in tensors.items()}


def _piece(tensor: Any) -> RankPiece:
    """Return this rank's piece of ``tensor``, copied."""
    local, shape = getattr(tensor, "_local_tensor", tensor).detach(), tuple(tensor.shape)
    index = torch.arange(tensor.numel()).reshape(shape)
    if local is not tensor and (mesh := getattr(tensor, "device_mesh", None)) is not None:
        cuts = [
            (one.dim, mesh.size(at), place, hasattr(one, "split_factor"))
            for at, (one, place) in enumerate(
                zip(tensor.placements, mesh.get_coordinate() or (), strict=False)
            )
            if one.is_shard() or hasattr(one, "split_factor")
        ]
        # FSDP cuts the pieces of tensor parallelism, though its mesh dimension comes first (_StridedShard).
        for dim, parts, place, _ in sorted(cuts, key=lambda cut: cut[3]):
            chunks = index.chunk(parts, dim)
            index = chunks[place] if place < len(chunks) else index.narrow(dim, 0, 0)
    return RankPiece(shape, index.reshape(-1).clone(), local.reshape(-1).float().clone())
