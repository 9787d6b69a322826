"""A trace: the events of a run, in order, with devices, shapes, bytes and seconds. Plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter

from ..base.display import Drawn
from ..base.language import say, series
from ..base.numbers import plural
from ..base.units import duration
from .chrome import chrome_json
from .events import PAIRS, Event, Meeting, devices_of, meetings_of, ranks_of
from .memory import MemorySample, MemoryTimeline


@dataclass(repr=False)
class Trace(Drawn):
    """Events in the order in which they finished. In a notebook a trace shows itself as a timeline.

    samples   of ranks: how much memory they had in use.
    """

    events: list[Event] = field(default_factory=list)
    origin: float = field(default_factory=perf_counter)
    samples: list[MemorySample] = field(default_factory=list)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that occur, the CPU first, then GPUs by number."""
        return devices_of(self.events)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that occur; () without ranks."""
        return ranks_of([*self.events, *self.samples])

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups and members, in the order of the first collectives."""
        return {e.group: e.ranks for e in self.events if e.phase == "collective" and e.name not in PAIRS}

    @property
    def memory(self) -> MemoryTimeline:
        """The memory of each rank's GPU over time."""
        return MemoryTimeline(tuple(self.samples))

    def only(
        self,
        *,
        phase: str | None = None,
        direction: str | None = None,
        device: str | None = None,
        call: int | None = None,
        replica: int | None = None,
        rank: int | None = None,
        group: str | None = None,
        name: str | None = None,
    ) -> Trace:
        """Return the events that match every given value, as a trace of the same clock."""
        asked = {
            "phase": phase, "direction": direction, "device": device, "call": call, "replica": replica,
            "rank": rank, "group": group, "name": name,
        }  # fmt: skip
        wanted = {key: value for key, value in asked.items() if value is not None}
        kept = [e for e in self.events if all(getattr(e, key) == value for key, value in wanted.items())]
        samples = [
            s for s in self.samples if rank in (None, s.rank) and device in (None, s.device) and not group
        ]
        return Trace(kept, self.origin, samples)

    def in_window(self, start: float, stop: float) -> Trace:
        """Return the events that overlap ``start`` to ``stop`` (seconds, as in the events), as a trace of the same
        clock.
        """
        kept = [event for event in self.events if event.stop >= start and event.start <= stop]
        return Trace(kept, self.origin, [sample for sample in self.samples if start <= sample.at <= stop])

    between = in_window  # the former name

    def meetings(self) -> tuple[Meeting, ...]:
        """Return the collectives of ranks, by the arrival of their last members."""
        return meetings_of(self.events)

    def waiting_seconds(self) -> dict[tuple[int, int], float]:
        """Return the seconds that ranks waited: {(waiting rank, last rank): seconds}."""
        found: dict[tuple[int, int], float] = {}
        for event in self.events:
            if event.rank is not None and event.last is not None and event.waited:
                pair = event.rank, event.last
                found[pair] = found.get(pair, 0.0) + event.waited
        return found

    waited = waiting_seconds  # the former name

    def __repr__(self) -> str:
        """Return a short table: a line for each phase and kind of collective, in the order of their first events."""
        if not self.events:
            return say(en="Trace: no events", zh="Trace：没有事件")
        first, last = min(e.start for e in self.events), max(e.stop for e in self.events)
        devices, lasted = series(_shorten_names(self.devices)), duration(last - first)
        of = f" of {plural(len(self.ranks), 'rank')}" if self.ranks else ""
        ranks = f"{len(self.ranks)} 个 rank，" if self.ranks else ""
        lines = [
            say(
                en=f"Trace: {plural(len(self), 'event')}{of} on {devices} in {lasted}",
                zh=f"Trace：{ranks}{len(self)} 个事件，在 {devices} 上，历时 {lasted}",
            )
        ]
        groups: dict[tuple[str, str], list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.start):
            met = event.phase == "collective"
            ranks = say(en=f"{len(event.ranks)} ranks", zh=f"{len(event.ranks)} 个 rank")
            key = (ranks, event.name) if met else (event.direction, event.phase)
            groups.setdefault(key, []).append(event)
        waiting = say(en=" waited", zh=" 等待")
        wide = max([14, *(len(what) for _, what in groups)])
        for (way, what), events in groups.items():
            met = events[0].phase == "collective"
            shapes = list(dict.fromkeys(str(list(s)) for e in events for s in e.shapes[:1]))
            listed = ", ".join(shapes[:3]) + (", …" if len(shapes) > 3 else "")
            seconds = sum(e.waited for e in events) if met else _total_coverage(events)
            count = len({e.meeting for e in events}) if met else len(events)
            lines.append(
                f"  {way:<8}  {what:<{wide}}  {count:>5} ×  {sum(e.nbytes for e in events):>14,} B"
                f"  {duration(seconds):>8}{waiting if met else ''}  {listed}".rstrip()
            )
        return "\n".join(lines)

    def calls(self) -> tuple[Call, ...]:
        """Return the data-parallel calls, in the order of their first events, each as a trace of the same clock.

        Calls of several threads, and a call inside a replica of another, are separate. Events outside calls are left
        out.
        """
        groups: dict[int, list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.start):
            if event.call is not None:
                groups.setdefault(event.call, []).append(event)
        return tuple(Call(group, self.origin) for group in groups.values())

    def to_json(self) -> str:
        """Return the events as a JSON array of objects."""
        return json.dumps([asdict(event) for event in self.events], indent=1)

    def to_chrome(self) -> str:
        """Return the events in Chrome's trace format (JSON), which Perfetto and chrome://tracing open.

        Each device is a row; each rank is a process with a row for each group, and arrows connect the members of
        collectives. Times in microseconds since the recording began, or on the ranks' clock.
        """
        return chrome_json(self.events, self.samples)


@dataclass(repr=False)
class Call(Trace):
    """The events of a data-parallel call. In a notebook it shows itself as the flow of the batch, forward and
    backward.
    """

    def __repr__(self) -> str:
        """Return a line without seconds: the same in every run."""
        devices = series(_shorten_names(self.devices))
        return say(
            en=f"Call: {plural(len(self), 'event')} on {devices}",
            zh=f"一次调用：{len(self)} 个事件，在 {devices} 上",
        )


def _shorten_names(devices: tuple[str, ...]) -> list[str]:
    """Return device names; of more than four, the first two and the last."""
    return list(devices) if len(devices) <= 4 else [*devices[:2], "…", devices[-1]]


def _total_coverage(events: list[Event]) -> float:
    """Return the seconds in which at least one of the events ran."""
    seconds, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.start):
        seconds += max(0.0, event.stop - max(end, event.start))
        end = max(end, event.stop)
    return seconds
