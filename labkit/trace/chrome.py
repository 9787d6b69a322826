"""Write events in Chrome's trace format, which Perfetto and chrome://tracing open.

Its tracks are lines of spans, each a thread of a process. Rank r is process r + 1, with a track for each of its devices
and each of its groups. Process 0 has a track for each device with events of no rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .events import Event, devices_of, meetings_of, ranks_of
from .memory import MemorySample

_ARGUMENTS = ("source", "shapes", "outputs", "nbytes", "call", "replica", "parent")
_MET = ("group", "sequence", "ranks", "waited", "last", "async_op", "place", "shapes", "outputs", "nbytes")
# Prefix of the tracks of groups.
_GROUP = "group "

_Track = tuple[int, int]  # process, thread
_Tracks = dict[tuple[int | None, str], _Track]  # by (rank, device or group)


def chrome_json(events: Sequence[Event], samples: Sequence[MemorySample]) -> str:
    """Return the events as JSON, times in microseconds.

    Arrows lead from a group's last member to the others; a rank's memory is a counter.
    """
    tracks = _tracks(events)
    records = []
    for rank in ranks_of([*events, *samples]):
        records.append(_meta("process_name", (rank + 1, 0), f"rank {rank}"))
        records.append(_meta("process_sort_index", (rank + 1, 0), rank))
    records += [_meta("thread_name", track, name) for (_, name), track in tracks.items()]
    records += [_span(event, tracks[event.rank, _track_name(event)]) for event in events]
    records += _arrows(events, tracks)
    for sample in sorted(samples, key=lambda sample: sample.at):
        process = 0 if sample.rank is None else sample.rank + 1
        records.append({
            "name": f"memory of {sample.device}", "ph": "C", "ts": sample.at * 1e6, "pid": process,
            "args": {"bytes": sample.nbytes},
        })  # fmt: skip
    return json.dumps({"traceEvents": records, "displayTimeUnit": "ms"})


def _tracks(events: Sequence[Event]) -> _Tracks:
    found: _Tracks = {}
    used = dict.fromkeys((event.rank, _track_name(event)) for event in events)
    unranked = [event for event in events if event.rank is None]
    for device in devices_of(unranked):
        found[None, device] = 0, len(found)
    count: dict[int, int] = {}
    for rank, where in sorted(used, key=lambda pair: pair[1].startswith(_GROUP)):  # devices first
        if rank is not None:
            found[rank, where] = rank + 1, count.setdefault(rank, 0)
            count[rank] += 1
    return found


def _track_name(event: Event) -> str:
    """Return the name of the event's track: a process group, or a device."""
    return f"{_GROUP}{event.group}" if event.phase == "collective" else event.device


def _meta(what: str, track: _Track, value: str | int) -> dict[str, Any]:
    key = "name" if isinstance(value, str) else "sort_index"
    return {"name": what, "ph": "M", "pid": track[0], "tid": track[1], "args": {key: value}}


def _span(event: Event, track: _Track) -> dict[str, Any]:
    met = event.phase == "collective"
    name = event.name if met else f"{event.phase} {event.name}".rstrip()
    facts = {name: getattr(event, name) for name in (_MET if met else _ARGUMENTS)}
    span = {
        "name": name,
        "cat": event.direction,
        "ph": "X",
        "ts": event.start * 1e6,
        "dur": event.seconds * 1e6,
    }
    return span | {"pid": track[0], "tid": track[1], "args": facts}


def _arrows(events: Sequence[Event], tracks: _Tracks) -> list[dict[str, Any]]:
    """Make arrows from the call of each collective's last member to where the others continued."""
    found: list[dict[str, Any]] = []
    for number, meeting in enumerate(meetings_of(events)):
        source = max(meeting.parts, key=lambda part: (part.rank == part.last, part.start))
        for other in meeting.parts:
            if other is source:
                continue
            arrival = max(other.start, min(meeting.last_arrival, other.stop))
            for part, kind, at in ((source, "s", source.start), (other, "f", arrival)):
                pid, tid = tracks[part.rank, _track_name(part)]
                found.append(
                    {
                        "name": meeting.kind, "cat": "met", "ph": kind, "id": f"{number}.{other.rank}",
                        "ts": at * 1e6, "pid": pid, "tid": tid, **({"bp": "e"} if kind == "f" else {}),
                    }
                )  # fmt: skip
    return found
