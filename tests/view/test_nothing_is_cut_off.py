"""In every picture nothing is cut off and no two texts meet, from nothing to more than there is room for.

Pictures of ranks, which take recordings, are in test_ranks.py; what is shortened is in test_bounds.py.
"""

import pytest
import torch
from torch import nn

import labkit
from labkit.plans.footprint import Occupancy
from labkit.plans.shapes import Cut
from labkit.plans.shards import Shards
from labkit.trace.events import Event
from labkit.trace.trace import Trace
from labkit.view.pictures.call_flow import STEPS, flow_picture
from labkit.view.pictures.charts import curves_picture
from labkit.view.pictures.lanes import (
    batches_picture,
    inputs_picture,
    memory_picture,
    occupancy_picture,
    split_picture,
)  # fmt: skip
from labkit.view.pictures.placement_lanes import placement_picture
from labkit.view.pictures.ring_steps import all_reduce_picture
from labkit.view.pictures.shape_blocks import shapes_picture
from labkit.view.pictures.timeline import timeline_picture
from labkit_ranks.pictures.heat_maps import heat_picture
from labkit_ranks.pictures.shard_lanes import shards_picture
from labkit_ranks.pictures.world_lanes import world_picture

GIB, BILLION = 2**30, 10**9


def splits():
    for rows in (0, 1, 5, 30, 127, 1000, 123_456):
        for gpus in (1, 3, 8, 16, 33, 64):
            yield split_picture(labkit.split(rows, gpus))


def batches():
    for rows, size, options in [
        (0, 3, {}), (0, 4, {"gpus": 2}), (5, 64, {"gpus": 64}), (20, 30, {"drop_last": True}),
        (90, 30, {"drop_last": True}), (100, 30, {}), (100, 30, {"gpus": 3}), (100, 30, {"gpus": 8}),
        (100, 30, {"drop_last": True}), (100, 3, {"gpus": 8}), (1000, 1, {"gpus": 2}), (1000, 7, {"gpus": 2}),
        (12_345, 1000, {"gpus": 8}), (10**6, 1, {}), (10**6, 10**6, {"gpus": 64}),
    ]:  # fmt: skip
        yield batches_picture(labkit.batches(rows, size, **options))


def calls():
    for rows, gpus in [(10, 1), (10, 3), (10, 8), (128, 8), (128, 64), (5, 64), (0, 3), (9, 9), (7, 5)]:
        for step in (None, *range(len(STEPS))):
            yield flow_picture(labkit.split(rows, gpus), step)
    for rows, gpus in [(30, 2), (2, 2), (9, 3), (16, 8)]:  # forward alone, where the lanes are low
        with labkit.simulate(gpus=gpus), labkit.record() as trace:
            nn.DataParallel(nn.Linear(5, 2).to("cuda:0"))(torch.randn(rows, 5))
        yield flow_picture(trace)


def shapes():
    crnn = (65, 32, 5530)
    for shape, gpus, dim in [
        *((crnn, gpus, 1) for gpus in (1, 2, 3, 8, 64)), (crnn, 64, 2), (crnn, 2, 0), ((9,), 4, 0), ((3, 10), 8, 1),
        ((10, 20, 30, 40, 50), 64, 4), ((0, 3), 2, 0), ((1000, 33), 4, 1), ((2, 0), 3, 1),
    ]:  # fmt: skip
        yield shapes_picture(shape, gpus, batch_dim=dim)


def inputs():
    many = tuple((f"photos[{at}]", (3, 9, at + 1)) for at in range(80))
    for tensors, gpus in [
        ((("traffic", (8, 6, 4)), ("roads", (14, 2))), 2), ((("scale", (1, 5)),), 4), ((("clicks", (35,)),), 64),
        (many, 3), ((), 2),
    ]:  # fmt: skip
        yield inputs_picture(Cut(tensors, gpus))
    yield inputs_picture(Cut((("tokens", (8, 7)),), 2, ("[4, 7, 6]", "")))
    yield inputs_picture(Cut((("photos[0]", (3, 7, 7)),), 2, ("", "[1, 4]")))


def all_reduces():
    for way in (labkit.ring_all_reduce, labkit.star_all_reduce):
        for ranks, step in [(1, 0), (2, 1), (4, 0), (4, 6), (9, 3), (16, 30)]:
            yield all_reduce_picture(way(ranks, step))
        for ranks in (1, 4, 8, 64):
            yield all_reduce_picture(way(ranks))


def memory():
    kinds = {"weights": GIB // 2, "activations": 90 << 20, "outputs": 8 << 20, "optimizer": GIB}
    for gpus in (1, 3, 8, 16, 33, 64):
        for capacity in (None, 1, 4 * GIB, 80 * GIB):
            for rows in (0, 100):
                yield memory_picture(labkit.data_parallel_memory(rows, gpus, **kinds, capacity=capacity))
        yield occupancy_picture(Occupancy(tuple(k * GIB // 4 for k in range(gpus)), (16 * GIB,) * gpus))


def placements():
    for found in [
        labkit.placement([1, 0]), labkit.placement([1, 0], "cuda:0", rows=1, output_device=2, gpus=4),
        labkit.placement([0, 1], module=1), labkit.placement([0, 1], "cuda:1", output_device="cpu", rows=0),
        labkit.placement([0], rows=5), labkit.placement([], rows=5), labkit.placement(range(8), rows=128),
        labkit.placement([63, *range(63)], "cuda:40", output_device=50, rows=100),
        labkit.placement([2, 1, 0], rows=10**12, module="cpu"),
    ]:  # fmt: skip
        yield placement_picture(found)


def timelines():
    for gpus in (1, 3, 8, 16, 33, 64):
        steps = ("scatter", "replicate", "parallel_apply", "gather")
        phases = [(phase, way) for way in ("forward", "backward") for phase in steps]
        trace = Trace([
            Event(phase, "cuda:0" if phase == "gather" else f"cuda:{gpu}", direction=way, start=at * 1e-3, seconds=1e-3,
                  source=None if phase == "parallel_apply" else "cpu")
            for at, (phase, way) in enumerate(phases) for gpu in range(gpus)
        ])  # fmt: skip
        for moment in (None, 0.0, 0.0035, 1.0):
            yield timeline_picture(trace, moment)
    yield timeline_picture(Trace([]))
    yield timeline_picture(Trace([Event("copy", "cpu", start=3.0)]))


def charts():
    same = [1.37, 0.65, 0.5]
    for losses in [
        {"one_gpu": same, "data_parallel": same, "mean_of_means": [1.37, 0.8, 0.78]}, {"mine": [0.0]},
        {"one": [1e-9, 0], "two": [1e6, 2]},
    ]:  # fmt: skip
        yield curves_picture(labkit.Curves(**losses))


def ranks():
    for count in (1, 9, 64, 1024):
        yield shards_picture(Shards(1, count, BILLION, BILLION))
        yield heat_picture(labkit.HeatMaps({"W": [torch.randn(3, 5)] * count}))
    yield shards_picture(Shards(2, 4, BILLION, BILLION, 3 * BILLION))
    for each in (1, 2, 5, 8):
        yield world_picture(4, each, "RANK")


KINDS = [splits, batches, calls, shapes, inputs, all_reduces, memory, placements, timelines, charts, ranks]


@pytest.mark.parametrize("drawn", KINDS, ids=lambda drawn: drawn.__name__)
def test_nothing_is_cut_off_and_no_texts_meet(drawn, language, sound):
    for picture in drawn():
        sound(picture)
        assert picture.texts, "an empty picture says nothing"
