"""What is drawn of one data-parallel call, from a plan and from a recording."""

import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
import torch
from torch import nn

import labkit
from labkit.trace.events import Event, Trace
from labkit.view.palette import CPU, colour
from labkit.view.pictures.call_flow import STEPS, flow_of_split, flow_of_trace, flow_picture
from labkit.view.svg import to_svg

mpl.use("Agg")
CASES = [(10, 1), (10, 3), (10, 8), (128, 8), (128, 64), (100, 64), (5, 64), (0, 3), (9, 9), (8, 9), (7, 5)]


@pytest.mark.parametrize(("rows", "gpus"), CASES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_clipped_and_nothing_overlaps(rows, gpus, language, sound):
    labkit.set_language(language)
    for step in (None, *range(len(STEPS))):
        sound(flow_picture(labkit.split(rows, gpus), step))


def test_a_step_shows_what_is_there_by_then():
    def solid(step):
        boxes = flow_picture(labkit.split(10, 3), step).boxes
        return {(box.label, box.gpu) for box in boxes if box.gpu is not None}

    assert {gpu for label, gpu in solid(0) if label != "module"} == {CPU}
    assert {gpu for label, gpu in solid(1) if label == "input"} == {0, 1, 2}
    assert not {gpu for label, gpu in solid(1) if label == "replica"}
    assert {gpu for label, gpu in solid(2) if label == "replica"} == {0, 1, 2}
    assert ("output", 2) not in solid(2)
    assert ("output", 2) in solid(3)
    assert ("output of cuda:2", 0) not in solid(3)
    assert ("output of cuda:2", 0) in solid(4)  # gathered, so on the home device
    assert ("gradient", 2) in solid(5)
    assert ("gradient of the weights", 2) in solid(6)
    assert ("gradient summed", 0) not in solid(6)
    assert ("gradient summed", 0) in solid(7)


def test_the_line_of_code_moves_with_the_step():
    bold = [
        next(text.text for text in flow_picture(labkit.split(10, 3), step).texts if text.bold and text.mono)
        for step in range(len(STEPS))
    ]
    assert [line.strip("▶ ").split("(")[0] for line in bold] == [
        "batch = torch.randn", "inputs = scatter", "replicas = replicate", "outputs = parallel_apply",
        "output = gather", "output.sum", "output.sum", "output.sum",
    ]  # fmt: skip


def test_arrows_run_forward_and_back():
    lines = flow_picture(labkit.split(10, 3)).lines
    level = [line for line in lines if line.y1 == line.y2]
    assert sum(line.x2 > line.x1 and not line.dashed for line in level) == 6
    assert sum(line.x2 < line.x1 and line.dashed for line in level) == 3
    assert not any(line.muted or line.strong for line in lines)  # without a step none is pointed out
    upright = [line for line in lines if line.x1 == line.x2]
    assert sum(line.y2 > line.y1 for line in upright) == sum(line.y2 < line.y1 for line in upright) == 3


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_recording_is_read_as_the_plan_says(wrap, count):
    with labkit.simulate(gpus=count):
        model = wrap(nn.Linear(5, 2)).to("cuda:0")
        with labkit.record() as trace:
            model(torch.randn(10, 5)).sum().backward()
    read, planned = flow_of_trace(trace), flow_of_split(labkit.split(10, count))
    if count > 1:
        assert read == planned
    else:  # the module is called directly: nothing but the scatter is seen
        assert (read.batch, read.output) == ((10, 5), None)


def test_each_call_of_a_recording_can_be_drawn():
    with labkit.simulate(gpus=2):
        model = labkit.DataParallel(nn.Linear(5, 2)).to("cuda:0")
        with labkit.record() as trace:
            model(torch.randn(4, 5)).sum().backward()
            model(torch.randn(6, 5))
    assert [flow_of_trace(trace, call).batch for call in (0, 1, -1)] == [(4, 5), (6, 5), (6, 5)]
    assert [flow_of_trace(trace, call).backward for call in (0, 1)] == [True, False]
    with pytest.raises(ValueError, match="call must be from -2 to 1, got 2"):
        flow_of_trace(trace, 2)


def test_home_and_target_may_be_other_devices():
    with labkit.simulate(gpus=3):
        model = nn.DataParallel(nn.Linear(5, 2).to("cuda:2"), [2, 1], output_device=1)
        with labkit.record() as trace:
            model(torch.randn(4, 5, device="cuda:0"))
    flow = flow_of_trace(trace)
    assert (flow.source, flow.home, flow.target) == ("cuda:0", "cuda:2", "cuda:1")
    assert [share.device for share in flow.shares] == ["cuda:2", "cuda:1"]
    assert "[4, 2] on cuda:1" in flow_picture(flow).description
    root = ET.fromstring(to_svg(flow_picture(flow)))
    assert {colour(0), colour(1), colour(2)} <= {el.get("fill") for el in root.iter() if el.get("data-gpu")}


def test_many_gpus_are_counted_not_drawn():
    texts = [text.text for text in flow_picture(labkit.split(100, 64)).texts]
    assert "cuda:4 to cuda:47: 44 more GPUs with [2, 5] each" in texts
    assert "cuda:50 to cuda:63: 14 GPUs idle" in texts
    assert [text for text in texts if text.startswith("cuda:") and len(text) < 8] == [
        "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:48", "cuda:49",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: labkit.draw_flow(Trace([Event("copy", "cuda:1")])),
            ValueError,
            "holds no data-parallel call",
        ),
        (
            lambda: labkit.draw_flow(
                Trace([Event("gather", "cuda:0", call=0)])
            ),  # a part of one: nothing goes in
            ValueError,
            "holds no data-parallel call",
        ),
        (lambda: labkit.draw_flow([1]), TypeError, r"data must be a Trace or a Split, got \[1\]"),
        (lambda: flow_picture(labkit.split(3, 2), 8), ValueError, "step must be from 0 to 7, got 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_figure_takes_and_returns_the_axes_and_changes_no_setting():
    import matplotlib.pyplot as plt

    before = mpl.rcParams.copy()
    _, ax = plt.subplots()
    assert labkit.draw_flow(labkit.split(10, 2), ax=ax) is ax
    assert labkit.draw_flow(labkit.split(10, 2), 3) is not ax
    assert mpl.rcParams == before
    names = [text.get_text() for text in ax.texts]
    assert names.count("[5, 5]") == 4
    replicas = [patch for patch in ax.patches if patch.get_label() == "replica"]
    assert [mpl.colors.to_hex(bar.get_facecolor()) for bar in replicas] == [
        colour(0).lower(),
        colour(1).lower(),
    ]
    plt.close("all")


def test_a_call_shows_itself_as_its_flow_and_prints_the_same_every_time():
    with labkit.simulate(gpus=2):
        shown = []
        for _ in range(2):
            with labkit.record() as trace:
                labkit.DataParallel(torch.nn.Linear(5, 2).to("cuda:0"))(torch.randn(7, 5))
            (call,) = trace.calls()
            shown.append((repr(call), call._repr_svg_()))
        assert shown[0] == shown[1]
        assert shown[0][0].startswith("Call: ")
        assert "ms" not in shown[0][0]
        assert shown[0][1] == to_svg(flow_picture(trace), panel=True)
        assert shown[0][1] != trace._repr_svg_()  # a trace shows itself in time
