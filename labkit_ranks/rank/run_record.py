"""The record of a long run: its first events, and totals of all events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.trace import emitting
from labkit.trace.events import Event, First
from labkit.trace.memory import MemorySample
from labkit.trace.trace import Trace

from .clock import TimedRank


@dataclass(frozen=True)
class RankInfo:
    """A rank in a summary: its number, node, and GPU."""

    rank: int
    node: int
    gpu: int
    capacity: int


@dataclass
class RankTotals:
    """Totals of one rank: collectives, bytes, seconds of waiting, peak memory of the GPU."""

    calls: int = 0
    nbytes: int = 0
    waited: float = 0.0
    peak: int = 0
    dropped_events: int = 0  # events that were only counted

    def count(self, found: Event | MemorySample) -> None:
        if isinstance(found, MemorySample):
            self.peak = max(self.peak, found.peak)
        elif found.phase == "collective":
            self.calls += 1
            self.nbytes += found.nbytes
            self.waited += found.waited


class RunRecord:
    """The first events and memory samples of a run, its ranks, and the totals of each rank."""

    def __init__(self, most: int) -> None:
        self.ranks: list[RankInfo] = []
        self.totals: dict[int, RankTotals] = defaultdict(RankTotals)
        self.trace = Trace(First(most, self._count), samples=First(most, self._count))

    @property
    def dropped_events(self) -> int:
        return sum(total.dropped_events for total in self.totals.values())

    def open(self) -> None:
        """Record the events of this process from now on."""
        self._opened = emitting.begin()
        self._opened.events, self._opened.samples = self.trace.events, self.trace.samples

    def close(self) -> None:
        """Stop recording, unless it was stopped before."""
        emitting.end(self._opened)

    def note_ranks(self, ranks: Iterable[TimedRank]) -> None:
        """Keep the facts about ``ranks``, which have ended."""
        self.ranks = [*filter(None, map(rank_info, ranks))]

    def clear(self) -> None:
        """Forget all events."""
        self.totals.clear()
        self.trace.events.clear()
        self.trace.samples.clear()

    def _count(self, found: Event | MemorySample, kept: bool) -> None:
        if found.rank is not None:
            self.totals[found.rank].count(found)
            self.totals[found.rank].dropped_events += isinstance(found, Event) and not kept


def rank_info(rank: TimedRank) -> RankInfo | None:
    """Describe ``rank``; return None if the node has no GPU for it."""
    if (gpu := rank.gpu) is None:
        return None
    return RankInfo(rank.number, rank.node, gpu.index, gpu.capacity)
