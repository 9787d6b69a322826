"""The records that are kept of each rank while a script is observed; what they mean is judged later."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, is_grad_enabled

from ..calls.call import Call


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
    passes     how many backward passes there were.
    reduced    how many collectives of gradients there were in each of them.
    place      the line of the last.
    weights    digests of parameters and buffers after the step, by name.
    """

    losses: list[Loss]
    passes: int
    reduced: list[int]
    place: str
    weights: dict[str, int]


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
    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    losing: bool = False
    passes: int = 0
    reduced: list[int] = field(default_factory=list)
    place: str = ""
    # Digests before the first step.
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
        """Return the line that first called the module of ``parameter``."""
        module = parameter.rpartition(".")[0]
        return next((seen.place for key, seen in self.seen.items() if key[1:3] == ("output", module)), "")

    def trains(self) -> bool:
        """Whether what it draws now is for a step, and not for weights or data that all ranks are to have alike."""
        begun = self.steps or self.passes or self.depth
        return bool(self.optimizers and begun) and is_grad_enabled()

    def loader(self, key: object, make: Callable[[], Loader]) -> Loader:
        """Return the record of the loader ``key``; it is made if the loader is new."""
        found = self._records.get(key)
        if found is None:
            found = self._records[key] = make()
            self.loaders.append(found)
        return found


def without_gradient(models: list[Any]) -> list[str]:
    """Return the parameters of replicated models that have no gradient where others have one."""
    found = []
    for model in models:
        parameters = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        names = [name for name, parameter in parameters if parameter.grad is None]
        found += names if len(names) < len(parameters) else []
    return found
