"""The picture of one data-parallel call, from a plan and from a recording."""

import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

import labkit
from labkit.trace.events import Event
from labkit.trace.trace import Trace
from labkit.view.flow import flow_of_split, flow_of_trace
from labkit.view.palette import colour
from labkit.view.pictures.call_flow import STEPS, flow_picture
from labkit.view.svg import to_svg


def test_a_step_shows_what_is_there_by_then():
    def solid(step):
        boxes = flow_picture(labkit.split(10, 3), step).boxes
        return {(box.label, box.gpu) for box in boxes if box.gpu is not None}

    assert solid(0) == {("module", 0), ("batch", 0)}
    assert {gpu for label, gpu in solid(1) if label == "input"} == {0, 1, 2}
    assert not {gpu for label, gpu in solid(1) if label == "replica"}
    assert {gpu for label, gpu in solid(2) if label == "replica"} == {0, 1, 2}
    assert ("output of a replica", 2) not in solid(2)
    assert ("output of a replica", 2) in solid(3)
    assert ("output", 0) not in solid(3)
    assert ("output", 0) in solid(4)  # gathered, so on the home device
    assert ("gradient of the output", 0) not in solid(4)
    assert ("gradient of the output", 0) in solid(5)
    assert ("gradient", 2) in solid(5)
    assert ("gradient of the weights", 2) in solid(6)
    assert ("gradient summed", 0) not in solid(6)
    assert ("gradient summed", 0) in solid(7)


def boxes_of(picture, label):
    return [box for box in picture.boxes if box.label == label]


def inside(box, x, y):
    """Whether a point is in ``box`` or one pixel beside it."""
    return box.x - 1 <= x <= box.x + box.width + 1 and box.y <= y <= box.y + box.height


def ways(picture, source, target):
    """(number of the box in ``target``, share of the height of ``source`` where it begins) for each line between."""
    found = []
    (whole,) = boxes_of(picture, source)
    for line in picture.lines:
        if inside(whole, line.x1, line.y1):
            for at, box in enumerate(boxes_of(picture, target)):
                if inside(box, line.x2, line.y2):
                    found.append((at, (line.y1 - whole.y) / whole.height, line.arrow))
    return found


@pytest.mark.parametrize(("rows", "gpus"), [(7, 3), (10, 8), (10, 3), (9, 9)])
def test_pieces_go_from_the_whole_batch_at_home_to_each_gpu(rows, gpus):
    plan = labkit.split(rows, gpus)
    middles = [(piece.start + piece.stop) / 2 / rows for piece in plan.pieces]
    shown = [
        at for at in range(len(plan.pieces)) if len(plan.pieces) <= 8 or at < 4 or at >= len(plan.pieces) - 2
    ]
    # What stays at home has no arrow head.
    wanted = [(n, pytest.approx(middles[at]), at != 0) for n, at in enumerate(shown)]
    assert ways(flow_picture(plan, 1), "batch", "input") == wanted
    assert ways(flow_picture(plan, 0), "batch", "input") == []


def test_the_batch_is_whole_until_it_is_scattered():
    for step in (0, 1, None):
        picture = flow_picture(labkit.split(7, 3), step)
        (batch,) = boxes_of(picture, "batch")
        over = [line for line in picture.lines if line.over and inside(batch, line.x1, line.y1)]
        cuts = [line.y1 for line in over if line.dashed and line.y1 == line.y2]
        wanted = [] if step == 0 else [batch.y + batch.height * n / 7 for n in (3, 6)]
        assert cuts == pytest.approx(wanted)
        told = [t.text for t in picture.texts if t.text.startswith("row") and t.x < batch.x + batch.width]
        assert told == (["rows 0–6"] if step == 0 else ["rows 0–2", "rows 3–5", "row 6"])


@pytest.mark.parametrize("step", [None, *range(8)])
def test_heights_are_in_proportion_to_rows(step):
    picture = flow_picture(labkit.split(7, 3), step)
    unit = boxes_of(picture, "input")[0].height / 3
    for label, rows in (
        ("input", (3, 3, 1)),
        ("output of a replica", (3, 3, 1)),
        ("batch", (7,)),
        ("output", (7,)),
    ):
        assert [box.height / unit for box in boxes_of(picture, label)] == pytest.approx(list(rows)), label
    assert len({box.height for box in boxes_of(picture, "replica")}) == 1  # each has the whole model
    for label, rows in (("gradient", (3, 3, 1)), ("gradient of the output", (7,))):
        heights = [box.height for box in boxes_of(picture, label)]
        assert [high / heights[0] * rows[0] for high in heights] == pytest.approx(list(rows))


def test_the_four_steps_are_named_above_what_they_make(gpus):
    with labkit.record() as trace:
        nn.DataParallel(nn.Linear(5, 2).to("cuda:0"))(torch.randn(30, 5))
    picture = flow_picture(trace)
    named = [text for text in picture.texts if text.text.replace(" ", "_") in STEPS[1:5]]
    assert [text.text for text in named] == ["scatter", "replicate", "parallel apply", "gather"]
    (output,) = boxes_of(picture, "output")
    for text, label in zip(named, ("input", "replica", "output of a replica"), strict=False):
        box = boxes_of(picture, label)[0]
        assert text.x == box.x + box.width / 2
        assert box.y - 14 < text.y < box.y
    assert box.x + box.width < named[3].x < output.x  # above its arrows


@pytest.mark.parametrize(("rows", "gpus"), [(9, 3), (10, 4), (2, 2), (128, 8), (100, 64), (40, 5)])
def test_no_arrow_of_the_gradient_goes_through_the_words_of_the_output(rows, gpus):
    picture = flow_picture(labkit.split(rows, gpus), STEPS.index("gather backward"))
    (output,) = boxes_of(picture, "output")
    (words,) = [text for text in picture.texts if text.x == output.x + output.width / 2]
    assert output.y + words.size <= words.y <= output.y + output.height
    for line in picture.lines:
        if line.over and line.dashed and line.x2 < output.x < line.x1:
            for x in (output.x, words.x, output.x + output.width):
                y = line.y1 + (line.x1 - x) / (line.x1 - line.x2) * (line.y2 - line.y1)
                assert not words.y - 0.75 * words.size < y < words.y + 0.2 * words.size


def test_gather_ends_in_one_joined_output_where_each_part_has_its_place():
    for step in (4, None):
        picture = flow_picture(labkit.split(7, 3), step)
        (output,) = boxes_of(picture, "output")
        assert output.gpu == 0
        parts = boxes_of(picture, "output of a replica")
        ends = [
            (line.y2 - output.y) / output.height * 7
            for part in parts for line in picture.lines
            if inside(part, line.x1, line.y1) and inside(output, line.x2, line.y2)
        ]  # fmt: skip
        assert ends == pytest.approx([1.5, 4.5, 6.5])
    back = ways(flow_picture(labkit.split(7, 3), 5), "gradient of the output", "gradient")
    assert back == [(n, pytest.approx(at / 7), n > 0) for n, at in enumerate((1.5, 4.5, 6.5))]


@pytest.mark.parametrize(
    ("step", "home", "others"), [(2, "module", "replica"), (7, "gradient summed", "gradient of the weights")]
)
def test_a_trunk_joins_home_with_each_replica_and_no_replica_with_the_next(step, home, others):
    picture = flow_picture(labkit.split(7, 3), step)
    (left, right) = (boxes_of(picture, label)[0] for label in ("input", "output of a replica"))
    lines = [  # of this step; what stays at home is muted
        line for line in picture.lines
        if left.x + left.width < min(line.x1, line.x2) and max(line.x1, line.x2) < right.x
        and (step == 2 or not line.muted)
    ]  # fmt: skip
    joined = lines[:1]
    for _ in lines:
        joined += [
            line for line in lines if line not in joined and any(map(touches, joined, [line] * len(joined)))
        ]
    assert len(joined) == len(lines)
    for box in (*boxes_of(picture, home), *boxes_of(picture, others)):
        ends = [line for line in lines if inside(box, line.x1, line.y1) or inside(box, line.x2, line.y2)]
        assert len(ends) == 1, box  # one line comes or goes: none passes on what it got
    heads = [box for box in picture.boxes for line in lines if line.arrow and inside(box, line.x2, line.y2)]
    assert heads == (boxes_of(picture, others)[1:] if step == 2 else boxes_of(picture, home))


@pytest.mark.parametrize("step", [2, 7])
def test_a_trunk_goes_on_behind_the_gpus_that_are_counted(step):
    picture = flow_picture(labkit.split(100, 64), step)
    counted = next(box for box in picture.boxes if box.dashed and not box.label)
    top, bottom = counted.y, counted.y + counted.height
    within = [  # forward is drawn through, backward dashed
        line
        for line in picture.lines
        if counted.x < line.x1 < counted.x + counted.width and line.dashed == (step == 7)
    ]
    spans = [sorted((line.y1, line.y2)) for line in within if line.x1 == line.x2]
    assert top in [high for _, high in spans]
    assert bottom in [low for low, _ in spans]
    assert not [span for span in spans if span[0] < bottom and span[1] > top]
    assert not [line for line in within if line.arrow and top < line.y2 < bottom]


def touches(one, other):
    """Whether an end of one level or upright line lies on the other."""

    def on(line, x, y):
        low, high = sorted((line.x1, line.x2)), sorted((line.y1, line.y2))
        return low[0] <= x <= low[1] and high[0] <= y <= high[1]

    ends = ((one.x1, one.y1), (one.x2, one.y2))
    return any(on(other, *end) for end in ends) or any(
        on(one, x, y) for x, y in ((other.x1, other.y1), (other.x2, other.y2))
    )


@pytest.mark.parametrize("source", ["cpu", "cuda:0", "cuda:1"])
def test_the_picture_moves_what_the_trace_says_was_moved(wrap, source):
    """An arrow head for each event that moved bytes from one device to another, and for no other."""
    with labkit.simulate(gpus=3):
        model = wrap(nn.Linear(5, 2).to("cuda:1"), [1, 0], output_device=2)
        with labkit.record() as trace:
            model(torch.randn(7, 5, device=source)).sum().backward()
    picture = flow_picture(trace)
    moved = [e for e in trace if e.phase in ("scatter", "gather") and e.source != e.device]
    (batch,), (output,) = boxes_of(picture, "batch"), boxes_of(picture, "output")
    assert (batch.gpu, output.gpu) == (-1 if source == "cpu" else int(source[-1]), 2)
    assert sum(arrow for *_, arrow in ways(picture, "batch", "input")) == sum(
        e.phase == "scatter" and e.direction == "forward" for e in moved
    )
    assert sum(arrow for *_, arrow in ways(picture, "gradient of the output", "gradient")) == sum(
        e.phase == "gather" and e.direction == "backward" for e in moved
    )
    begun = [e.phase for e in trace if e.direction == "forward"]
    assert (
        list(dict.fromkeys(begun)) == ["scatter", "replicate", "parallel_apply", "gather"] == list(STEPS[1:5])
    )


def test_a_short_piece_keeps_its_label_below_its_box():
    picture = flow_picture(labkit.split(7, 3))
    for label, words in (("input", "[1, 5]"), ("output of a replica", "[1, 2]"), ("gradient", "grad [1, 2]")):
        low, text = boxes_of(picture, label)[-1], next(t for t in picture.texts if t.text == words)
        assert text.gpu is None
        assert low.y + low.height < text.y < low.y + low.height + 14
        assert text.x == low.x + low.width / 2


@pytest.mark.parametrize("count", [1, 2, 3, 6])  # ten rows reach five of six GPUs
def test_a_recording_is_read_as_the_plan_says(wrap, count):
    with labkit.simulate(gpus=count):
        model = wrap(nn.Linear(5, 2)).to("cuda:0")
        with labkit.record() as trace:
            model(torch.randn(10, 5, device="cuda:0")).sum().backward()
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


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: labkit.draw_flow(Trace([Event("copy", "cuda:1")])), ValueError, "holds no data-parallel call"),
    (lambda: labkit.draw_flow(Trace([Event("gather", "cuda:0", call=0)])),  # a part of one: nothing goes in
     ValueError, "holds no data-parallel call"),
    (lambda: labkit.draw_flow([1]), TypeError, r"data must be a Trace or a Split, got \[1\]"),
    (lambda: flow_picture(labkit.split(3, 2), 8), ValueError, "step must be from 0 to 7, got 8"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_call_shows_itself_as_its_flow_and_prints_the_same_every_time(gpus):
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
