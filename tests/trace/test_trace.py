import json
from dataclasses import replace
from time import perf_counter

from labkit.trace import emitting as trace
from labkit.trace.events import Event
from labkit.trace.memory import MemorySample
from labkit.trace.trace import Trace
from labkit_ranks.calls.wait_graph import Wait, WaitForGraph


def test_every_open_recording_gets_every_event():
    outer, inner = trace.begin(), trace.begin()
    trace.emit("copy", "cuda:1", started=perf_counter(), source="cpu", nbytes=8)
    trace.end(inner)
    trace.emit("copy", "cuda:2", started=perf_counter())
    trace.end(outer)
    assert [e.device for e in inner] == ["cuda:1"]
    assert [e.device for e in outer] == ["cuda:1", "cuda:2"]
    assert trace.recording is None


def test_devices_are_in_order_and_events_can_be_picked():
    found = Trace([Event("copy", "cuda:10", source="cpu"), Event("gather", "cuda:2", direction="backward")])
    assert found.devices == ("cpu", "cuda:2", "cuda:10")
    assert len(found.only(direction="backward")) == 1
    assert json.loads(found.to_json())[0]["source"] == "cpu"


def test_events_can_be_picked_by_call_and_replica():
    found = Trace([Event("gather", "cuda:0", call=c, replica=r) for c in range(2) for r in range(3)])
    assert [(e.call, e.replica) for e in found.only(call=0)] == [(0, 0), (0, 1), (0, 2)]
    assert [(e.call, e.replica) for e in found.only(call=1, replica=0)] == [(1, 0)]
    facts = json.loads(found.to_json())[-1]
    assert (facts["call"], facts["replica"], facts["parent"]) == (1, 2, None)


def test_the_chrome_format_has_a_row_per_device_and_microseconds():
    events = [
        Event("scatter", "cuda:1", source="cpu", shapes=((2, 5),), nbytes=40, start=0.5, seconds=0.25, call=3,
              replica=1, parent=2),
        Event("parallel_apply", "cuda:1", direction="backward", start=1.0, seconds=0.5, name="Linear"),
    ]  # fmt: skip
    found = json.loads(Trace(events).to_chrome())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M"}
    assert rows == {0: "cpu", 1: "cuda:1"}
    spans = [e for e in found if e["ph"] == "X"]
    assert [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in spans] == [
        ("scatter", "forward", 500_000, 250_000, 1),
        ("parallel_apply Linear", "backward", 1_000_000, 500_000, 1),
    ]
    assert spans[0]["args"] == {
        "source": "cpu", "shapes": [[2, 5]], "outputs": [], "nbytes": 40, "call": 3, "replica": 1, "parent": 2
    }  # fmt: skip


def test_the_calls_of_a_trace_are_told_apart_by_their_number_alone():
    found = Trace([
        Event("copy", "cuda:0", source="cpu"), Event("gather", "cuda:0", start=5, call=1),
        Event("scatter", "cuda:0", start=2, call=1), Event("scatter", "cuda:1", start=3, call=0),
        Event("copy", "cuda:1", start=4, call=0),
    ])  # fmt: skip
    first, second = found.calls()
    assert [(e.phase, e.start) for e in first] == [("scatter", 2), ("gather", 5)]
    assert [(e.phase, e.start) for e in second] == [("scatter", 3), ("copy", 4)]
    assert first.origin == found.origin
    assert repr(second) == "Call: 2 events on cuda:1"
    assert Trace([]).calls() == ()


def test_events_that_overlap_in_time_are_counted_once():
    spans = ((0, 10), (1, 2), (3, 4))
    events = [Event("gather", "cuda:0", start=start, seconds=stop - start) for start, stop in spans]
    assert "  10 s" in repr(Trace(events))


def test_a_trace_prints_a_short_table():
    events = [
        Event("scatter", f"cuda:{gpu}", source="cpu", shapes=((2, 5),), nbytes=40, start=0.5, seconds=0.001)
        for gpu in range(64)
    ]
    events += [Event("parallel_apply", "cuda:0", start=0.501, seconds=0.0025, direction="backward")] * 900
    lines = repr(Trace(events)).splitlines()
    assert lines[0] == "Trace: 964 events on cpu, cuda:0, …, cuda:63 in 3.5 ms"
    assert lines[1].split() == "forward scatter 64 × 2,560 B 1 ms [2, 5]".split()
    assert lines[2].split() == "backward parallel_apply 900 × 0 B 2.5 ms".split()
    assert len(lines) == 3
    assert str(Trace([])) == "Trace: no events"


def test_a_rank_is_told_by_its_own_clock():
    found = trace.begin()
    trace.set_rank_source(lambda: (3, 20.0))
    try:
        trace.emit("copy", "cuda:3", started=perf_counter() - 5)
        trace.emit_at(Event("collective", "cuda:3", name="barrier", rank=3, start=7, seconds=1))
    finally:
        trace.set_rank_source(None)
        trace.end(found)
    trace.emit("copy", "cuda:0", started=perf_counter())
    assert [(e.phase, e.rank, round(e.start, 1), round(e.stop, 1)) for e in found] == [
        ("collective", 3, 7, 8),
        ("copy", 3, 15.0, 20.0),
    ]


def test_the_parts_of_one_collective_are_known_by_their_meeting():
    part = Event("collective", "cuda:0", name="all_reduce", group="0", sequence=4, ranks=(0, 1), rank=0)
    assert part.meeting == replace(part, rank=1, device="cuda:1", start=3.0).meeting
    for other in ({"sequence": 5}, {"group": "1"}, {"name": "send"}, {"ranks": (1, 0)}):
        assert part.meeting != replace(part, **other).meeting
    assert replace(part, name="send").meeting == replace(part, name="recv").meeting


def all_reduce(rank, start, *, waited=0.0, sequence=1, last=1, **facts):
    """A rank's part in a collective of four ranks, which takes half a second once all are there."""
    facts = {"group": "0", "ranks": (0, 1, 2, 3), "nbytes": 8, "shapes": ((2,),), **facts}
    return Event(
        "collective", f"cuda:{rank}", name="all_reduce", rank=rank, start=start, waited=waited,
        seconds=waited + 0.5, sequence=sequence, last=last, **facts,
    )  # fmt: skip


def ranks():
    """Two meetings of four ranks, in each of which rank 1 comes last, a send, and a copy of nobody's."""
    events = [all_reduce(r, 1.0 - 0.25 * w, waited=0.25 * w) for r, w in ((0, 1), (1, 0), (2, 2), (3, 3))]
    events += [all_reduce(r, 2.0 - 0.25 * (r != 1), waited=0.25 * (r != 1), sequence=2) for r in range(4)]
    pair = {"group": "0", "ranks": (2, 0), "sequence": 1, "nbytes": 4, "shapes": ((1,),)}
    events += [
        Event("collective", "cuda:2", name="send", rank=2, start=3.0, seconds=0.5, last=0, **pair),
        Event("collective", "cuda:0", name="recv", rank=0, start=3.25, seconds=0.25, last=0, **pair),
        Event("copy", "cuda:0", source="cpu", start=9.0),
        Event("copy", "cuda:3", source="cpu", rank=3, start=0.1, seconds=0.1, nbytes=16),
    ]
    samples = [MemorySample(rank, f"cuda:{rank}", 1.5, 64, 128 + rank, "all_reduce") for rank in range(4)]
    return Trace(events, 0.0, samples)


def test_the_parts_of_a_collective_are_met_in_one():
    found = ranks()
    assert found.ranks == (0, 1, 2, 3)
    assert found.groups == {"0": (0, 1, 2, 3)}
    meetings = found.meetings()
    assert [(m.kind, m.last_arrival, m.stop, m.last, [p.rank for p in m.parts]) for m in meetings] == [
        ("all_reduce", 1.0, 1.5, 1, [0, 1, 2, 3]),
        ("all_reduce", 2.0, 2.5, 1, [0, 1, 2, 3]),
        ("send", 3.25, 3.5, 0, [0, 2]),
    ]
    assert found.waiting_seconds() == {(0, 1): 0.5, (2, 1): 0.75, (3, 1): 1.0}


def test_what_a_rank_did_can_be_picked_with_its_memory():
    found = ranks()
    own = found.only(rank=2)
    assert {e.rank for e in own} == {s.rank for s in own.samples} == {2}
    assert len(own) == 3
    assert [e.rank for e in found.only(group="0", name="recv")] == [0]
    early = found.in_window(0.0, 1.4)
    assert len(early) == 5
    assert early.samples == []
    assert found.memory.peak(3) == 131
    assert found.memory.peak(9) == 0
    assert [s.at for s in found.memory.lane_samples(1)] == [1.5]
    assert found.memory.ranks == (0, 1, 2, 3)


def test_a_trace_of_ranks_prints_its_collectives():
    lines = [line.split() for line in repr(ranks()).splitlines()]
    assert " ".join(lines[0]) == "Trace: 12 events of 4 ranks on cpu, cuda:0, …, cuda:3 in 8.9 s"
    assert lines[2] == "4 ranks all_reduce 2 × 64 B 2.25 s waited [2]".split()
    assert lines[3] == "2 ranks send 1 × 4 B 0 ms waited [1]".split()


def test_in_the_chrome_format_a_rank_is_a_process_and_a_group_a_row():
    found = json.loads(ranks().to_chrome())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert processes == {rank + 1: f"rank {rank}" for rank in range(4)}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert sorted(rows.values()) == ["cpu", "cuda:0", "cuda:3", *["group 0"] * 4]
    assert {pid for pid, _ in rows} == {0, 1, 2, 3, 4}
    assert (rows[4, 0], rows[4, 1]) == ("cuda:3", "group 0")  # devices first
    spans = [e for e in found if e["ph"] == "X"]
    assert len(spans) == 12
    assert {rows[e["pid"], e["tid"]] for e in spans if e["name"] == "all_reduce"} == {"group 0"}
    first = next(e for e in spans if e["pid"] == 1)
    assert (first["args"]["waited"], first["args"]["sequence"], first["args"]["last"]) == (0.25, 1, 1)
    starts = {e["id"]: e for e in found if e["ph"] == "s"}
    ends = {e["id"]: e for e in found if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 3 + 3 + 1
    assert {(starts[at]["pid"], ends[at]["pid"]) for at in starts} == {(2, 1), (2, 3), (2, 4), (1, 3)}
    counters = [(e["pid"], e["ts"], e["args"]) for e in found if e["ph"] == "C"]
    assert counters == [(rank + 1, 1_500_000, {"bytes": 64}) for rank in range(4)]


def test_who_waits_for_whom_prints_a_line_for_each_rank():
    graph = WaitForGraph(
        (
            Wait(0, call="all_reduce", group="0", sequence=7, waits_for=(1, 2), place="train.py:31 in step"),
            Wait(1, "ended"),
            Wait(2, "failed", "ValueError", place="train.py:8"),
        )
    )
    assert repr(graph).splitlines() == [
        "WaitForGraph:",
        "  rank 0  waits for 1, 2 in all_reduce 7 of group 0  train.py:31 in step",
        "  rank 1  ended",
        "  rank 2  failed ValueError  train.py:8",
    ]
