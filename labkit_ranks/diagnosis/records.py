"""The records that are kept of each rank while a script is observed; what they mean is judged later."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from labkit.base.tree import tensors_in

from ..calls.call import CollectiveCall
from ..group.slot import PlainTensors

# As many optimizer steps are compared with one GPU's, and no more numbers of a tensor than this with other ranks'.
STEPS = 2
MOST_NUMBERS = 2**20
# These have weights that all ranks of tensor parallelism hold, each for a part of what it normalises.
_WHOLE_NORMS = ("LayerNorm", "RMSNorm")


@dataclass
class EpochRecord:
    """One pass of a rank over one loader.

    rows    the rows that the rank read, in order; ``whole`` whether they are all that the loader has.
    steps   the optimizer steps meanwhile.
    """

    rows: list[Hashable] = field(default_factory=list)
    steps: int = 0
    whole: bool = False


@dataclass
class LoaderRecord:
    """One loader of a rank. A rank's loaders stand in the order in which they were first used.

    size       how many rows the data set has; None if it has no length.
    sampler    the name of its sampler's class.
    place      the line that made it.
    share      into how many parts the sampler cuts the rows, and the number of this rank's; None if it doesn't.
    by_epoch   whether the sampler shuffles by the epoch that ``set_epoch`` tells it.
    """

    size: int | None
    sampler: str
    by_epoch: bool
    place: str = ""
    share: tuple[int, int] | None = None
    epochs: list[EpochRecord] = field(default_factory=list)
    # Its first batches, of the steps that are compared with one GPU's; how many one GPU was given.
    batches: list[Any] = field(default_factory=list)
    given: int = 0


@dataclass
class LossRecord:
    """One call of a loss function over ``count`` elements, each of which counts ``weight`` times in the gradient."""

    count: float
    weight: float | None = None  # known once backward has come by


@dataclass
class StepRecord:
    """One optimizer step of a rank.

    losses     of the backward passes since the last step.
    reduced    how many collectives of gradients there were in each of these passes.
    place      the line of the last; ``line`` that of the optimizer's step.
    """

    losses: list[LossRecord] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)
    place: str = ""
    line: str = ""


@dataclass
class WatchedTensor:
    """A parameter or buffer of one rank that may have to be alike in several.

    local      this rank's piece; ``among`` the ranks that have it too, by DDP's or a DTensor's word, in their order.
    constant   whether all its numbers were the same when it was first seen, as zeros and ones are.
    values     its digest before the first step (0), after each when the next begins, after the last at once.
    latest     its digest right after the latest step, then at the end.
    moved      whether it was changed between steps while the rank communicated, as by averaging.
    """

    tensor: Any
    local: Tensor
    among: tuple[int, ...]
    constant: bool
    values: dict[int, int] = field(default_factory=dict)
    latest: int = 0
    moved: bool = False


class HandReduction(NamedTuple):
    """A gradient that the script reduces: over which ranks, where, and whether only after the optimizer's step."""

    ranks: tuple[int, ...]
    place: str
    late: bool


class RandomDraw(NamedTuple):
    """Random numbers that were drawn in training: in which step, where, by what, and a digest of the generator.

    shape   of the drawn tensor; () if the numbers are for a tensor that was there.
    """

    step: int
    place: str
    function: str
    state: int
    shape: tuple[int, ...]


class PendingCall(NamedTuple):
    """A call that nobody has waited for yet, with its tensors and how often each had been changed.

    used      the places in memory that it reads or writes, and ``written`` those that it writes.
    """

    call: CollectiveCall
    tensors: list[tuple[Tensor, int]]
    used: set[int]
    written: set[int]


class Fingerprint(NamedTuple):
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

    loaders: list[LoaderRecord] = field(default_factory=list)
    # Its steps, and the one that has not been done; whether it is within a loss.
    steps: list[StepRecord] = field(default_factory=list)
    step: StepRecord = field(default_factory=StepRecord)
    losing: bool = False
    # The replicated models, and the ids of the parameters that they reduce; the gradients that the script reduces, by
    # the parameter's id; whether losses are scaled for float16.
    models: list[Any] = field(default_factory=list)
    wrapped: set[int] = field(default_factory=set)
    by_hand: dict[int, HandReduction] = field(default_factory=dict)
    scaled: bool = False
    # The ranks that reduce their gradients with it, and the groups whose collectives are part of forward or backward;
    # those that exchange rows there; those in which the script itself puts results of pieces together; those of its
    # calls between steps, and the number of these since the latest.
    replicas: set[int] = field(default_factory=set)
    peers: set[tuple[int, ...]] = field(default_factory=set)
    exchanges: set[tuple[int, ...]] = field(default_factory=set)
    cut: set[tuple[int, ...]] = field(default_factory=set)
    calls: set[tuple[int, ...]] = field(default_factory=set)
    between: int = 0
    # What is compared with other ranks, by name.
    watched: dict[str, WatchedTensor] = field(default_factory=dict)
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
    pending: list[PendingCall] = field(default_factory=list)
    early: list[tuple[str, bool, CollectiveCall]] = field(default_factory=list)
    # Of the modules that the script calls, with names for all inside; how deep in them it is; which one raised.
    roots: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    depth: int = 0
    raised: str = ""
    # What they were given, by step.
    inputs: dict[int, list[Any]] = field(default_factory=dict)
    # Tensors to compare, by step, what they are ("weight", "input", "output", "loss", "gradient"), name and number; the
    # optimizer's settings in each step.
    seen: dict[tuple[int, str, str, int], Fingerprint] = field(default_factory=dict)
    counts: dict[tuple[int, str, str], int] = field(default_factory=dict)
    settings: list[list[dict[str, Any]]] = field(default_factory=list)
    # By the loaders themselves: of one that is gone the next may have the id.
    _records: WeakKeyDictionary[Any, LoaderRecord] = field(default_factory=WeakKeyDictionary)

    def first_call_line(self, parameter: str) -> str:
        """The line that first called the module of ``parameter``."""
        module = parameter.rpartition(".")[0]
        return next((seen.place for key, seen in self.seen.items() if key[1:3] == ("output", module)), "")

    def trains(self) -> bool:
        """Whether what it draws now is for a step, and not for weights or data that all ranks are to have alike."""
        begun = self.steps or self.step.reduced or self.depth
        return bool(self.optimizers and begun) and torch.is_grad_enabled()

    def loader(self, loader: Any) -> LoaderRecord:
        """The record of a DataLoader."""
        found = self._records.get(loader)
        if found is None:
            sampler, size = loader.sampler, None
            with suppress(TypeError):
                size = len(loader.dataset)
            by_epoch = hasattr(sampler, "set_epoch") and bool(getattr(sampler, "shuffle", False))
            parts, part = (getattr(sampler, key, None) for key in ("num_replicas", "rank"))
            share = (parts, part) if isinstance(parts, int) and isinstance(part, int) else None
            place = getattr(loader, "_labkit_place", "")
            found = self._records[loader] = LoaderRecord(size, type(sampler).__name__, by_epoch, place, share)
            self.loaders.append(found)
        return found

    def held_parameters(self) -> list[Any]:
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

    def keep_fingerprints(self, what: str, name: str, value: Any) -> None:
        """Keep what is compared with one GPU of the tensors in ``value``."""
        step = len(self.steps) + 1
        if step > STEPS or not name:
            return
        place = ""
        for tensor in tensors_in(value):
            place = place or user_line()[0]
            number = self.counts[step, what, name] = self.counts.get((step, what, name), 0) + 1
            if (seen := fingerprint(tensor, place)) is not None:
                self.seen[step, what, name, number] = seen

    def watch_shared(self, at: int) -> None:
        """Look at what may have to be alike in several ranks, when step ``at`` is done and the next begins."""
        for name, tensor, among in [*self._shared_tensors()]:
            local = getattr(tensor, "_local_tensor", tensor)
            if name in self.watched:
                self.watched[name].local = local  # a buffer may have been replaced
            elif type(local) in (Tensor, nn.Parameter) and local.numel():
                with PlainTensors(), suppress(RuntimeError, NotImplementedError):  # sparse, or without data
                    digest_tensor(local)
                    constant = bool((local.reshape(-1)[0] == local).all())
                    self.watched[name] = WatchedTensor(tensor, local, among, constant)
        for watched in self.watched.values():
            value = watched.values[at] = digest_tensor(watched.local)
            watched.moved |= bool(self.between and watched.latest and value != watched.latest)
        self.between = 0

    def digest_shared(self, at: int | None = None) -> None:
        """Look again, right after step ``at``, or at the end."""
        for watched in self.watched.values():
            watched.latest = digest_tensor(watched.local)
            if at is not None:
                watched.values[at] = watched.latest

    def _shared_tensors(self) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        """Yield names, tensors, and the ranks that are known to have them alike.

        Of replicated models, parameters and buffers except BatchNorm's statistics; then what optimizers hold, and
        called modules (a rank's optimizer may hold its share).
        """
        done = set[int]()
        for number, model in enumerate(self.models):
            prefix = f"{number}." if len(self.models) > 1 else ""
            ranks, left_out = (
                tuple(sorted(model.process_group.transport().ranks)),
                set(model.parameters_to_ignore),
            )
            for name, module in model.module.named_modules(prefix=""):
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    left_out |= {
                        f"{name}.{key}".lstrip(".") for key, _ in module.named_buffers(recurse=False)
                    }
            for name, tensor in (*model.module.named_parameters(), *model.module.named_buffers()):
                done.add(id(tensor))
                if name not in left_out:
                    yield prefix + name, tensor, ranks
        modules = () if self.flat or self.sharded else self.roots
        called = [parameter for root in modules for parameter in root.parameters() if parameter.requires_grad]
        for at, parameter in enumerate([] if self.flat else [*self.held_parameters(), *called]):
            if id(parameter) not in done:
                done.add(id(parameter))
                yield (
                    self.names.get(id(parameter), f"parameter {at}"),
                    parameter,
                    _ranks_with_piece(parameter),
                )

    def ids_of_whole_norms(self) -> set[int]:
        """The ids of the weights of norms that all ranks of tensor parallelism hold."""
        norms = [
            one for root in self.roots for one in root.modules() if type(one).__name__.endswith(_WHOLE_NORMS)
        ]
        return {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}


def _ranks_with_piece(tensor: Any) -> tuple[int, ...]:
    """Return the ranks that have the same piece of a DTensor as this rank."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    place = mesh and mesh.get_coordinate()
    if not place:
        return ()
    at = tuple(
        slice(None) if how.is_replicate() else one for how, one in zip(tensor.placements, place, strict=True)
    )
    with PlainTensors():
        return tuple(sorted(mesh.mesh[at].reshape(-1).tolist()))


def user_line() -> tuple[str, CollectiveCall]:
    """The user's line from which this thread came here, and how."""
    call = CollectiveCall("")
    call.locate()
    return call.short_place, call


def digest_tensor(tensor: Tensor) -> int:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values = tensor.detach().reshape(-1)
        if values.numel() > MOST_NUMBERS:
            values = values[:: values.numel() // MOST_NUMBERS]
        return zlib.crc32(values.contiguous().view(torch.uint8).numpy().tobytes())


def fingerprint(tensor: Any, place: str) -> Fingerprint | None:
    """The print of ``tensor`` that is kept; None if it has no numbers to add up."""
    local = getattr(tensor, "_local_tensor", tensor)
    if type(local) is not Tensor and not isinstance(local, nn.Parameter):
        return None  # it wraps others, and may wait for them
    with (
        PlainTensors(),
        suppress(RuntimeError, TypeError),
    ):  # of other layouts, on no device, within a transform
        values = local.detach().double().reshape(-1)
        weighed = values.dot(torch.arange(values.numel(), dtype=values.dtype).add_(1).sin_())
        eps = torch.finfo(local.dtype).eps if local.is_floating_point() else 0.0
        partial = any(one.is_partial() for one in getattr(tensor, "placements", ()))
        sums = (float(one) for one in (values.sum(), values.dot(values), weighed))
        shapes = tuple(tensor.shape), tuple(local.shape)
        return Fingerprint(place, *shapes, partial, eps, local.numel(), *sums)
    return None
