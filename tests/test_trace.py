import json
from time import perf_counter

from labkit import trace
from labkit.trace import Event, Trace


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
