import json
from dataclasses import replace
from time import perf_counter

from labkit.trace import events as trace
from labkit.trace.events import Event, Trace
from labkit.trace.memory import Sample


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
        Event(
            "scatter", "cuda:1", source="cpu", shapes=((2, 5),), nbytes=40, start=0.5, seconds=0.25,
            call=3, replica=1, parent=2,
        ),
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
        Event("copy", "cuda:0", source="cpu"),
        Event("gather", "cuda:0", start=5, call=1),
        Event("scatter", "cuda:0", start=2, call=1),
        Event("scatter", "cuda:1", start=3, call=0),
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
    assert "  10000.000 ms" in repr(Trace(events))


def test_a_trace_prints_a_short_table():
    events = [
        Event("scatter", f"cuda:{gpu}", source="cpu", shapes=((2, 5),), nbytes=40, start=0.5, seconds=0.001)
        for gpu in range(64)
    ]
    events += [Event("parallel_apply", "cuda:0", start=0.501, seconds=0.0025, direction="backward")] * 900
    lines = repr(Trace(events)).splitlines()
    assert lines[0] == "Trace: 964 events on cpu, cuda:0, …, cuda:63 in 3.5 ms"
    assert lines[1].split() == "forward scatter 64 × 2,560 B 1.000 ms [2, 5]".split()
    assert lines[2].split() == "backward parallel_apply 900 × 0 B 2.500 ms".split()
    assert len(lines) == 3
    assert str(Trace([])) == "Trace: no events"


def test_a_rank_is_told_by_its_own_clock():
    found = trace.begin()
    trace.tell_ranks(lambda: (3, 20.0))
    try:
        trace.emit("copy", "cuda:3", started=perf_counter() - 5)
        trace.emit_at(Event("collective", "cuda:3", name="barrier", rank=3, start=7, seconds=1))
    finally:
        trace.tell_ranks(None)
        trace.end(found)
    trace.emit("copy", "cuda:0", started=perf_counter())
    assert [(e.phase, e.rank, round(e.start, 1), round(e.stop, 1)) for e in found] == [
        ("collective", 3, 7, 8),
        ("copy", 3, 15.0, 20.0),
    ]


def test_a_recording_that_a_rank_opened_is_for_that_rank_alone():
    everything = trace.begin()
    trace.tell_ranks(lambda: (1, 0.0))
    own = trace.begin()
    try:
        trace.emit("copy", "cuda:1", started=perf_counter())
        trace.emit_at(Event("collective", "cuda:0", rank=0))
        trace.emit_at(Event("collective", "cuda:1", rank=1))
        trace.sample(Sample(0, "cuda:0", 0.0, 8, 8))
        trace.sample(Sample(1, "cuda:1", 0.0, 8, 8))
        trace.tell_ranks(lambda: (0, 0.0))
        trace.emit("copy", "cuda:0", started=perf_counter())
    finally:
        trace.tell_ranks(None)
        trace.end(own)
        trace.end(everything)
    assert {e.rank for e in own} == {s.rank for s in own.samples} == {1}
    assert len(own) == 2
    assert (len(everything), len(everything.samples)) == (4, 2)


def test_the_parts_of_one_collective_are_known_by_their_meeting():
    part = Event("collective", "cuda:0", name="all_reduce", group="0", sequence=4, ranks=(0, 1), rank=0)
    assert part.meeting == replace(part, rank=1, device="cuda:1", start=3.0).meeting
    for other in ({"sequence": 5}, {"group": "1"}, {"name": "send"}, {"ranks": (1, 0)}):
        assert part.meeting != replace(part, **other).meeting
    assert replace(part, name="send").meeting == replace(part, name="recv").meeting
