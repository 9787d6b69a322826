import json
from time import perf_counter

from labkit.trace import events as trace
from labkit.trace.events import Event, Trace


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


def test_the_chrome_format_has_a_row_per_device_and_microseconds():
    events = [
        Event("scatter", "cuda:1", source="cpu", shapes=((2, 5),), nbytes=40, start=0.5, seconds=0.25),
        Event("parallel_apply", "cuda:1", direction="backward", start=1.0, seconds=0.5, name="Linear"),
    ]
    found = json.loads(Trace(events).to_chrome())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M"}
    assert rows == {0: "cpu", 1: "cuda:1"}
    spans = [e for e in found if e["ph"] == "X"]
    assert [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in spans] == [
        ("scatter", "forward", 500_000, 250_000, 1),
        ("parallel_apply Linear", "backward", 1_000_000, 500_000, 1),
    ]
    assert spans[0]["args"] == {"source": "cpu", "shapes": [[2, 5]], "outputs": [], "nbytes": 40}


def test_the_calls_of_a_trace_are_told_apart():
    def call(at, *phases):
        scatters = [Event("scatter", f"cuda:{gpu}", start=at) for gpu in range(2)]
        return scatters + [Event(phase, "cuda:0", start=at + 0.1) for phase in phases]

    events = [Event("copy", "cuda:0", source="cpu")] + call(1, "gather") + call(2) + call(3, "gather")
    found = Trace(events).calls()
    assert [len(trace) for trace in found] == [3, 2, 3]
    assert [trace.events[0].start for trace in found] == [1, 2, 3]
    assert Trace([]).calls() == ()
    assert repr(found[0]) == "Call: 3 events on cuda:0, cuda:1"
    elsewhere = [
        Event("scatter", "cuda:0"),
        Event("gather", "cuda:0", start=1),
        Event("scatter", "cuda:1", start=2),
    ]
    assert [len(trace) for trace in Trace(elsewhere).calls()] == [2, 1]


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
