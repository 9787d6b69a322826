"""Events in Chrome's trace format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .events import Event, Trace


_ARGUMENTS = ("source", "shapes", "outputs", "nbytes", "call", "replica", "parent")
_MET = ("group", "sequence", "ranks", "waited", "last", "async_op", "place", "shapes", "outputs", "nbytes")
# The process of what no rank did; ranks are processes of their own number after it.
_NOBODY = 0

# What the rows of groups begin with.
_GROUP = "group "

_Row = tuple[int, int]


def chrome_json(trace: Trace) -> str:
    """The trace as JSON, times in microseconds.

    What no rank did has a row for each device. A rank is a process, with a row for each of its devices and each group
    that it meets; arrows go from the member that came last to the others; its memory is a counter.
    """
    rows: dict[tuple[int | None, str], _Row] = {}
    told: list[dict[str, Any]] = []
    used = dict.fromkeys((event.rank, _where(event)) for event in trace)
    sources = {event.source for event in trace if event.rank is None}
    for device in trace.devices:
        if (None, device) in used or device in sources:
            rows[None, device] = _NOBODY, len(rows)
    for rank in trace.ranks:
        told.append(_meta("process_name", (rank + 1, 0), f"rank {rank}"))
        told.append(_meta("process_sort_index", (rank + 1, 0), rank))
    count: dict[int, int] = {}
    for who, where in sorted(used, key=lambda row: row[1].startswith(_GROUP)):  # devices first
        if who is not None:
            rows[who, where] = who + 1, count.setdefault(who, 0)
            count[who] += 1
    told += [_meta("thread_name", row, name) for (_, name), row in rows.items()]
    told += [_span(event, rows[event.rank, _where(event)]) for event in trace]
    told += _arrows(trace, rows)
    told += [
        {
            "name": f"memory of {sample.device}", "ph": "C", "ts": sample.at * 1e6, "pid": sample.rank + 1,
            "args": {"bytes": sample.nbytes},
        }
        for sample in sorted(trace.samples, key=lambda sample: sample.at)
    ]  # fmt: skip
    return json.dumps({"traceEvents": told, "displayTimeUnit": "ms"})


def _group(event: Event) -> str:
    """What the row of a collective is called."""
    return f"{_GROUP}{event.group}"


def _where(event: Event) -> str:
    return _group(event) if event.phase == "collective" else event.device


def _meta(what: str, row: _Row, value: str | int) -> dict[str, Any]:
    key = "name" if isinstance(value, str) else "sort_index"
    return {"name": what, "ph": "M", "pid": row[0], "tid": row[1], "args": {key: value}}


def _span(event: Event, row: _Row) -> dict[str, Any]:
    met = event.phase == "collective"
    return {
        "name": event.name if met else f"{event.phase} {event.name}".rstrip(),
        "cat": event.direction,
        "ph": "X",
        "ts": event.start * 1e6,
        "dur": event.seconds * 1e6,
        "pid": row[0],
        "tid": row[1],
        "args": {name: getattr(event, name) for name in (_MET if met else _ARGUMENTS)},
    }


def _arrows(trace: Trace, rows: dict[tuple[int | None, str], _Row]) -> list[dict[str, Any]]:
    """Of each collective, arrows from the call of the member that came last to where the others went on."""
    found: list[dict[str, Any]] = []
    for number, meeting in enumerate(trace.meetings()):
        source = max(meeting.parts, key=lambda part: (part.rank == part.last, part.start))
        for other in meeting.parts:
            if other is source:
                continue
            arrival = max(other.start, min(meeting.at, other.stop))
            for part, kind, at in ((source, "s", source.start), (other, "f", arrival)):
                pid, tid = rows[part.rank, _where(part)]
                found.append(
                    {
                        "name": meeting.kind, "cat": "met", "ph": kind, "id": f"{number}.{other.rank}",
                        "ts": at * 1e6, "pid": pid, "tid": tid, **({"bp": "e"} if kind == "f" else {}),
                    }
                )  # fmt: skip
    return found
