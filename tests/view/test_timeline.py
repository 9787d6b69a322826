"""The picture of a trace in time."""

import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
import torch
from torch import nn

import labkit
from labkit.trace.events import Event
from labkit.trace.trace import Trace
from labkit.view.palette import colour
from labkit.view.pictures.timeline import timeline_picture


def made(gpus, rounds=1):
    """A trace with events of every kind, each a millisecond long."""
    events, at = [], 0.0
    for _ in range(rounds):
        for direction in ("forward", "backward"):
            for phase in ("scatter", "replicate", "parallel_apply", "gather"):
                for gpu in range(gpus):
                    device = "cuda:0" if phase == "gather" else f"cuda:{gpu}"
                    source = None if phase == "parallel_apply" else "cpu"
                    events.append(
                        Event(phase, device, source=source, direction=direction, start=at, seconds=0.001)
                    )
                at += 0.001
    return Trace(events)


def test_bars_are_where_the_events_are():
    events = [
        Event("scatter", "cuda:1", source="cpu", start=1.0, seconds=0.002),
        Event("parallel_apply", "cuda:1", start=1.002, seconds=0.006),
        Event("parallel_apply", "cuda:1", start=1.008, seconds=0.002, direction="backward"),
    ]
    picture = timeline_picture(Trace(events))
    bars = {box.label: box for box in picture.boxes}
    move = bars["cuda:1 scatter forward"]
    forward, backward = bars["cuda:1 parallel_apply forward"], bars["cuda:1 parallel_apply backward"]
    assert move.x + move.width == pytest.approx(forward.x)
    assert forward.x + forward.width == pytest.approx(backward.x)
    assert forward.width == pytest.approx(3 * move.width)
    assert move.height < forward.height
    assert (forward.gpu, forward.tint) == (1, 0)
    assert (backward.gpu, backward.tint > 0) == (1, True)
    assert [text.text for text in picture.texts if text.anchor == "end"] == ["cpu", "cuda:1"]
    assert "2 ms" in [text.text for text in picture.texts]


def test_arrivals_that_overlap_lie_beside_one_another():
    events = [
        Event("copy", "cuda:0", source="cpu", start=0.0, seconds=0.01),
        Event("copy", "cuda:0", source="cuda:1", start=0.002, seconds=0.01),
    ]
    one, other = (box for box in timeline_picture(Trace(events)).boxes if box.gpu == 0)
    assert one.y + one.height <= other.y + 1e-9 or other.y + other.height <= one.y + 1e-9


def test_only_pieces_of_one_collective_are_one_bar():
    kinds = [("gather", "forward"), ("gather", "backward"), ("scatter", "forward")]
    events = [
        Event(phase, device, source="cpu", direction=direction, start=0.0, seconds=0.001)
        for phase, direction in kinds
        for device in ("cuda:0", "cuda:1")
    ]
    labels = [box.label for box in timeline_picture(Trace(events)).boxes if box.label != "legend"]
    assert sorted(labels) == sorted(
        f"{device} {phase} {way}" for device in ("cuda:0", "cuda:1") for phase, way in kinds
    )


def test_pieces_that_arrive_together_are_one_bar():
    labels = [box.label for box in timeline_picture(made(8)).boxes]
    assert "cuda:0 gather forward ×8" in labels
    assert sum("gather" in label for label in labels) == 2


def test_ticks_are_round_and_few():
    for seconds, unit in ((3e-6, "µs"), (0.0123, "ms"), (0.7, "ms"), (12.0, "s"), (999.0, "s")):
        trace = Trace([Event("copy", "cuda:0", seconds=seconds)])
        ticks = [text for text in timeline_picture(trace).texts if text.muted]
        assert 3 <= len(ticks) <= 9, seconds
        assert len({text.text for text in ticks}) == len(ticks)
        assert {text.text.partition(" ")[2] for text in ticks} == {unit}


def test_words_on_a_bar_that_another_lies_over_are_left_out():
    def words(start):
        first, other = (Event("parallel_apply", "cuda:0", start=at, seconds=4e-3) for at in (0, start))
        return [text.text for text in timeline_picture(Trace([first, other])).texts if text.gpu is not None]

    assert words(start=5e-3) == ["compute", "compute"]
    assert words(start=1e-3) == []


def test_forward_and_backward_steps_are_told_apart_below_the_time():
    texts = [text.text for text in labkit.TimelineExplorer(rows=64, gpus=4).make_picture().texts]
    assert {"scatter, replicate", "gather, backward of gather", "reduce"} <= {*texts}


def test_a_moment_is_marked_and_told():
    trace = made(2)
    (line,) = [line for line in timeline_picture(trace, 0.0025).lines if line.over]
    assert line.x1 == line.x2
    assert timeline_picture(trace, 0.0025).description == "At 2.5 ms: compute (cuda:0, cuda:1)."
    assert timeline_picture(trace, 1.0).description == "At 1 s nothing runs."
    assert timeline_picture(Trace([])).description == "Nothing was recorded."


def test_a_recording_shows_itself():
    with labkit.simulate(gpus=2):
        model = labkit.DataParallel(nn.Linear(5, 2)).to("cuda:0")
        with labkit.record() as trace:
            model(torch.randn(4, 5)).sum().backward()
    svg = trace._repr_svg_()
    root = ET.fromstring(svg)
    assert {el.get("fill") for el in root.iter() if el.get("data-gpu")} >= {
        colour(0), colour(1), colour(0, 0.55),
    }  # fmt: skip
    labkit.set_language("zh")
    assert "数据到达" in trace._repr_svg_()


def test_a_thousand_events_are_drawn_at_once():
    import matplotlib.pyplot as plt

    trace = made(8, rounds=16)
    assert len(trace) == 1024
    before = mpl.rcParams.copy()
    ax = labkit.draw_timeline(trace)
    (bars,) = ax.collections
    assert len(ax.patches) == 0
    boxes = timeline_picture(trace).boxes
    assert len(bars.get_paths()) == len(boxes)
    fills = [mpl.colors.to_hex(fill) for fill in bars.get_facecolors()]
    assert fills == [colour(box.gpu, box.tint).lower() for box in boxes]
    assert not any(alpha for *_, alpha in bars.get_edgecolors())  # they are too small for edges
    assert mpl.rcParams == before
    _, other = plt.subplots()
    assert labkit.draw_timeline(made(3), ax=other) is other
    assert other.collections[:] == []
    plt.close("all")


@pytest.mark.parametrize(("rows", "gpus"), [(64, 4), (8, 8), (128, 2), (32, 1), (128, 64)])
def test_the_steps_in_which_data_moves_are_named_below_their_times(rows, gpus, language, sound):
    picture = labkit.TimelineExplorer(rows=rows, gpus=gpus).make_picture()
    sound(picture)
    named = " ".join(text.text for text in picture.texts if text.y > picture.height - 14)
    wanted = (
        ["scatter", "replicate", "gather", "reduce"] if language == "en" else ["分发", "复制", "收集", "归约"]
    )
    assert [word for word in wanted if word in named] == (wanted if gpus > 1 else [])
