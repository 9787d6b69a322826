"""The records that are kept of each rank while a script is observed; what they mean is judged later."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary


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
    weights    digests of parameters and buffers after the step, by name.
    """

    losses: list[Loss]
    passes: int
    reduced: list[int]
    weights: dict[str, int]


@dataclass
class RankRecord:
    """Everything that was observed of one rank."""

    loaders: list[Loader] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    losing: bool = False
    passes: int = 0
    reduced: list[int] = field(default_factory=list)
    # Digests before the first step.
    began: dict[str, int] = field(default_factory=dict)
    # The replicated models; whether gradients are reduced without one; whether losses are scaled for float16.
    models: list[Any] = field(default_factory=list)
    by_hand: bool = False
    scaled: bool = False
    optimizers: list[Any] = field(default_factory=list)
    # Modules given to fully_shard, and names of the parameters that it replaced, by id, kept alive so that ids stay.
    sharded: list[Any] = field(default_factory=list)
    before: dict[int, tuple[str, Any]] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    # Of BatchNorm in training: the fewest values of a channel, with the rows; the first layer's running mean.
    norms: list[tuple[int, int]] = field(default_factory=list)
    running: Any = None
    unused: list[str] = field(default_factory=list)
    # By the loaders themselves: of one that is gone the next may have the id.
    _records: WeakKeyDictionary[Any, Loader] = field(default_factory=WeakKeyDictionary)

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
