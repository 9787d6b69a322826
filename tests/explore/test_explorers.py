"""Every explorer, without a browser: state in, picture out, in both languages, nothing left behind."""

import gc
import json
import re
import xml.etree.ElementTree as ET
import zlib
from base64 import b64decode
from math import prod

import pytest
from ipywidgets.widgets.widget import _instances

import labkit
from labkit.cost import PROFILES, step_trace
from labkit.cost.published import RESNET50
from labkit.explore.static import Control, static_html
from labkit.view.layout import text_width

# Each explorer, a state that moves, where to, and words of the picture there.
MOVES = [
    ("SplitExplorer", {"rows": 10, "gpus": 8}, "rows", 17, "17 rows"),
    ("CallExplorer", {"rows": 10, "gpus": 4, "step": 2}, "step", 4, "▶ output = gather"),
    ("ShapesExplorer", {"gpus": 2}, "batch_dim", 2, "✗ [130, 5530, 16], not [65, 5530, 32]"),
    ("TimelineExplorer", {"gpus": 4}, "moment", 40, "compute"),
    ("MemoryExplorer", {"gpus": 4}, "optimizer", "SGD", "capacity 16 GiB"),
    ("RingExplorer", {"ranks": 4}, "step", 2, "after step 2 of 6"),
    ("PipelineExplorer", {"stages": 4}, "micro_batches", 12, "45 units of time"),
    ("MeshExplorer", {"node": 8}, "lit", "dp", "(1, 1, 1)"),
    ("ShardingExplorer", {"ranks": 64}, "stage", 1, "39.4 GB"),
    ("SlicesExplorer", {"ranks": 4}, "step", 3, "output"),
    ("ContextExplorer", {"doublings": 2}, "layout", "zig-zag", "100% of it work"),
    ("RecomputeExplorer", {"layers": 36, "kept": 1}, "every", 6, "peak 11 "),
    ("BucketExplorer", {}, "megabytes", 100, "100 MB"),
    ("ExpertExplorer", {"skew": 2}, "capacity", 100, "dropped"),
    ("WorldExplorer", {"per_node": 3}, "chosen_by", "RANK", "cuda:5 ?</text>"),
]
NAMES = [name for name, *_ in MOVES]


@pytest.mark.parametrize(("name", "state", "moved", "value", "words"), MOVES)
def test_state_moves_the_control_and_the_control_moves_the_state(name, state, moved, value, words):
    explorer = getattr(labkit, name)(**state)
    before = explorer._picture.value
    setattr(explorer, moved, value)
    assert explorer._controls[moved].value == value
    assert explorer._picture.value != before
    assert words in explorer._picture.value
    assert f"{moved}={value!r}" in repr(explorer)
    again = eval(f"labkit.{explorer!r}")  # its text makes it anew
    assert again._picture.value == explorer._picture.value
    first = again._controls[moved]
    first.value = explorer.choices[moved][0] if moved in explorer.choices else explorer.limits[moved][0]
    assert getattr(again, moved) == first.value


@pytest.mark.parametrize("name", NAMES)
def test_every_state_at_its_ends_can_be_drawn(name, language, sound):
    explorer = getattr(labkit, name)()
    for state, (least, most) in explorer.limits.items():
        for value in (least, most):
            setattr(explorer, state, value)
            sound(explorer.make_picture())
    for state, values in explorer.choices.items():
        for value in values:
            setattr(explorer, state, value)
            sound(explorer.make_picture())
    labels = [control.description for control in explorer._controls.values()]
    assert all(labels)
    assert all(text_width(label, 12) <= 144 for label in labels), (
        "longer ones are cut off: at most 20 letters"
    )
    assert len(set(labels)) == len(labels)
    assert (language == "zh") == any(re.search("[一-鿿]", label) for label in labels)


def test_gpus_end_with_the_machine_where_there_is_no_network():
    explorer = labkit.BucketExplorer()
    assert explorer.doublings == 5
    explorer.link = "titan-pcie"  # two GPUs, and no way to more
    assert explorer.doublings == 1
    assert explorer._controls["doublings"].options[-1] == ("2", 1)  # a slider shows GPUs, not the exponent
    with pytest.raises(ValueError, match="doublings must be from 0 to 1, got 2"):
        explorer.doublings = 2
    explorer.link = "h200"
    explorer.doublings = 8
    assert explorer._controls["doublings"].label == "256"
    assert labkit.BucketExplorer(link="titan-nvlink").doublings == 1
    with pytest.raises(ValueError, match="doublings must be from 0 to 1, got 5"):
        labkit.BucketExplorer(doublings=5, link="titan-nvlink")


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda: labkit.CallExplorer(gpus=1), ValueError, "gpus must be from 2 to 64, got 1"),
    (lambda: labkit.SplitExplorer(rows="x"), TypeError, "rows must be a whole number, got 'x'"),
    (lambda: labkit.SplitExplorer(rows=True), TypeError, "rows must be a whole number, got True"),
    (lambda: labkit.TimelineExplorer("run"), TypeError, r"trace must be a Trace, got 'run' \(str\)"),
    (lambda: labkit.TimelineExplorer(hardware="h200"), TypeError, "hardware must be a Hardware, got 'h200'"),
    (lambda: labkit.TimelineExplorer(work=None), TypeError, "work must be a Workload, got None"),
])  # fmt: skip
def test_bad_state_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(("state", "value", "error", "text"), [
    ("rows", "ten", TypeError, "rows must be a whole number, got 'ten'"),
    ("rows", 129, ValueError, "rows must be from 0 to 128, got 129"),
    ("optimizer", "Lion", ValueError, "optimizer must be one of 'SGD', 'momentum', 'Adam', got 'Lion'"),
])  # fmt: skip
def test_bad_state_leaves_all_as_it_is(state, value, error, text):
    explorer = labkit.MemoryExplorer()
    before = repr(explorer), explorer._picture.value
    with pytest.raises(error, match=text):
        setattr(explorer, state, value)
    assert (repr(explorer), explorer._picture.value) == before


@pytest.mark.parametrize("name", NAMES)
def test_what_it_does_not_have_cannot_be_set(name):
    explorer = getattr(labkit, name)()
    before = repr(explorer)
    with pytest.raises(AttributeError, match=f"{name} has no 'gpu'; it has "):
        explorer.gpu = 2
    assert repr(explorer) == before


@pytest.mark.parametrize("name", NAMES)
def test_moves_leave_nothing_behind(name):
    explorer = getattr(labkit, name)()
    state, (least, most) = next(iter(explorer.limits.items()))
    places = min(most - least + 1, 20)

    def move(times):
        for turn in range(times):
            setattr(explorer, state, least + turn % places)

    move(40)  # each place has been shown twice
    gc.collect()
    objects, widgets = len(gc.get_objects()), len(_instances)
    move(80)
    gc.collect()
    assert len(_instances) == widgets
    assert len(gc.get_objects()) - objects < 40


@pytest.mark.parametrize(("moment", "en", "zh"), [
    ("running",
     "cuda:0 holds 15.4 MiB, every other GPU at most 11.6 MiB.",
     "cuda:0 占用 15.4 MiB，其余 GPU 最多各占 11.6 MiB。"),
    ("between", "cuda:0 holds 7.63 MiB, every other GPU at most 0 B.",
     "cuda:0 占用 7.63 MiB，其余 GPU 最多各占 0 B。"),
])  # fmt: skip
def test_each_moment_has_its_drawing(moment, en, zh):
    sizes = {"parameters": 1, "optimizer": "SGD", "activations": 2**20, "outputs": 0, "capacity": None}
    for language, words in (("en", en), ("zh", zh)):
        labkit.set_language(language)
        explorer = labkit.MemoryExplorer(rows=8, gpus=2, moment=moment, **sizes)
        assert explorer.sentence() == words
        held = {box.label for box in explorer.make_picture().boxes if box.label.startswith("cuda")}
        there = {f"cuda:{gpu} {kind}" for gpu in (0, 1) for kind in ("weights", "activations", "gradients")}
        assert held == (there if moment == "running" else {"cuda:0 weights", "cuda:0 gradients"})


def test_a_recording_can_be_explored():
    trace = step_trace(RESNET50, PROFILES["v100-nvlink"], 32, 3)
    explorer = labkit.TimelineExplorer(trace, moment=50)
    assert repr(explorer) == "TimelineExplorer(moment=50)"
    assert "computing the backward pass (cuda:0, cuda:1, cuda:2)" in explorer.sentence()
    assert ": reduce (cuda:0)" in labkit.TimelineExplorer(trace, moment=99).sentence()
    with pytest.raises(AttributeError, match="has no 'gpus'"):
        _ = explorer.gpus


def test_fewer_ranks_leave_fewer_steps():
    explorer = labkit.RingExplorer(ranks=8, step=14)
    control, play = explorer._controls["step"], explorer._play
    assert (control.max, play.max) == (14, 14)
    explorer.ranks = 3
    assert (explorer.step, control.value, control.max, play.max) == (4, 4, 4, 4)
    assert "after step 4 of 4" in explorer._picture.value
    with pytest.raises(ValueError, match="step must be from 0 to 4, got 5"):
        explorer.step = 5
    with pytest.raises(ValueError, match="step must be from 0 to 2, got 3"):
        labkit.RingExplorer(ranks=2, step=3)
    explorer.ranks = 1
    assert (explorer.step, control.max) == (0, 0)
    explorer.ranks = 16
    explorer.step = 30


def test_play_is_tied_to_the_step():
    explorer = labkit.CallExplorer(step=3)
    ((label, play),) = (row.children for row in explorer.widget.children if type(row).__name__ == "HBox")
    assert label.value == "Play"
    assert (play.min, play.max, play.value) == (0, 7, 3)
    assert explorer._link.source == (play, "value")
    assert explorer._link.target == (explorer._controls["step"], "value")


@pytest.mark.parametrize("gpus", [8, 64])
@pytest.mark.parametrize("name", NAMES)
def test_readers_without_a_kernel_can_still_move_one_control(name, gpus):
    explorer = getattr(labkit, name)()
    if "gpus" in explorer.limits:
        explorer.gpus = gpus
    before = repr(explorer)
    bundle = explorer._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "text/plain", "image/svg+xml"} <= set(bundle)
    html = bundle["text/html"]
    assert len(html.encode()) < (100_000 if gpus == 8 else 200_000)
    assert html == explorer._repr_mimebundle_()["text/html"]  # the same every time: notebooks are compared
    (control,), pictures = unpacked(html)
    assert len(control["names"]) == len(pictures) >= 3
    assert control["label"] == explorer._controls[explorer.unfolds].description
    value = getattr(explorer, explorer.unfolds)
    assert control["names"][control["at"]] == str(2**value if explorer.unfolds in explorer.powers else value)
    assert pictures[control["at"]] == explorer.picture()
    assert len(set(pictures)) == len(pictures)
    for svg in pictures:
        ET.fromstring(svg)
    assert repr(explorer) == before
    assert " id=" not in html


@pytest.mark.parametrize(("name", "state"), [
    ("SplitExplorer", "gpus"), ("CallExplorer", "gpus"), ("ShapesExplorer", "gpus"), ("MemoryExplorer", "gpus"),
    ("TimelineExplorer", "gpus"), ("ShardingExplorer", "ranks"),
])  # fmt: skip
def test_half_of_a_slider_of_gpus_is_up_to_eight(name, state):
    explorer = getattr(labkit, name)()
    slider = explorer._controls[state]
    shown = [words for words, _ in slider.options]
    least = explorer.limits[state][0]  # a call on one GPU has no steps
    assert shown[: 9 - least] == [str(count) for count in range(least, 9)]
    assert len(shown) <= 16
    assert shown[-1] == "64"
    setattr(explorer, state, 50)  # code may ask for any number
    assert (getattr(explorer, state), slider.label) == (50, "50")
    assert f"{state}=50" in repr(explorer)
    (control,), _ = unpacked(explorer._static_html((state,)))
    assert control["names"][:8] == shown[:8]
    assert control["names"][control["at"]] == "50"


def unpacked(html):
    """The controls of a page and its pictures, as a browser unpacks them."""
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)[1])
    text = zlib.decompress(b64decode(data["packed"]), -15).decode()
    table, rows = (part.split("\n") for part in text.split("\n\n"))
    pictures = []
    for row in rows:
        at, drawn = -1, []
        for number in row.split(","):
            at = int(number) if number else at + 1
            drawn.append(table[at])
        pictures.append("".join(drawn))
    return data["controls"], pictures


@pytest.mark.parametrize("name", NAMES)
def test_on_a_page_every_control_moves_and_shows_what_the_explorer_shows(name):
    explorer = getattr(labkit, name)()
    before = repr(explorer)
    html = explorer.html(most=40, budget=60_000)
    controls, pictures = unpacked(html)
    assert [one["label"] for one in controls] == [c.description for c in explorer._controls.values()]
    assert len(pictures) == prod(len(one["names"]) for one in controls)
    lists = prod(len(one["names"]) for one in controls if one["listed"])
    assert len(pictures) <= max(40, lists * 2 ** sum(not one["listed"] for one in controls))
    at = 0
    for one in controls:
        assert len(one["names"]) >= 2
        at = at * len(one["names"]) + one["at"]
    assert pictures[at] == explorer.picture()
    # The first control's last value: what the explorer itself shows there.
    names, first = controls[0]["names"], next(iter(explorer._controls))
    if not controls[0]["listed"]:
        stride = prod(len(one["names"]) for one in controls[1:])
        inner = at % stride
        setattr(explorer, first, int(names[-1]))
        assert pictures[(len(names) - 1) * stride + inner] == explorer.picture()
    else:
        assert repr(explorer) == before


def test_sliders_keep_small_values_lists_all_and_each_where_it_stands():
    rows = Control("rows", range(129), 30, weight=4)
    assert rows.some(6) == [0, 5, 30, 46, 82, 128]
    assert rows.some(500) == list(range(129))
    assert Control("moment", range(101), 7, even=True).some(6) == [7, 20, 40, 60, 80, 100]
    pictures = []

    def drawn(values):
        pictures.append(values)
        return "<svg>" + "".join(f"<g>{hash(values)}</g>" for _ in range(3)) + "</svg>"

    listed = Control("link", ("a", "b", "c"), "b", listed=True)
    controls, packed = unpacked(static_html([rows, listed], drawn, "", most=18))
    assert [len(one["names"]) for one in controls] == [6, 3]
    assert controls[1]["at"] == 1
    assert len(packed) == 18
    small, _ = unpacked(static_html([rows, listed], drawn, "", most=300, budget=500))
    assert len(small[0]["names"]) < 20


def test_it_keeps_its_language_with_and_without_a_kernel():
    labkit.set_language("zh")
    explorer = labkit.CallExplorer()
    labkit.set_language("en")
    html = explorer._repr_mimebundle_()["text/html"]
    assert "调用的步骤" in html
    assert "The batch" not in html
    explorer.gpus = 2
    assert "批次" in explorer._picture.value + explorer._sentence.value
    assert labkit.get_language() == "en"


def test_a_page_of_plans_moves_every_slider_and_leaves_the_model_alone():
    """With three models on five GPUs in it, each slider would keep two values."""
    html = labkit.PlanExplorer().html(most=800, budget=250_000)
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    controls = json.loads(data)["controls"]
    assert [one["listed"] for one in controls] == [False] * 5 + [True]
    assert all(len(one["names"]) >= 3 for one in controls if not one["listed"])


def test_the_time_of_a_plan_stands_beside_the_one_before_on_one_scale():
    """Half of the GPUs take twice the time: on a scale that grew, its bar alone would be the shorter one."""
    explorer = labkit.PlanExplorer(doublings=3)
    assert not any("before" in (box.label or "") for box in explorer.make_picture().boxes)
    explorer.doublings = 2
    explorer.micro = 0  # changes nothing
    widths = {box.label: box.width for box in explorer.make_picture().boxes if "comput" in (box.label or "")}
    assert widths["Llama 3.1 8B compute"] == pytest.approx(
        2 * widths["before your last change compute"], rel=0.02
    )
