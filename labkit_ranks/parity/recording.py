"""Record what each rank trains with, as plain tensors, and give it the reference's first weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from labkit.base.patches import Patch
from labkit.base.tree import map_tensors, tensors_in

from ..diagnosis.observer import Observer
from ..diagnosis.operations import LOSSES
from ..diagnosis.records import LossRecord, RankRecord
from ..group.slot import PlainTensors
from .matching import Match, RankPiece, find_matches

# Steps whose tensors are kept whole; of later steps only norms are kept.
WHOLE_STEPS = 2
# The most numbers of a tensor whose fingerprint is kept: one of a vocabulary's logits takes seconds.
_MOST_NUMBERS = 2**22
_WRAPPERS = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class LossCall(NamedTuple):
    """A call of torch's loss functions that backward reached; ``term`` is its number in the backward pass."""

    term: int
    total: float
    counted: LossRecord


@dataclass(eq=False)
class RankTraining(RankRecord):
    """The record of a rank with its training.

    kept      (step, what) -> the reference's name -> piece. "arrived" are gradients as they come from backward,
              "gradients" as the optimizer or torch's clipping gets them (zeros if there is none); "weights" of step 0
              are those before the first step, of step -1 the latest.
    squares   step -> name -> sum of squares of a gradient, and the part of its numbers that this rank holds.
    losses    step -> calls; ``scalars`` are the numbers on which the rank called backward.
    rows      (step, "targets" of losses, if integers, or "inputs" of called modules) -> numbers.
    matches   own name -> the reference's tensor; those that were not equal got the reference's values.
    """

    rank: int = 0
    kept: dict[tuple[int, str], dict[str, RankPiece]] = field(default_factory=dict)
    squares: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    losses: dict[int, list[LossCall]] = field(default_factory=dict)
    scalars: dict[int, list[float]] = field(default_factory=dict)
    rows: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)
    matches: dict[str, Match] = field(default_factory=dict)
    busy: bool = False
    terms: int = 0

    @property
    def number(self) -> int:
        """The number of the current step."""
        return len(self.steps) + 1

    def keep_fingerprints(self, what: str, name: str, value: Any) -> None:
        if what == "output" and self.number <= WHOLE_STEPS:
            super().keep_fingerprints(what, name, [t for t in tensors_in(value) if t.numel() < _MOST_NUMBERS])

    def keep_loss(self, total: Tensor, counts: Sequence[LossRecord], target: Tensor, ignored: int) -> None:
        """Keep a loss that the script's own backward reaches; a schedule may have others, to infer shapes."""
        # Targets that are no integers may be anything, such as zeros to which weights are drawn.
        if self.busy and not target.is_floating_point():
            self.keep_rows("targets", target, ignored)
        for one in counts if self.busy else ():
            call = LossCall(self.terms, float(_copy_local(total)), one)
            self.losses.setdefault(self.number, []).append(call)
            self.terms += 1

    def keep_rows(self, what: str, tensor: Tensor, ignored: int = -100) -> None:
        if self.number <= WHOLE_STEPS:
            values = _copy_local(tensor).double().reshape(-1)
            self.rows.setdefault((self.number, what), []).append(values[values != ignored])

    def keep_pieces(self, what: str, step: int) -> dict[str, RankPiece]:
        """Keep the pieces of all parameters, or of their gradients; of later steps only the latest weights."""
        found = dict[str, RankPiece]()
        with PlainTensors():
            for own, parameter in self.parameters().items():
                tensor, match = parameter if what == "weights" else parameter.grad, self.matches.get(own)
                piece, name = make_piece(parameter if tensor is None else tensor), own
                if tensor is None:
                    piece.value.zero_()
                if match is not None:
                    places = match.places if len(match.places) == len(piece.places) else piece.places
                    piece, name = RankPiece(match.shape, places, piece.value), match.name
                if name in found:  # several parameters are parts of one of the reference's
                    both = zip(found[name][1:], piece[1:], strict=True)
                    piece = RankPiece(piece.shape, *map(torch.cat, both))
                found[name] = piece
        if step <= WHOLE_STEPS:
            self.kept[step, what] = found
        return found

    def keep_gradients(self) -> None:
        """Keep the gradients of this step at the first call, before they are clipped."""
        if self.number not in self.squares:
            sums = self.squares[self.number] = {}
            pieces = self.keep_pieces("gradients", self.number)
            with PlainTensors():
                for name, (shape, _, value) in pieces.items():
                    exact = value.double()
                    sums[name] = float(exact.dot(exact)), len(value) / max(math.prod(shape), 1)

    def parameters(self) -> dict[str, Any]:
        """Return the trained parameters by their names in the called module."""
        found = dict[str, Any]()
        for at, parameter in enumerate(dict.fromkeys(self.optimizer_parameters())):
            if parameter.requires_grad:
                known = self.names.get(id(parameter), f"parameter {at}")
                name = public_name(known)
                found[known if name in found else name] = parameter
        return found

    def match(self, wholes: Mapping[str, Tensor], change: bool) -> None:
        """Match new parameters with the reference's ``wholes``, and set them to it; or keep apart those that differ."""
        parameters = {name: one for name, one in self.parameters().items() if name not in self.matches}
        ready = [name for name, one in parameters.items() if id(one) in self.names or not change]
        pieces = {name: make_piece(parameters[name]) for name in ready}
        found = find_matches(self.rank, pieces, wholes)
        for name, piece in pieces.items() if wholes else ():
            match = found.get(name)
            if match is not None and change and not match.equal:
                with PlainTensors():
                    local = getattr(parameters[name], "_local_tensor", parameters[name]).detach()
                    local.copy_(wholes[match.name].reshape(-1)[match.places].reshape(local.shape))
            elif not change and (match is None or not match.equal):
                match = Match(f"{name} (rank {self.rank})", piece.shape, piece.places)
            if match is not None:
                self.matches[name] = match


class TrainingObserver(Observer):
    """An observer to keep each rank's training, and to change first weights and batches.

    start   the reference's first weights.
    like    the trainings of a layout whose batches the ranks get; ``shares`` says which part of how many parts.
    """

    def __init__(
        self, ranks: int, steps: int, start: Mapping[str, Tensor],
        like: Sequence[RankTraining] = (), shares: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        # The optimizers' settings stay the ranks' own: they may be the difference.
        super().__init__(ranks, steps, [replace(one, settings=[]) for one in like])
        self.kept_steps, self.watched_steps = steps, 0  # weights are kept, not watched
        self._start, self._shares = start, shares
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
        # The machine's mode calls the function again from within.
        if here is None or here.busy or torch._C._current_graph_task_id() != -1:
            return backward(tensors, grad_tensors, *args, **kw)
        scalars = [float(_copy_local(one)) for one in tensors_in(tensors) if one.numel() == 1]
        if scalars and not tensors_in(grad_tensors):
            here.scalars.setdefault(here.number, []).append(sum(scalars))
        here.terms, here.busy = 0, True
        try:
            backward(tensors, grad_tensors, *args, **kw)
        finally:
            here.busy = False
        if here.number <= WHOLE_STEPS:
            here.keep_pieces("arrived", here.number)

    def _lose(self, lose: Any, *args: Any, **kwargs: Any) -> Any:
        here, target = self._here(), kwargs.get("target", args[1] if len(args) > 1 else None)
        if here is None or here.losing:
            return lose(*args, **kwargs)
        before, loss = len(here.step.losses), lose(*args, **kwargs)
        if isinstance(target, Tensor) and isinstance(loss, Tensor) and loss.requires_grad:
            counts, ignored = here.step.losses[before:], kwargs.get("ignore_index", -100)
            means = counts and kwargs.get("reduction", "mean") == "mean"
            total = loss.detach() * (counts[0].count if means else 1)
            loss.register_hook(lambda _: here.keep_loss(total, counts, target, ignored))
        return loss

    def _call(self, call: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = self._here()
        if here is None or here.depth or not torch.is_grad_enabled():
            return super()._call(call, module, *args, **kwargs)
        for one in tensors_in(args, kwargs)[:1]:
            if not one.requires_grad:
                here.keep_rows("inputs", one)

        def call_matched(*inside: Any, **named: Any) -> Any:  # the parameters have names by now
            if here.number == 1:
                here.match(self._start, change=True)
            return call(*inside, **named)

        return super()._call(call_matched, module, *args, **kwargs)

    def _begin_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here.stepping is None:
            if here.number == 1:
                here.match(self._start, change=False)
                here.keep_pieces("weights", 0)
            here.keep_gradients()
        super()._begin_step(optimizer)

    def _end_step(self, optimizer: Any, *_: object) -> None:
        here = self._here()
        if here is not None and here.stepping is optimizer:
            here.kept[-1, "weights"] = here.keep_pieces("weights", here.number)
        super()._end_step(optimizer)

    def _read_batch(self, record: RankRecord, batch: Any, iterator: Any) -> Any:
        whole = super()._read_batch(record, batch, iterator)
        part, parts = self._shares[self._here().rank] if self._shares else (0, 1)
        return whole and map_tensors(whole, lambda _, one: one.chunk(parts)[part] if one.dim() else one)


@lru_cache(2**14)
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
    with PlainTensors():
        shape = sizes = tuple(tensor.shape)
        starts = (0,) * len(shape)
        if (mesh := getattr(tensor, "device_mesh", None)) is not None:
            sizes, starts = compute_local_shape_and_global_offset(shape, mesh, tensor.placements)
        local = getattr(tensor, "_local_tensor", tensor).detach().reshape(-1)
        return RankPiece(
            shape, _places(shape, tuple(sizes), tuple(starts)), local.to(torch.float32, copy=True)
        )


@lru_cache(256)
def _places(shape: tuple[int, ...], sizes: tuple[int, ...], starts: tuple[int, ...]) -> Tensor:
    """Return the places of a piece in a whole of ``shape``."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        places = places.narrow(dim, min(start, shape[dim]), size)
    return places.reshape(-1)
