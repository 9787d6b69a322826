"""The picture of a placement: a lane for each device, its things in it, arrows from where they come from."""

import pytest
import torch
from torch import nn

import labkit
from labkit.view.palette import CPU
from labkit.view.pictures.placement_lanes import placement_picture


def lane_of(picture, shape):
    """The device in whose lane a box or an end of a line is."""
    y = shape if isinstance(shape, float) else shape.y + shape.height / 2
    (lane,) = [box for box in picture.boxes if box.label.endswith(" lane") and box.y < y < box.y + box.height]
    return lane.label.removesuffix(" lane")


def where(picture):
    """The things in each lane."""
    things = ("module", "input", "replica", "piece", "output", "idle", "no module")
    return {(lane_of(picture, box), box.label) for box in picture.boxes if box.label in things}


def test_everything_stands_in_the_lane_of_its_device_and_has_its_colour():
    picture = placement_picture(labkit.placement([1, 0], output_device=2))
    assert where(picture) == {
        ("cpu", "input"), ("cuda:1", "module"), ("cuda:2", "output"),
        *((f"cuda:{gpu}", thing) for gpu in (0, 1) for thing in ("replica", "piece")),
    }  # fmt: skip
    for box in picture.boxes:
        if box.gpu is not None:
            assert lane_of(picture, box) == ("cpu" if box.gpu == CPU else f"cuda:{box.gpu}")
    texts = {text.text for text in picture.texts}
    assert {"replica 0", "rows 0–3", "replica 1", "rows 4–6", "input: 7 rows", "output: 7 rows"} <= texts


def test_home_is_the_first_id_and_alone_is_marked():
    picture = placement_picture(labkit.placement([1, 0]))
    assert [box.label for box in picture.boxes if box.strong] == ["cuda:1 lane"]
    (mark,) = [text for text in picture.texts if text.text == "⌂ home device"]
    assert lane_of(picture, mark.y) == "cuda:1"


def test_arrows_go_from_the_module_and_the_input_to_each_replica_and_on_to_the_output():
    picture = placement_picture(labkit.placement([1, 0], "cuda:0"))
    ways = [(lane_of(picture, line.y1), lane_of(picture, line.y2), line.arrow) for line in picture.lines]
    assert sorted(ways) == sorted(
        [
            ("cuda:1", "cuda:1", False), ("cuda:0", "cuda:1", True), ("cuda:1", "cuda:1", False),
            ("cuda:1", "cuda:0", True), ("cuda:0", "cuda:0", False), ("cuda:0", "cuda:1", True),
        ]
    )  # fmt: skip


def test_a_module_that_is_not_at_home_is_pointed_out_with_pytorchs_words():
    found = labkit.placement([0, 1], module=1)
    picture = placement_picture(found)
    assert where(picture) == {("cpu", "input"), ("cuda:1", "module"), ("cuda:0", "no module")}
    assert not picture.lines
    told = " ".join(text.text for text in picture.texts if text.mono)
    with labkit.simulate(gpus=2), pytest.raises(RuntimeError) as error:
        nn.DataParallel(nn.Linear(5, 2).cuda(1))(torch.randn(7, 5))
    assert told == f"RuntimeError: {error.value}" == repr(found)


@pytest.mark.parametrize(("ids", "output"), [([1, 0], None), ([2, 0, 1], 0), ([1], None), (None, 2)])
def test_a_wrapped_model_is_read_as_it_runs(wrap, ids, output):
    with labkit.simulate(gpus=3):
        home = (ids or [0])[0]
        model = wrap(nn.BatchNorm1d(5).cuda(home), ids, output_device=output)
        batch = torch.randn(8, 5, device="cuda:2")
        found = labkit.placement(model, batch)
        with labkit.record() as trace:
            there = str(model(batch).device)
    assert found.output == there
    assert found.module == found.home == f"cuda:{home}"
    assert found.batch == "cuda:2"
    given = [(event.device, event.shapes[0][0]) for event in trace.only(phase="scatter", direction="forward")]
    assert given == [
        (name, piece.rows) for name, piece in zip(found.replicas, found.plan.pieces, strict=True)
    ]


def test_one_buffer_elsewhere_is_found_and_an_output_on_the_cpu_shown():
    with labkit.simulate(gpus=2):
        module = nn.BatchNorm1d(5).cuda(0)
        model = labkit.DataParallel(module, output_device="cpu")
        assert (labkit.placement(model).output, labkit.placement(model).error) == ("cpu", "")
        module.running_var = module.running_var.cuda(1)
        found = labkit.placement(model)
        with pytest.raises(RuntimeError, match="found one of them on device: cuda:1"):
            model(torch.randn(7, 5))
    assert (found.module, found.home) == ("cuda:1", "cuda:0")


def test_without_a_gpu_the_module_itself_is_called():
    found = labkit.placement(nn.DataParallel(nn.Linear(5, 2)), torch.randn(7, 5))
    assert found.replicas == ()
    assert where(placement_picture(found)) == {
        ("cpu", thing) for thing in ("input", "module", "replica", "piece", "output")
    }


def test_gpus_without_work_are_shown_and_of_many_some_are_counted():
    picture = placement_picture(labkit.placement([1, 0], rows=1, gpus=3))
    assert ("cuda:0", "idle") in where(picture)
    assert [lane_of(picture, t.y) for t in picture.texts if t.text == "not in device_ids"] == ["cuda:2"]
    texts = {t.text for t in placement_picture(labkit.placement(range(64), rows=50)).texts}
    assert "… 58 more GPUs, 45 of them with a replica …" in texts


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: labkit.placement(5), TypeError, "model must be a model wrapped in DataParallel.* got 5 "),
    (lambda: labkit.placement([0, 0]), ValueError, r"device_ids must be GPUs, each named once, got \[0, 0\]"),
    (lambda: labkit.placement([0, "x"]), ValueError, "device_ids must be a device such as 'cuda:1', got 'x'"),
    (lambda: labkit.placement([True]), ValueError, "device_ids must be a device"),
    (lambda: labkit.placement([0], "cuda:1025"), ValueError, "batch must be from 0 to 1023, got 1025"),
    (lambda: labkit.placement([0], 5), TypeError, "batch must be a tensor with rows.* got 5 "),
    (lambda: labkit.placement([0], rows=-1), ValueError, "must be at least 0, got -1"),
    (lambda: labkit.placement([0, 3], gpus=2), ValueError, "gpus must be from 4 to 1024, got 2"),
    (lambda: labkit.draw_placement(5), TypeError, "data must be what labkit.placement gives, got 5"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_it_says_itself_in_words():
    found = labkit.placement([1, 0])
    assert repr(found) == "home cuda:1; rows: cuda:1 4, cuda:0 3; output on cuda:1"
    assert placement_picture(found).description == (
        "Home is cuda:1: the module is there. The input comes from cpu: cuda:1 gets 4 rows, cuda:0 gets 3 rows. "
        "The output is on cuda:1."
    )
    labkit.set_language("zh")
    assert placement_picture(found).description == (
        "主设备是 cuda:1，模块在那里。输入从 cpu 分发：cuda:1 得 4 行，cuda:0 得 3 行。输出在 cuda:1 上。"
    )
