"""Record what each rank trains with, as plain tensors: weights, gradients, losses, rows and prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.base.patches import Patch
from labkit.base.tree import map_tensors, tensors, tensors_in

from ..diagnosis.observer import Observer
from ..diagnosis.operations import LOSSES
from ..diagnosis.records import LossRecord, RankRecord
from ..group.slot import PlainTensors

# Steps whose tensors are kept whole; of later steps only norms are kept.
WHOLE_STEPS = 2
# The most numbers of a tensor whose fingerprint is kept: one of a vocabulary's logits takes seconds.
_MOST_NUMBERS = 2**22
_WRAPPERS = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class RankPiece(NamedTuple):
    """A rank's part of a tensor of ``shape``: the part's ``value``, and the ``places`` of its numbers in the whole."""

    shape: tuple[int, ...]
    places: Tensor
    value: Tensor


@dataclass(eq=False)
class RankTraining(RankRecord):
    """The record of a rank with its training.

    weights    step -> name -> piece; step 0 is before the first, -1 the latest.
    gradients  step -> name -> piece, as the optimizer or a clipping function of torch gets them; ``arrived`` as they
               come from backward; ``squares`` has sums of squares, and counts, of every step.
    scalars    step -> numbers on which the rank called backward.
    losses     step -> (number in its backward pass, sum, count and weight) of calls of torch's loss functions.
    rows       (step, "targets" of losses, if integers, or "inputs" of called modules) -> numbers.
    """

    weights: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    gradients: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    arrived: dict[int, dict[str, RankPiece]] = field(default_factory=dict)
    squares: dict[int, dict[str, tuple[float, int]]] = field(default_factory=dict)
    scalars: dict[int, list[float]] = field(default_factory=dict)
    losses: dict[int, list[tuple[int, float, LossRecord]]] = field(default_factory=dict)
    rows: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)
    busy: bool = False
    terms: int = 0
    rank: int = 0

    @property
    def number(self) -> int:
        """The number of the current step."""
        return len(self.steps) + 1

    def keep_fingerprints(self, what: str, name: str, value: Any) -> None:
        super().keep_fingerprints(
            what, name, [one for one in tensors_in(value) if one.numel() < _MOST_NUMBERS]
        )

    def keep_loss(
        self, value: Tensor, target: Tensor, ignored: int, count: LossRecord | None, _: Any
    ) -> None:
        """Keep a loss that the script's own backward reaches; a schedule may have others, to infer shapes."""
        if self.busy:
            if (
                not target.is_floating_point()
            ):  # numbers may be anything, such as zeros that weights are drawn to
                self.keep_rows("targets", target, ignored)
            if count is not None:
                self.losses.setdefault(self.number, []).append((self.terms, float(_copy_local(value)), count))
                self.terms += 1

    def keep_rows(self, what: str, tensor: Tensor, ignored: int) -> None:
        if self.number <= WHOLE_STEPS:
            values = _copy_local(tensor).double().reshape(-1)
            self.rows.setdefault((self.number, what), []).append(values[values != ignored])

    def keep_gradients(self) -> None:
        """Keep the gradients of this step at the first call, before they are clipped."""
        if self.number not in self.squares:
            pieces = self.pieces(gradients=True)
            sums = {
                name: (float(one.value.double().square().sum()), len(one.value))
                for name, one in pieces.items()
            }
            self.squares[self.number] = sums
            if self.number <= WHOLE_STEPS:
                self.gradients[self.number] = pieces

    def pieces(self, gradients: bool = False) -> dict[str, RankPiece]:
        """Return pieces of all parameters, or of their gradients."""
        found = ((name, one.grad if gradients else one) for name, one in self.parameters().items())
        with PlainTensors():
            return {name: make_piece(one) for name, one in found if one is not None}

    def parameters(self) -> dict[str, Any]:
        """Return the trained parameters by their names in the called module."""
        found, done = dict[str, Any](), set[int]()
        for at, parameter in enumerate(self.optimizer_parameters()):
            if parameter.requires_grad and id(parameter) not in done:
                done.add(id(parameter))
                known = self.names.get(id(parameter), f"parameter {at}")
                name = public_name(known)
                found[known if name in found else name] = parameter
        return found


class TrainingObserver(Observer):
    """An observer to keep each rank's training, and to change first weights and batches.

    start   (rank, name) -> numbers for the rank's piece of a parameter, set before the first forward.
    rows    (rank, number of the loader, number of the batch) -> batch that the loader gives instead.
    """

    def __init__(self, ranks: int, steps: int, start: Mapping[Any, Tensor], rows: Mapping[Any, Any]) -> None:
        super().__init__(ranks, steps)
        self.kept_steps, self._start, self._rows = steps, dict(start), rows
        self.trainings = [RankTraining(rank=rank) for rank in range(ranks)]
        self.records = [*self.trainings]

    def _table(self) -> Iterator[Patch]:
        ours: dict[str, Any] = dict.fromkeys(LOSSES, self._lose)
        ours |= {"backward": self._backward, "clip_grad_norm_": self._clip}
        for patch in super()._table():
            mine = ours.get(patch.name)
            yield patch if mine is None else Patch(patch.owner, patch.name, partial(mine, patch.value))
        yield Patch.wrap(nn.utils, "clip_grads_with_norm_", self._clip)

    def _here(self) -> Any:
        return self.record_here()

    def _clip(self, clip: Any, *args: Any, **kwargs: Any) -> Any:
        if (here := self._here()) is not None:
            here.keep_gradients()
        return clip(*args, **kwargs)

    def _backward(self, backward: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kw: Any) -> Any:
        here = self._here()
        if here is None or here.busy or torch._C._current_graph_task_id() != -1:
            return backward(tensors, grad_tensors, *args, **kw)
        scalars = [float(_copy_local(one)) for one in tensors_in(tensors) if one.numel() == 1]
        if scalars and not tensors_in(grad_tensors):
            here.scalars.setdefault(here.number, []).append(sum(scalars))
        here.terms, here.busy = 0, True  # the machine's mode calls the function again from within
        try:
            backward(tensors, grad_tensors, *args, **kw)
        finally:
            here.busy = False
        if here.number <= WHOLE_STEPS:
            here.arrived[here.number] = here.pieces(gradients=True)

    def _lose(self, lose: Any, *args: Any, **kwargs: Any) -> Any:
        here, given = self._here(), dict(zip(("input", "target"), args, strict=False)) | kwargs
        if here is None or here.losing:
            return lose(*args, **kwargs)
        losses, loss, target = [*here.step.losses], lose(*args, **kwargs), given.get("target")
        if isinstance(target, Tensor) and isinstance(loss, Tensor) and loss.requires_grad:
            count = here.step.losses[-1] if len(here.step.losses) > len(losses) else None
            value = loss.detach() * (
                count.count if count and kwargs.get("reduction", "mean") == "mean" else 1
            )
            ignored = given.get("ignore_index", -100)
            loss.register_hook(partial(here.keep_loss, value, target, ignored, count))
        return loss

    def _call(self, call: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = self._here()
        if here is None or here.depth or not torch.is_grad_enabled():
            return super()._call(call, module, *args, **kwargs)
        for one in tensors_in(args, kwargs)[:1]:
            if not one.requires_grad:
                here.keep_rows("inputs", one, -100)

        def call_from_start(*inside: Any, **named: Any) -> Any:
            for name, parameter in here.parameters().items() if self._start and here.number == 1 else ():
                if (numbers := self._start.pop((here.rank, name), None)) is not None:
                    with PlainTensors():
                        local = getattr(parameter, "_local_tensor", parameter).detach()
                        local.copy_(numbers.reshape(local.shape))
            return call(*inside, **named)

        return super()._call(call_from_start, module, *args, **kwargs)

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here.stepping is None:
            if here.number == 1:
                here.weights[0] = here.pieces()
            here.keep_gradients()
        super()._begin_step(optimizer)

    def _end_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here.stepping is optimizer:
            here.weights[-1] = here.pieces()
            if here.number <= WHOLE_STEPS:
                here.weights[here.number] = here.weights[-1]
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


def _copy_local(tensor: Any) -> Tensor:
    """Return a plain copy of this rank's numbers."""
    with PlainTensors():
        local: Tensor = getattr(tensor, "_local_tensor", tensor)
        return local.detach().clone()


def make_piece(tensor: Any) -> RankPiece:
    """Return this rank's piece of ``tensor``, copied."""
    cuts = []
    if (mesh := getattr(tensor, "device_mesh", None)) is not None:
        for at, (how, place) in enumerate(zip(tensor.placements, mesh.get_coordinate() or (), strict=False)):
            if hasattr(how, "dim"):
                cuts.append((hasattr(how, "split_factor"), how.dim, mesh.size(at), place))
    shape = tuple(tensor.shape)
    # FSDP cuts the pieces of tensor parallelism, though its mesh dimension comes first (_StridedShard).
    places = _places(shape, tuple(sorted(cuts, key=lambda cut: cut[0])))
    return RankPiece(shape, places, _copy_local(tensor).reshape(-1).float())


@lru_cache(256)
def _places(shape: tuple[int, ...], cuts: tuple[tuple[bool, int, int, int], ...]) -> Tensor:
    """Return the places of a piece in a whole of ``shape`` that is cut along dimensions."""
    with PlainTensors():
        places = torch.arange(shape and torch.Size(shape).numel() or 1).reshape(shape)
        for _, dim, parts, place in cuts:
            chunks = places.chunk(parts, dim)
            places = chunks[place] if place < len(chunks) else places.narrow(dim, 0, 0)
        return places.reshape(-1)
