"""Read from a trace when each rank computed, waited and met others, and in which groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.base.language import say, series
from labkit.trace.events import PAIRS, Event, Meeting
from labkit.trace.trace import Trace

from .captions import caption

# After a deadlock the picture continues for this share of the run.
_STUCK = 0.25


@dataclass(frozen=True)
class Span:
    """A time span on a rank's clock, in seconds; ``of`` is the collective that the rank waits for."""

    start: float
    stop: float
    of: Event | None = None

    @property
    def seconds(self) -> float:
        return self.stop - self.start


@dataclass(frozen=True)
class RankTimes:
    """A rank's spans of computing and waiting, and its collectives from the time when all ranks had come.

    stuck   the collective in which the rank waits at the end, in vain.
    """

    rank: int
    device: str
    computing: tuple[Span, ...]
    waiting: tuple[Span, ...]
    parts: tuple[tuple[Event, Span], ...]
    stuck: Event | None = None

    @property
    def waited_seconds(self) -> float:
        return sum(span.seconds for span in self.waiting)


def rank_times(trace: Trace) -> list[RankTimes]:
    """Return the times of all ranks, in order."""
    first, last = first_and_last(trace)
    met = {id(part): meeting.last_arrival for meeting in trace.meetings() for part in meeting.parts}
    found = []
    for rank in trace.ranks:
        own = sorted((e for e in trace if e.rank == rank), key=lambda event: event.start)
        samples = [sample for sample in trace.samples if sample.rank == rank]
        parts = [(e, _meeting_span(e, met[id(e)])) for e in own if e.phase == "collective"]
        ends = [span.stop for _, span in parts] + [e.stop for e in own if e.phase != "collective"]
        end = max(ends + [sample.at for sample in samples], default=first)
        waiting = [Span(span.start - e.waited, span.start, e) for e, span in parts if e.waited > 0]
        # A rank also stands still during a collective, unless the call was asynchronous and nobody made it wait.
        blocking = [(event, span) for event, span in parts if event.waited > 0 or not event.async_op]
        still = [Span(span.start - event.waited, span.stop) for event, span in blocking]
        device = next((e.device for e in own), samples[0].device if samples else "cpu")
        computing = tuple(_gaps(still, first, end))
        stuck = next((event for event in own if event.phase == "stuck"), None)
        if stuck is not None:
            waiting.append(Span(max([stuck.start, *(span.stop for span in computing)]), last, stuck))
        found.append(RankTimes(rank, device, computing, tuple(waiting), tuple(parts), stuck))
    return found


def _meeting_span(part: Event, at: float) -> Span:
    """Return the span of a rank's part in a collective whose members had all come ``at``."""
    if part.name == PAIRS[0] and part.start + part.waited < at:
        return Span(part.start, part.start)  # a small message leaves before the receiver comes
    return Span(at, max(part.stop, at))


def _gaps(still: Iterable[Span], first: float, end: float) -> Iterable[Span]:
    """Yield the spans from ``first`` to ``end`` outside of ``still``."""
    at = first
    for span in sorted(still, key=lambda span: span.start):
        if span.start > at:
            yield Span(at, span.start)
        at = max(at, span.stop)
    if end > at:
        yield Span(at, end)


def first_and_last(trace: Trace) -> tuple[float, float]:
    """Return the times when the first rank began and the last rank ended."""
    own = [event for event in trace if event.rank is not None]
    first = min([event.start for event in own] + [sample.at for sample in trace.samples], default=0.0)
    last = max([event.stop for event in own] + [sample.at for sample in trace.samples], default=0.0)
    if any(event.phase == "stuck" for event in own):
        last += (last - first) * _STUCK  # room to show stuck ranks
    return first, max(last, first + 1e-6)


def members(part: Event) -> tuple[int, ...]:
    """Return the ranks of a collective's group; () for messages of a pair."""
    return () if part.name in PAIRS else part.ranks


def families_of(meetings: Iterable[Meeting]) -> list[list[tuple[int, ...]]]:
    """Return families of disjoint groups of equal size, such as a mesh's groups along a dimension.

    The largest groups come first; pairs of ranks, (), come last.
    """
    groups = dict.fromkeys(members(meeting.parts[0]) for meeting in meetings)
    families: list[list[tuple[int, ...]]] = []
    for group in sorted(groups, key=lambda ranks: (-len(ranks), ranks)):
        for family in families:
            if all(len(group) == len(other) and not set(group) & set(other) for other in family):
                family.append(group)
                break
        else:
            families.append([group])
    return families


def family_name(family: list[tuple[int, ...]], everyone: int) -> str:
    first, count = family[0], len(family)
    if not first:
        return say(en="two ranks", zh="两个 rank")
    if len(first) == everyone:
        return say(en=f"all {everyone} ranks", zh=f"全部 {everyone} 个 rank")
    if count == 1:
        return say(en=f"ranks {abbreviate_ranks(first)}", zh=f"rank {abbreviate_ranks(first)}")
    return caption("groups", count=count, size=len(first), ranks=abbreviate_ranks(first))


def purpose(family: list[tuple[int, ...]], meetings: Iterable[Meeting]) -> str:
    """Return the common first part of the groups' names, as a mesh's groups have: ``" (mesh_tp)"``."""
    names = {m.parts[0].group for m in meetings if members(m.parts[0]) in family}
    words = {name.rpartition(" ")[0] for name in names}
    return say(en=f" ({word})", zh=f"（{word}）") if len(words) == 1 and (word := words.pop()) else ""


def abbreviate_ranks(ranks: Sequence[int]) -> str:
    """``0–3``, ``0, 2``, ``0, 4, 8, …``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}–{ranks[-1]}"
    return series(ranks[:3]) + (" …" if len(ranks) > 3 else "")
