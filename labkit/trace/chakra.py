"""Events of ranks as Chakra execution traces, one file for each rank, which network simulators read.

The schema is MLCommons' (schema/protobuf/et_def.proto); its few messages are written here as they are on the wire, so
that nothing has to be installed for it. What a rank did between its collectives is a node of computation that took as
long as it did here, on the CPU; scale it, or give it the times of your GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from .events import PAIRS, Event, ranks_of

VERSION = "0.0.4"
# enum NodeType
_COMPUTE, _COLLECTIVE, _PAIRS = 4, 7, {"send": 5, "recv": 6}
# enum CollectiveCommType
_TYPES = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "all_gather_single": 2, "gather": 3, "scatter": 4, "broadcast": 5,
    "all_to_all": 6, "all_to_all_single": 6, "reduce_scatter": 7, "reduce_scatter_single": 7, "barrier": 9,
}  # fmt: skip


def chakra_files(events: Sequence[Event]) -> dict[str, bytes]:
    """The files by name: ``trace.0.et`` for rank 0, and so on; ``comm_group.json`` has the members of the groups."""
    met = [event for event in events if event.phase == "collective" and event.name in (*_TYPES, *PAIRS)]
    # A message names its two ranks, a collective the members of its group.
    groups = {event.group: event.ranks for event in met if event.name not in PAIRS}
    numbers = {group: str(number) for number, group in enumerate(groups, 1)}
    files = {}
    for rank in ranks_of(met):
        nodes = _nodes([event for event in met if event.rank == rank], numbers)
        parts = [_text(1, VERSION), *nodes]
        files[f"trace.{rank}.et"] = b"".join(_varint(len(part)) + part for part in parts)
    members = {number: list(groups[group]) for group, number in numbers.items()}
    files["comm_group.json"] = json.dumps(members, indent=1).encode()
    return files


def _nodes(events: Sequence[Event], groups: dict[str, str]) -> Iterator[bytes]:
    """The nodes of one rank: its calls, and what it computed between them.

    A call that the rank did not wait for has computation beside it; what comes after its ``wait()`` depends on it.
    """
    times = [(event.start, 1, at) for at, event in enumerate(events)]
    times += [(event.stop, 0, at) for at, event in enumerate(events) if event.async_op]
    made: dict[int, int] = {}
    after: list[int] = []
    count, now = 0, 0.0
    for time, begins, at in sorted(times):
        event = events[at]
        computed = time - now - (0.0 if begins else event.waited)
        if computed > 0:
            yield _node(count, "compute", _COMPUTE, after, now, computed)
            count, after = count + 1, [count]
        if not begins:
            after = [*after, made[at]]
        else:
            kind, facts = _PAIRS.get(event.name, _COLLECTIVE), _attributes(event, groups)
            yield _node(count, event.name, kind, after, event.start, event.seconds, *facts)
            made[at] = count
            if not event.async_op:
                after = [count]
            count += 1
        now = max(now, time if event.async_op else event.stop)


def _attributes(event: Event, groups: dict[str, str]) -> Iterator[bytes]:
    yield _text(1, "comm_size") + _number(9, event.nbytes)
    if event.name in PAIRS:
        source, destination = (*event.ranks, 0, 0)[:2]
        yield _text(1, "comm_src") + _number(7, source)
        yield _text(1, "comm_dst") + _number(7, destination)
        yield _text(1, "comm_tag") + _number(7, event.sequence or 0)
    else:
        yield _text(1, "comm_type") + _number(9, _TYPES[event.name])
        yield _text(1, "pg_name") + _text(29, groups[event.group])


def _node(
    number: int, name: str, kind: int, after: Sequence[int], start: float, seconds: float, *attributes: bytes
) -> bytes:
    node = _number(1, number) + _text(2, name) + _number(3, kind)
    if after:
        node += _bytes(5, b"".join(map(_varint, after)))
    node += _number(6, round(start * 1e6)) + _number(7, round(seconds * 1e6))
    on_gpu = _text(1, "is_cpu_op") + _number(27, 0)
    return node + b"".join(_bytes(10, attribute) for attribute in (on_gpu, *attributes))


# Protocol Buffers on the wire.


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
