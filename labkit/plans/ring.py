"""Plan the messages by which ranks sum their gradients, around a ring or through rank 0: integers alone.

Each rank's gradient is cut into as many chunks as there are ranks. In a *ring*, every rank sends one chunk to the next
rank in every step. In the first ``ranks - 1`` steps (reduce-scatter) the receiver adds it to its own, until each rank
has one finished chunk; in as many more (all-gather) the finished chunks go round and replace the others.

In a *star*, the other ranks send all their chunks to rank 0, one rank a step; then rank 0 sends the sums back, to one
rank a step. A star takes the same number of steps, but each is as long as ``ranks`` chunks over one link.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..base.display import Drawn
from ..base.language import say
from ..base.numbers import MOST_GPUS, integer, plural


@dataclass(frozen=True)
class Send:
    """A message: ``target`` adds the ``chunk`` of ``source`` to its own (``adds``) or replaces its own."""

    source: int
    target: int
    chunk: int
    adds: bool


@dataclass(frozen=True)
class AllReduce(Drawn):
    """An all-reduce over ``ranks`` ranks. ``step``: the step to draw, None for all."""

    ranks: int
    step: int | None = None

    @property
    def steps(self) -> int:
        """The number of steps: 2 × (ranks − 1)."""
        return 2 * (self.ranks - 1)

    def sends(self, step: int) -> tuple[Send, ...]:
        """Return the messages of ``step`` (1 to :attr:`steps`)."""
        raise NotImplementedError

    def summed_ranks(self, step: int, rank: int, chunk: int) -> range:
        """Return the ranks whose gradients are summed in a chunk of ``rank`` after ``step`` (0 to :attr:`steps`).

        The range may go past the last rank: a number ``n`` means rank ``n % ranks``.
        """
        raise NotImplementedError

    def time(self, step: int) -> Fraction:
        """Return the end of ``step``; 1 is the time of a whole gradient over one link."""
        raise NotImplementedError

    @property
    def carried(self) -> Fraction:
        """The gradients that the busiest link carries in one direction, as a number of whole gradients."""
        raise NotImplementedError

    def chunk_sums(self, step: int) -> tuple[tuple[frozenset[int], ...], ...]:
        """Return, for each rank and each chunk after ``step`` (0 to :attr:`steps`), the ranks summed in the chunk."""
        step = integer("step", step, 0, self.steps)
        ranks = range(self.ranks)
        return tuple(
            tuple(frozenset(n % self.ranks for n in self.summed_ranks(step, rank, chunk)) for chunk in ranks)
            for rank in ranks
        )


@dataclass(frozen=True)
class Ring(AllReduce):
    """An all-reduce around a ring."""

    @property
    def chunks_sent(self) -> int:
        """The chunks, each 1/ranks of the gradient, that a rank sends (and receives) in all."""
        return self.steps

    def sends(self, step: int) -> tuple[Send, ...]:
        step = integer("step", step, 1, self.steps)
        adds = step < self.ranks
        # A rank forwards the chunk of the step before: a partial sum, then a finished chunk.
        return tuple(
            Send(rank, (rank + 1) % self.ranks, (rank + 1 - step) % self.ranks, adds)
            for rank in range(self.ranks)
        )

    def summed_ranks(self, step: int, rank: int, chunk: int) -> range:
        # In step d a rank receives a chunk that d + 1 ranks, itself the last, have added to. A finished chunk arrives
        # ``ranks - 1`` steps later, plus the distance from the rank that finished the chunk.
        distance = (rank - chunk) % self.ranks
        if step >= self.ranks - 1 + (distance + 1) % self.ranks:
            return range(self.ranks)
        return range(chunk, chunk + distance + 1) if distance <= step else range(rank, rank + 1)

    def time(self, step: int) -> Fraction:
        return Fraction(step, self.ranks)

    @property
    def carried(self) -> Fraction:
        return Fraction(self.chunks_sent, self.ranks)

    def __repr__(self) -> str:
        return say(
            en=f"ring all-reduce over {plural(self.ranks, 'rank')}: {self.steps} steps, "
            f"each rank sends {self.chunks_sent}/{self.ranks} of its gradient",
            zh=f"{self.ranks} 个 rank 的环形全归约：{self.steps} 步，"
            f"每个 rank 发出自己梯度的 {self.chunks_sent}/{self.ranks}",
        )


@dataclass(frozen=True)
class Star(AllReduce):
    """An all-reduce through rank 0."""

    def sends(self, step: int) -> tuple[Send, ...]:
        step = integer("step", step, 1, self.steps)
        adds = step < self.ranks
        source, target = (step, 0) if adds else (0, step - self.ranks + 1)
        return tuple(Send(source, target, chunk, adds) for chunk in range(self.ranks))

    def summed_ranks(self, step: int, rank: int, chunk: int) -> range:
        if rank == 0:
            return range(min(step + 1, self.ranks))
        return range(self.ranks) if step >= self.ranks - 1 + rank else range(rank, rank + 1)

    def time(self, step: int) -> Fraction:
        return Fraction(step)

    @property
    def carried(self) -> Fraction:
        return Fraction(self.ranks - 1)

    def __repr__(self) -> str:
        return say(
            en=f"all-reduce through rank 0 over {plural(self.ranks, 'rank')}: {self.steps} steps, "
            f"rank 0 receives and sends {plural(self.ranks - 1, 'gradient')}",
            zh=f"{self.ranks} 个 rank 经 rank 0 的全归约：{self.steps} 步，rank 0 收、发各 {self.ranks - 1} 份梯度",
        )


def ring_all_reduce(ranks: int, step: int | None = None) -> Ring:
    """Plan the sum of the gradients of ``ranks`` ranks (1 to 1,024) around a ring.

    step   the step to draw, 0 (nothing sent yet) to 2 × (ranks − 1); the beginning, middle and end if not given.

    >>> ring_all_reduce(4)
    ring all-reduce over 4 ranks: 6 steps, each rank sends 6/4 of its gradient

    Raises TypeError if an argument is no whole number, ValueError if it is out of range.
    """
    ring = Ring(integer("ranks", ranks, 1, MOST_GPUS))
    return ring if step is None else Ring(ring.ranks, integer("step", step, 0, ring.steps))


def star_all_reduce(ranks: int, step: int | None = None) -> Star:
    """Plan the sum of the gradients of ``ranks`` ranks (1 to 1,024) through rank 0; as :func:`ring_all_reduce`.

    >>> star_all_reduce(4)
    all-reduce through rank 0 over 4 ranks: 6 steps, rank 0 receives and sends 3 gradients

    Raises TypeError if an argument is no whole number, ValueError if it is out of range.
    """
    star = Star(integer("ranks", ranks, 1, MOST_GPUS))
    return star if step is None else Star(star.ranks, integer("step", step, 0, star.steps))
