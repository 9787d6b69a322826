"""Records of what each rank does in a check-up; the findings are made from them afterwards."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from labkit.base.tree import tensors_in

from ..calls.call import CollectiveCall
from ..group.slot import PlainTensors

# The first steps, which are compared with one GPU; and the most numbers of a tensor that go into a digest or a batch.
STEPS = 2
MOST_NUMBERS = 2**20
# Norms whose weights every tensor-parallel rank holds, and uses for its part of the sequence.
_WHOLE_NORMS = ("LayerNorm", "RMSNorm")


@dataclass
class EpochRecord:
    """A rank's pass over a loader.

    rows    the rows read, in order; ``whole`` is True once the loader has none left.
    steps   the number of optimizer steps in this pass.
    """

    rows: list[Hashable] = field(default_factory=list)
    steps: int = 0
    whole: bool = False


@dataclass
class LoaderRecord:
    """A rank's loader.

    size       the number of rows of the data set; None without a length.
    sampler    the name of the sampler's class.
    place      the line that made the loader.
    share      (number of parts, this rank's part) of a sampler that cuts the rows; None for others.
    by_epoch   whether the sampler shuffles by the number given to ``set_epoch``.
    batches    the batches of the steps that are compared with one GPU.
    given      how many of the ranks' batches one GPU has got.
    """

    size: int | None
    sampler: str
    by_epoch: bool
    place: str = ""
    share: tuple[int, int] | None = None
    epochs: list[EpochRecord] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    given: int = 0


@dataclass
class LossRecord:
    """A call of a loss over ``count`` elements; each has ``weight`` in the gradient (None before backward)."""

    count: float
    weight: float | None = None


@dataclass
class StepRecord:
    """A rank's optimizer step.

    losses     the losses of the backward passes since the previous step.
    reduced    the number of gradient collectives in each of these passes.
    place      the line of the last backward; ``line`` is the line of the optimizer's step.
    """

    losses: list[LossRecord] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)
    place: str = ""
    line: str = ""


@dataclass
class WatchedTensor:
    """A rank's parameter or buffer, which other ranks may have to keep equal.

    local      this rank's piece; ``among`` lists the ranks with the same piece, as declared by DDP or a DTensor.
    constant   whether all numbers were equal at first, as zeros and ones are.
    values     step -> digest of the values when the next step begins; step 0 is before the first.
    latest     the digest right after the latest step, and at the end of the run.
    moved      whether the values changed between steps while the rank communicated, as in averaging.
    """

    tensor: Any
    local: Tensor
    among: tuple[int, ...]
    constant: bool
    values: dict[int, int] = field(default_factory=dict)
    latest: int = 0
    moved: bool = False


class HandReduction(NamedTuple):
    """The script's own reduction of a gradient: ranks, line, and whether it came after the optimizer's step."""

    ranks: tuple[int, ...]
    place: str
    late: bool


class RandomDraw(NamedTuple):
    """Random numbers drawn in training: the step, the line, the function, and a digest of the generator.

    shape     of the drawn tensor; () for numbers that fill or change an existing tensor.
    backward  whether a backward pass drew them.
    """

    step: int
    place: str
    function: str
    state: int
    shape: tuple[int, ...]
    backward: bool


class UnwaitedCall(NamedTuple):
    """A collective without a ``wait()`` so far, with the tensors and their versions.

    used      pointers of the storages that the call reads or writes; ``written`` are those it writes.
    """

    call: CollectiveCall
    tensors: list[tuple[Tensor, int]]
    used: set[int]
    written: set[int]


class Fingerprint(NamedTuple):
    """Numbers of a tensor to compare with one GPU; sums and sums of squares of pieces add up to the whole's.

    shape     the shape of the whole of a DTensor; ``local`` is the shape of the rank's piece.
    partial   whether the tensor is a DTensor whose pieces are still to be added up.
    eps       the relative rounding of the dtype.
    weighed   the sum with a different weight for each place.
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
    """Everything observed of one rank."""

    loaders: list[LoaderRecord] = field(default_factory=list)
    # The finished steps, the current step, and whether a loss function is running.
    steps: list[StepRecord] = field(default_factory=list)
    step: StepRecord = field(default_factory=StepRecord)
    losing: bool = False
    # DDP models, ids of the parameters they reduce, gradients reduced by hand (by the parameter's id), and whether
    # losses are scaled for float16.
    models: list[Any] = field(default_factory=list)
    wrapped: set[int] = field(default_factory=set)
    by_hand: dict[int, HandReduction] = field(default_factory=dict)
    scaled: bool = False
    # Ranks that reduce gradients with this rank. Groups with collectives in forward or backward, with an all-to-all
    # there, with an all-gather or reduction by the script itself there, and with calls between steps (and how many
    # calls since the latest step).
    replicas: set[int] = field(default_factory=set)
    peers: set[tuple[int, ...]] = field(default_factory=set)
    exchanges: set[tuple[int, ...]] = field(default_factory=set)
    cut: set[tuple[int, ...]] = field(default_factory=set)
    calls: set[tuple[int, ...]] = field(default_factory=set)
    between: int = 0
    # Tensors to compare with other ranks, by name.
    watched: dict[str, WatchedTensor] = field(default_factory=dict)
    # The line of the latest backward under ``no_sync``, and of one that reduced nevertheless. The second reduction of a
    # gradient: line, number of ranks, gradient, norm before; and the factor by which it scaled the gradient.
    unsyncing: str = ""
    unsynced: str = ""
    again: tuple[str, int, Tensor, float] | None = None
    times: float = 0.0
    optimizers: list[Any] = field(default_factory=list)
    stepping: Any = None
    # Modules given to fully_shard, and the parameters it replaced, by id (kept alive, so that no other gets the id).
    sharded: list[Any] = field(default_factory=list)
    before: dict[int, tuple[str, Any]] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    # BatchNorm in training: values per channel and rows of each call; the first layer's running mean.
    norms: list[tuple[int, int]] = field(default_factory=list)
    running: Any = None
    unused: list[str] = field(default_factory=list)
    # Each with its line: written files (with the number of collectives of all ranks so far), GPUs that checkpoints were
    # loaded to, random draws (and whether any was in the model), norms of clipped gradients.
    met: int = 0
    saved: list[tuple[Any, str]] = field(default_factory=list)
    loaded: list[tuple[Any, str]] = field(default_factory=list)
    draws: list[tuple[Any, str]] = field(default_factory=list)
    drew: bool = False
    clips: list[tuple[str, float]] = field(default_factory=list)
    # Whether FSDP1 has cut the model.
    flat: bool = False
    # Pending calls, and early uses of their tensors: line, whether the use changed the tensor, call.
    pending: list[UnwaitedCall] = field(default_factory=list)
    early: list[tuple[str, bool, CollectiveCall]] = field(default_factory=list)
    # Modules that the script calls, names of all modules and parameters in them, how many module calls are running, and
    # the name of the module that raised an error.
    roots: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    depth: int = 0
    raised: str = ""
    # Inputs of these modules, by step.
    inputs: dict[int, list[Any]] = field(default_factory=dict)
    # Fingerprints by step, kind ("weight", "input", "output", "loss", "gradient"), name and number; and the optimizer's
    # settings in each step.
    seen: dict[tuple[int, str, str, int], Fingerprint] = field(default_factory=dict)
    counts: dict[tuple[int, str, str], int] = field(default_factory=dict)
    settings: list[list[dict[str, Any]]] = field(default_factory=list)
    # Keyed weakly by the loader: after its end another loader may get the same id.
    _records: WeakKeyDictionary[Any, LoaderRecord] = field(default_factory=WeakKeyDictionary)

    def first_call_line(self, parameter: str) -> str:
        """Return the line that first called the module of ``parameter``."""
        module = parameter.rpartition(".")[0]
        return next((seen.place for key, seen in self.seen.items() if key[1:3] == ("output", module)), "")

    def trains(self) -> bool:
        """Whether random draws now belong to a step, not to weights or data that all ranks need equal."""
        begun = self.steps or self.step.reduced or self.depth
        return bool(self.optimizers and begun) and torch.is_grad_enabled()

    def loader(self, loader: Any) -> LoaderRecord:
        """Return the record of a DataLoader; make it at the first use."""
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

    def optimizer_parameters(self) -> list[Any]:
        """Return the parameters of all optimizers."""
        return [p for one in self.optimizers for group in one.param_groups for p in group["params"]]

    def without_gradient(self) -> list[str]:
        """Return the parameters of DDP models without a gradient, if other parameters have gradients."""
        found = []
        for model in self.models:
            parameters = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
            names = [name for name, parameter in parameters if parameter.grad is None]
            found += names if len(names) < len(parameters) else []
        return found

    def keep_fingerprints(self, what: str, name: str, value: Any) -> None:
        """Keep the fingerprints of the tensors in ``value``, in the steps that are compared with one GPU."""
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
        """Digest the tensors that ranks may have to keep equal, when step ``at`` is done and the next begins."""
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
        """Digest the watched tensors right after step ``at``, or at the end."""
        for watched in self.watched.values():
            watched.latest = digest_tensor(watched.local)
            if at is not None:
                watched.values[at] = watched.latest

    def _shared_tensors(self) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        """Yield names, tensors, and the ranks declared to hold the same values.

        First parameters and buffers of DDP models, except BatchNorm's statistics; then parameters of optimizers and of
        called modules (an optimizer may hold only the rank's share).
        """
        done = set[int]()
        for number, model in enumerate(self.models):
            prefix = f"{number}." if len(self.models) > 1 else ""
            ranks = tuple(sorted(model.process_group.transport().ranks))
            left_out = set(model.parameters_to_ignore)
            for name, module in model.module.named_modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    left_out |= {key for key, _ in module.named_buffers(name, recurse=False)}
            for name, tensor in (*model.module.named_parameters(), *model.module.named_buffers()):
                done.add(id(tensor))
                if name not in left_out:
                    yield prefix + name, tensor, ranks
        modules = () if self.flat or self.sharded else self.roots
        called = [parameter for root in modules for parameter in root.parameters() if parameter.requires_grad]
        for at, parameter in enumerate([] if self.flat else [*self.optimizer_parameters(), *called]):
            if id(parameter) not in done:
                done.add(id(parameter))
                name = self.names.get(id(parameter), f"parameter {at}")
                yield name, parameter, _ranks_with_piece(parameter)

    def ids_of_whole_norms(self) -> set[int]:
        """Return the ids of norms' weights, which every tensor-parallel rank holds."""
        modules = [one for root in self.roots for one in root.modules()]
        norms = [one for one in modules if type(one).__name__.endswith(_WHOLE_NORMS)]
        return {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}


def _ranks_with_piece(tensor: Any) -> tuple[int, ...]:
    """Return the ranks with the same piece of a DTensor as this rank."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    place = mesh and mesh.get_coordinate()
    if not place:
        return ()
    pairs = zip(tensor.placements, place, strict=True)
    at = tuple(slice(None) if how.is_replicate() else one for how, one in pairs)
    with PlainTensors():
        return tuple(sorted(mesh.mesh[at].reshape(-1).tolist()))


def readable_name(name: str) -> str:
    """Return a module's or parameter's name without model numbers and wrappers with private names."""
    parts = [part for part in re.sub(r"#\d+", "", name).split(".") if not part.startswith("_")]
    return ".".join(parts).replace("DistributedDataParallel.module", "model")


def user_line() -> tuple[str, CollectiveCall]:
    """Return the user's line that this thread is running, and a call with the frames below the line."""
    call = CollectiveCall("")
    call.locate()
    return call.short_place, call


def digest_tensor(tensor: Tensor) -> int:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values = tensor.detach().reshape(-1)
        if values.numel() > MOST_NUMBERS:
            values = values[:: values.numel() // MOST_NUMBERS]
        return zlib.crc32(values.contiguous().view(torch.uint8).numpy().tobytes())


@lru_cache(1)
def _make_weights(count: int) -> Tensor:
    """Return a different weight for each of ``count`` places."""
    return torch.arange(count, dtype=torch.float64).add_(1).sin_()


def fingerprint(tensor: Any, place: str) -> Fingerprint | None:
    """Return the fingerprint of ``tensor``; None for a tensor without numbers."""
    local = getattr(tensor, "_local_tensor", tensor)
    if type(local) is not Tensor and not isinstance(local, nn.Parameter):
        return None  # a wrapper subclass, whose values may be pending
    # Tensors of other layouts, on no device, or within a transform raise errors.
    with PlainTensors(), suppress(RuntimeError, TypeError):
        values = local.detach().double().reshape(-1)
        count = values.numel()
        weighed = values.dot(_make_weights(max(count, 2**16))[:count])
        eps = torch.finfo(local.dtype).eps if local.is_floating_point() else 0.0
        partial = any(one.is_partial() for one in getattr(tensor, "placements", ()))
        sums = (float(one) for one in (values.sum(), values.dot(values), weighed))
        shapes = tuple(tensor.shape), tuple(local.shape)
        return Fingerprint(place, *shapes, partial, eps, local.numel(), *sums)
    return None
