"""Events in Chrome's trace format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .events import Event


_ARGUMENTS = ("source", "shapes", "outputs", "nbytes", "call", "replica", "parent")


def chrome_json(events: Iterable[Event], devices: Sequence[str]) -> str:
    """The events as JSON: a row for each of ``devices``, times in microseconds since the recording began."""
    rows = {device: row for row, device in enumerate(devices)}
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": device}}
        for device, row in rows.items()
    ]
    spans = [
        {
            "name": f"{event.phase} {event.name}".rstrip(),
            "cat": event.direction,
            "ph": "X",
            "ts": event.start * 1e6,
            "dur": event.seconds * 1e6,
            "pid": 0,
            "tid": rows[event.device],
            "args": {name: getattr(event, name) for name in _ARGUMENTS},
        }
        for event in events
    ]
    return json.dumps({"traceEvents": names + spans, "displayTimeUnit": "ms"})
