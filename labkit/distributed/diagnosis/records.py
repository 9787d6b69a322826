"""The records that are kept of each rank while a script is observed; what they mean is judged later."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...base.tree import tensors_in
from ..calls.call import Call
from ..group.slot import Plain

# As many optimizer steps are compared with one GPU's, and no more numbers of a tensor than this with other ranks'.
STEPS = 2
MOST_NUMBERS = 2**20
# These have weights that all ranks of tensor parallelism hold, each for a part of what it normalises.
_WHOLE_NORMS = ("LayerNorm", "RMSNorm")


@dataclass
class Epoch:
    """One pass of a rank over one loader: the rows that it read, in order, and the optimizer steps meanwhile."""

    rows: list[Hashable] = field(default_factory=list)
    steps: int = 0


@dataclass
class Loader:
    """One loader of a rank. A rank's loaders stand in the order in which they were first used.

    size       how many rows the data set has; None if it has no length.
    sampler    the name of its sampler's class.
    by_epoch   whether the sampler shuffles by the epoch that ``set_epoch`` tells it.
    """

    size: int | None
    sampler: str
    by_epoch: bool
    epochs: list[Epoch] = field(default_factory=list)
    # Its first batches, of the steps that are compared with one GPU's; how many one GPU was given.
    batches: list[Any] = field(default_factory=list)
    given: int = 0


@dataclass
class Loss:
    """One call of a loss function over ``count`` elements, each of which counts ``weight`` times in the gradient."""

    count: float
    weight: float | None = None  # known once backward has come by


@dataclass
class Step:
    """One optimizer step of a rank.

    losses     of the backward passes since the last step.
    reduced    how many collectives of gradients there were in each of these passes.
    place      the line of the last.
    weights    digests of parameters and buffers after the step, by name.
    """

    losses: list[Loss] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)
    place: str = ""
    weights: dict[str, int] = field(default_factory=dict)


class Draw(NamedTuple):
    """Random numbers that were drawn in training: in which step, where, by what, and a digest of the generator.

    rows   how many; 0 if they are for a tensor that was there. (Numbers for all ranks are drawn by each, too.)
    """

    step: int
    place: str
    function: str
    state: int
    rows: int


class Pending(NamedTuple):
    """A call that nobody has waited for yet, with its tensors and how often each had been changed.

    used      the places in memory that it reads or writes, and ``written`` those that it writes.
    """

    call: Call
    tensors: list[tuple[Tensor, int]]
    used: set[int]
    written: set[int]


class Print(NamedTuple):
    """Keeps of a tensor what is compared with one GPU's: of pieces of a whole, sums and sums of squares add up.

    shape     of the whole, where a DTensor knows it; ``local`` that of the rank's own piece.
    partial   whether it is a DTensor that knows that its pieces are still to be added up.
    eps       the rounding of its numbers.
    weighed   the sum in which each place has a weight of its own: of terms, it adds up.
    """

    place: str
    shape: tuple[int, ...]
    local: tuple[int, ...]
    partial: bool
    eps: float
    size: int
    total: float
    squares: float
    weighed: float


@dataclass
class RankRecord:
    """Everything that was observed of one rank."""

    loaders: list[Loader] = field(default_factory=list)
    # Its steps, and the one that has not been done; whether it is within a loss; digests before the first step.
    steps: list[Step] = field(default_factory=list)
    step: Step = field(default_factory=Step)
    losing: bool = False
    began: dict[str, int] = field(default_factory=dict)
    # The replicated models; the gradients that are reduced without one, with the ranks; whether losses are scaled for
    # float16.
    models: list[Any] = field(default_factory=list)
    by_hand: dict[int, tuple[int, ...]] = field(default_factory=dict)
    scaled: bool = False
    # The ranks that reduce their gradients with it, and the groups whose collectives are part of forward or backward.
    replicas: set[int] = field(default_factory=set)
    peers: set[tuple[int, ...]] = field(default_factory=set)
    # The line of the latest backward if ``no_sync`` was on, and of one that reduced all the same; gradients that were
    # reduced once more: where, by how many ranks, and how many times as large they are in the optimizer's step.
    unsyncing: str = ""
    unsynced: str = ""
    again: tuple[str, int, Tensor, float] | None = None
    times: float = 0.0
    optimizers: list[Any] = field(default_factory=list)
    stepping: Any = None
    # Modules given to fully_shard, and names of the parameters that it replaced, by id, kept alive so that ids stay.
    sharded: list[Any] = field(default_factory=list)
    before: dict[int, tuple[str, Any]] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    # Of BatchNorm in training: the fewest values of a channel, with the rows; the first layer's running mean.
    norms: list[tuple[int, int]] = field(default_factory=list)
    running: Any = None
    unused: list[str] = field(default_factory=list)
    # With their lines: files that were written, with the number of collectives of all by then; GPUs to which something
    # was loaded; random numbers (and whether there were any in the model); norms by which gradients were clipped.
    met: int = 0
    saved: list[tuple[Any, str]] = field(default_factory=list)
    loaded: list[tuple[Any, str]] = field(default_factory=list)
    draws: list[tuple[Any, str]] = field(default_factory=list)
    drew: bool = False
    clips: list[tuple[str, float]] = field(default_factory=list)
    # Whether FSDP1 has cut the model.
    flat: bool = False
    # Calls that are under way, and uses of their tensors: where, whether it was a change, and the call.
    pending: list[Pending] = field(default_factory=list)
    early: list[tuple[str, bool, Call]] = field(default_factory=list)
    # Of the modules that the script calls, with names for all inside; how deep in them it is; which one raised.
    roots: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    depth: int = 0
    raised: str = ""
    # What they were given, by step.
    inputs: dict[int, list[Any]] = field(default_factory=dict)
    # Tensors to compare, by step, what they are ("weight", "input", "output", "loss", "gradient"), name and number; the
    # optimizer's settings in each step.
    seen: dict[tuple[int, str, str, int], Print] = field(default_factory=dict)
    counts: dict[tuple[int, str, str], int] = field(default_factory=dict)
    settings: list[list[dict[str, Any]]] = field(default_factory=list)
    # By the loaders themselves: of one that is gone the next may have the id.
    _records: WeakKeyDictionary[Any, Loader] = field(default_factory=WeakKeyDictionary)

    def called(self, parameter: str) -> str:
        """The line that first called the module of ``parameter``."""
        module = parameter.rpartition(".")[0]
        return next((seen.place for key, seen in self.seen.items() if key[1:3] == ("output", module)), "")

    def trains(self) -> bool:
        """Whether what it draws now is for a step, and not for weights or data that all ranks are to have alike."""
        begun = self.steps or self.step.reduced or self.depth
        return bool(self.optimizers and begun) and torch.is_grad_enabled()

    def loader(self, loader: Any) -> Loader:
        """The record of a DataLoader."""
        found = self._records.get(loader)
        if found is None:
            sampler, size = loader.sampler, None
            with suppress(TypeError):
                size = len(loader.dataset)
            by_epoch = hasattr(sampler, "set_epoch") and bool(getattr(sampler, "shuffle", False))
            found = self._records[loader] = Loader(size, type(sampler).__name__, by_epoch)
            self.loaders.append(found)
        return found

    def held(self) -> list[Any]:
        """The parameters that the optimizers change."""
        return [p for one in self.optimizers for group in one.param_groups for p in group["params"]]

    def without_gradient(self) -> list[str]:
        """The parameters of replicated models that have no gradient where others have one."""
        found = []
        for model in self.models:
            parameters = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
            names = [name for name, parameter in parameters if parameter.grad is None]
            found += names if len(names) < len(parameters) else []
        return found

    def look(self, what: str, name: str, value: Any) -> None:
        """Keep what is compared with one GPU of the tensors in ``value``."""
        step = len(self.steps) + 1
        if step > STEPS or not name:
            return
        place = ""
        for tensor in tensors_in(value):
            place = place or line_here()[0]
            number = self.counts[step, what, name] = self.counts.get((step, what, name), 0) + 1
            if (seen := printed(tensor, place)) is not None:
                self.seen[step, what, name, number] = seen

    def weights(self) -> dict[str, int]:
        """Digests of what replicas must have in common: parameters, and buffers except BatchNorm's statistics.

        Without replicas, of what is reduced by hand, and of norms whose weights every rank has.
        """
        found: dict[str, int] = {}
        for number, model in enumerate(self.models):
            prefix = f"{number}." if len(self.models) > 1 else ""
            norms = {
                f"{name}.{key}"
                for name, module in model.module.named_modules()
                if isinstance(module, nn.modules.batchnorm._BatchNorm)
                for key, _ in module.named_buffers(recurse=False)
            }
            for name, parameter in model.module.named_parameters():
                if name not in model.parameters_to_ignore:
                    found[prefix + name] = digest(parameter)
            for name, buffer in model.module.named_buffers():
                if name not in norms and not buffer.is_sparse:
                    found[prefix + name] = digest(buffer)
        if self.models:
            return found
        held = self.held()
        for at in self.by_hand:
            found[self.names.get(id(held[at]), f"parameter {at}")] = digest(held[at])
        for root in () if self.flat else self.roots:
            for module in root.modules():
                if type(module).__name__.endswith(_WHOLE_NORMS):
                    for parameter in module.parameters(recurse=False):
                        if type(parameter) is nn.Parameter:
                            found[self.names[id(parameter)]] = digest(parameter)
        return found


def line_here() -> tuple[str, Call]:
    """The user's line from which this thread came here, and how."""
    call = Call("")
    call.locate()
    return call.short_place, call


def digest(tensor: Tensor) -> int:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values = tensor.detach().reshape(-1)
        if values.numel() > MOST_NUMBERS:
            values = values[:: values.numel() // MOST_NUMBERS]
        return zlib.crc32(values.contiguous().view(torch.uint8).numpy().tobytes())


def printed(tensor: Any, place: str) -> Print | None:
    """The print of ``tensor`` that is kept; None if it has no numbers to add up."""
    local = getattr(tensor, "_local_tensor", tensor)
    if type(local) is not Tensor and not isinstance(local, nn.Parameter):
        return None  # it wraps others, and may wait for them
    with Plain(), suppress(RuntimeError, TypeError):  # of other layouts, on no device, within a transform
        values = local.detach().double().reshape(-1)
        weighed = values.dot(torch.arange(values.numel(), dtype=values.dtype).add_(1).sin_())
        eps = torch.finfo(local.dtype).eps if local.is_floating_point() else 0.0
        partial = any(one.is_partial() for one in getattr(tensor, "placements", ()))
        sums = (float(one) for one in (values.sum(), values.dot(values), weighed))
        shapes = tuple(tensor.shape), tuple(local.shape)
        return Print(place, *shapes, partial, eps, local.numel(), *sums)
    return None
