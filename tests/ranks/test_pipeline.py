"""Pipelines, meshes and routing as integers: against formulas, PyTorch's schedules, DeviceMesh and autograd."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

import labkit
from labkit_ranks.pictures.expert_lanes import experts_picture
from labkit_ranks.pictures.mesh_rows import mesh_picture
from labkit_ranks.pictures.pipeline_lanes import pipelines_picture
from labkit_ranks.plans.experts import TOKENS, Routing
from labkit_ranks.plans.mesh import Mesh, bytes_sent

SIZES = [(stages, pieces) for stages in (1, 2, 3, 4, 8) for pieces in (1, 2, 3, 4, 7, 16, 32)]


@pytest.mark.parametrize(("stages", "pieces"), SIZES)
@pytest.mark.parametrize("backward", [1, 2, 3])
def test_both_schedules_are_equally_long_and_keep_what_the_formulas_say(stages, pieces, backward):
    gpipe, one = (labkit.pipeline(name, stages, pieces, backward=backward) for name in ("GPipe", "1F1B"))
    assert gpipe.length == one.length == (pieces + stages - 1) * (1 + backward)
    assert gpipe.bubble == one.bubble == pytest.approx((stages - 1) / (pieces + stages - 1))
    assert [gpipe.peak(stage) for stage in range(stages)] == [pieces] * stages
    assert [one.peak(stage) for stage in range(stages)] == [min(pieces, stages - at) for at in range(stages)]


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "zero bubble"])
def test_no_task_begins_before_what_it_needs_and_a_stage_does_one_at_a_time(name):
    found = labkit.pipeline(name, 4, 7)
    stops = {(at, task.name): task.stop for at, tasks in enumerate(found.stages) for task in tasks}
    for at, tasks in enumerate(found.stages):
        assert all(one.stop <= other.start for one, other in zip(tasks, tasks[1:], strict=False))
        for task in tasks:
            before = (at + {"F": -1, "B": 1, "W": 0}[task.name[0]], task.name.replace("W", "B"))
            assert task.start >= stops.get(before, 0)


@pytest.mark.parametrize(("stages", "pieces"), [(p, m) for p, m in SIZES if m >= p])
def test_zero_bubble_waits_a_forward_for_each_stage_and_keeps_as_much_on_each_as_1f1b_on_the_first(
    stages, pieces
):
    found = labkit.pipeline("zero bubble", stages, pieces)
    assert found.length == 3 * pieces + stages - 1
    assert [found.peak(stage) for stage in range(stages)] == [stages] * stages


@pytest.mark.parametrize(("stages", "rounds"), [(1, 1), (2, 1), (2, 3), (4, 2), (8, 2)])
def test_an_interleaved_schedule_is_pytorchs_halves_the_bubble_and_keeps_more(stages, rounds):
    pieces = stages * rounds
    found = labkit.pipeline("interleaved 1F1B", stages, pieces)
    assert found.length == 3 * (pieces + (stages - 1) / 2)
    if rounds > 1:
        assert found.peak(0) == stages + (stages - 1) / 2
    theirs = SimpleNamespace(
        n_local_stages=2, microbatches_per_round=stages, pp_group_size=stages, _n_microbatches=pieces
    )
    for rank in range(stages):
        actions = ScheduleInterleaved1F1B._calculate_single_rank_operations(theirs, rank)
        wanted = [
            f"{'FB'[one.computation_type.name != 'FORWARD']}{one.microbatch_index}.{one.stage_index // stages}"
            for one in actions
            if one
        ]
        assert [task.name for task in found.stages[rank]] == wanted


def test_an_interleaved_schedule_needs_whole_rounds():
    with pytest.raises(ValueError, match="micro_batches must be a multiple of the 4 stages, got 6"):
        labkit.pipeline("interleaved 1F1B", 4, 6)


def test_orders_of_ones_own_are_run_and_those_that_cannot_be_are_refused():
    found = labkit.pipeline(lambda stage, stages, count: ["F0", "B0", "F1", "B1"], 3, 2)
    assert (found.length, found.peak(0)) == (18, 1)  # one micro-batch after the other
    with pytest.raises(ValueError, match=r"no stage can go on \(stage 0: B0, stage 1: B0\)"):
        labkit.pipeline(lambda stage, stages, count: ["B0", "F0"], 2, 1)
    with pytest.raises(ValueError, match=r"order\(0, 2, 2\) must be F and B of each micro-batch, once"):
        labkit.pipeline(lambda stage, stages, count: ["F0", "B0"], 2, 2)
    with pytest.raises(ValueError, match="order must be one of 'GPipe', '1F1B', .*, got '1F1b'"):
        labkit.pipeline("1F1b", 2, 2)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 2), (1, 4, 2)])
def test_a_meshs_groups_are_those_of_pytorch(sizes):
    mesh, count = Mesh(("dp", "pp", "tp"), sizes), sizes[0] * sizes[1] * sizes[2]

    def theirs():
        made = init_device_mesh("cuda", sizes, mesh_dim_names=mesh.names)
        groups = [dist.get_process_group_ranks(made[name].get_group()) for name in mesh.names]
        return tuple(made.get_coordinate()), groups

    with labkit.ranks(count) as ranks:
        for rank, (coordinate, groups) in enumerate(ranks.run(theirs)):
            assert mesh.coordinate(rank) == coordinate
            for name, members in zip(mesh.names, groups, strict=True):
                assert [[*group] for group in mesh.groups(name) if rank in group] == [members]


def test_the_inner_dimension_stays_on_a_node():
    assert Mesh(("dp", "pp", "tp"), (4, 4, 8)).crossing("tp") == 0
    assert Mesh(("tp", "pp", "dp"), (8, 4, 4)).crossing("tp") == 16


@pytest.mark.parametrize(("stages", "pieces"), [(1, 1), (4, 8), (7, 8), (8, 16)])
def test_nothing_of_a_pipeline_is_clipped(language, stages, pieces, sound):
    picture = pipelines_picture([labkit.pipeline(name, stages, pieces) for name in ("GPipe", "1F1B")])
    sound(picture)
    assert len([box for box in picture.boxes if " F" in box.label]) == 2 * stages * pieces
    assert picture.description.count(f"{3 * (stages + pieces - 1)} ") == 1  # of both schedules


@pytest.mark.parametrize("name", ["interleaved 1F1B", "zero bubble"])
def test_schedules_with_chunks_and_split_backwards_are_drawn_whole(language, name, sound):
    found = labkit.pipeline(name, 4, 8)
    picture = pipelines_picture([found])
    sound(picture)
    drawn = [
        box.label.partition(" ")[2].split()[1] for box in picture.boxes if box.label.startswith("stage 2 ")
    ]
    assert drawn == ["waits", *(task.name for task in found.stages[2])]


def an_order_with_a_name_that_is_long(stage, stages, pieces):
    return [f"F{number}" for number in range(pieces)] + [f"B{number}" for number in range(pieces)]


def test_an_order_of_ones_own_fits_the_picture_whatever_its_name(sound):
    sound(pipelines_picture([labkit.pipeline(an_order_with_a_name_that_is_long, 4, 8)]))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 4, 8), (1, 1, 1)])
def test_a_group_lights_up(language, sizes, sound):
    mesh = Mesh(("dp", "pp", "tp"), sizes)
    picture = mesh_picture(mesh, "pp", 0)
    sound(picture)
    lit = {int(box.label.split()[1]) for box in picture.boxes if box.label and not box.tint}
    assert lit == {*mesh.groups("pp")[0]}


@pytest.mark.parametrize(("order", "dashed"), [("dp, pp, tp", 0), ("tp, pp, dp", 3)])
def test_a_mesh_has_its_bytes_on_the_links_of_the_group(language, order, dashed, sound):
    explorer = labkit.MeshExplorer(dp=4, pp=2, tp=4, lit="tp", rank=5, node=8, order=order)
    picture = explorer.make_picture()
    sound(picture)
    assert "6.4 GB" in [text.text for text in picture.texts]
    assert sum(line.dashed for line in picture.lines) == dashed
    assert ("network" in explorer.sentence()) == (language == "en" and dashed > 0)


def test_a_dashed_link_does_not_run_through_the_bytes_on_it():
    picture = labkit.MeshExplorer(dp=2, pp=2, tp=4, lit="tp", rank=5, node=5).make_picture()
    (label,) = (text for text in picture.texts if text.text == "6.4 GB")
    (line,) = (line for line in picture.lines if line.dashed)
    assert label.anchor == "start"
    assert label.x > max(line.x1, line.x2)


def test_bytes_along_a_mesh_are_those_of_lesson_17():
    sent = bytes_sent(2, 2, 2)
    assert (sent["tp"], sent["pp"]) == (4 * 16 * 8192 * 4096 * 2, 8192 * 4096 * 2)
    assert sent["dp"] == 2 * 8_030_261_248 / 4
    assert bytes_sent(1, 1, 1) == {"tp": 0, "pp": 0, "dp": 0}
    assert bytes_sent(1, 4, 1)["pp"] == 2 * 8192 * 4096 * 2  # a middle stage: one on, one back


ROUTINGS = [Routing(4, 2, 125, 1), Routing(4, 0, 400, 2), Routing(3, 5, 50, 2), Routing(1, 0, 100, 1)]


def by_autograd(routing, ranks):
    """The gradient of the bias that is added to all scores."""
    bias = torch.zeros(routing.ranks, dtype=torch.float64, requires_grad=True)
    loss = torch.zeros((), dtype=torch.float64)
    for rank in ranks:
        for token, (weights, losses) in enumerate(routing._drawn[rank]):
            now = (torch.tensor(weights, dtype=torch.float64).log() + bias).softmax(0)
            loss = loss + sum(now[e] * losses[e] for r, t, e in routing.kept if (r, t) == (rank, token))
    (loss / (len(ranks) * TOKENS)).backward()
    return bias.grad.tolist()


@pytest.mark.parametrize("routing", ROUTINGS, ids=repr)
def test_the_routers_gradient_is_that_of_autograd_and_one_gpus_is_the_mean_of_the_ranks(routing):
    every = range(routing.ranks)
    for ranks in (every, [0], [routing.ranks - 1]):
        assert routing.gradient(ranks) == pytest.approx(by_autograd(routing, ranks), abs=1e-9)
    parts = [routing.gradient([rank]) for rank in every]
    assert routing.gradient(every) == pytest.approx(
        [sum(one) / routing.ranks for one in zip(*parts, strict=True)]
    )


@pytest.mark.parametrize("routing", ROUTINGS, ids=repr)
def test_an_expert_takes_rows_up_to_its_capacity_and_no_row_is_lost_before_that(routing):
    sent = [row for rows in routing.arrivals for row in rows]
    assert len(sent) == len(set(sent)) == routing.ranks * TOKENS * min(routing.k, routing.ranks)
    columns = [sum(column) for column in zip(*routing.counts, strict=True)]
    assert columns == [min(len(rows), routing.room) for rows in routing.arrivals]


def test_skew_fills_expert_0_and_leaves_the_others_less():
    shares = [len(Routing(4, skew, 400, 1).arrivals[0]) for skew in range(6)]
    assert shares == sorted(shares)
    assert shares[0] < 14 < 24 < shares[-1]


@pytest.mark.parametrize("routing", ROUTINGS, ids=repr)
def test_the_picture_has_every_row_once_and_bars_as_high_as_the_gradient(routing, language, sound):
    picture = experts_picture(routing)
    sound(picture)
    rows = [box for box in picture.boxes if box.label.startswith("expert ")]
    assert sum(" drops " not in box.label for box in rows) == len(routing.kept)
    assert sum(" drops " in box.label for box in rows) == sum(map(len, routing.arrivals)) - len(routing.kept)
    bars = {box.label: box.height for box in picture.boxes if box.label.startswith("router ")}
    for rank in range(routing.ranks):
        found, part = [bars[f"router {e} of {rank}"] for e in range(routing.ranks)], routing.gradient([rank])
        most = max(map(abs, part))
        tallest = max(found)
        assert found == pytest.approx([abs(value) / (most or 1) * tallest for value in part])


def test_each_arrow_looks_like_one_of_the_key():
    lines = [line for line in experts_picture(ROUTINGS[0]).lines if line.arrow]
    looks = [(line.muted, line.strong) for line in lines]
    assert looks[:3] == [(True, False), (False, False), (False, True)]
    assert set(looks[3:]) <= set(looks[:3])
