"""The cost model: what it says of published figures, and what must hold of any prediction."""

from dataclasses import replace

import pytest

import labkit
from labkit.cost import (
    PROFILES,
    Hardware,
    Workload,
    all_reduce_seconds,
    data_parallel_step,
    ddp_step,
    perfect_step,
    predict_scaling,
    step_trace,
)
from labkit.cost.published import ALL_REDUCE, BERT, FIGURES, GPT2, RESNET50, mean_errors, report

NVLINK = PROFILES["v100-nvlink"]


def test_the_model_beats_perfect_scaling_on_what_it_was_not_fitted_to():
    kept = tuple(figure for figure in FIGURES if not figure.fitted)
    error, null = mean_errors(kept)
    assert len(kept) >= 8
    assert error < 0.03
    assert null > 0.08
    assert all(abs(figure.error) < abs(figure.null_error) for figure in kept)


def test_what_was_fitted_fits():
    assert all(abs(figure.error) < 0.01 for figure in FIGURES if figure.fitted)


def test_the_report_has_every_figure_with_both_errors():
    lines = report().splitlines()
    assert len(lines) == len(FIGURES) + 2
    assert "fitted: ddp_overhead" in lines[1]
    assert "model 2." in lines[-1]
    assert "null 8." in lines[-1]


def test_an_all_reduce_on_eight_h200():
    errors = [
        all_reduce_seconds(size, PROFILES["h200"], 8) / (size / speed) - 1 for size, speed in ALL_REDUCE
    ]
    assert abs(errors[0]) < 0.01
    assert abs(errors[-1]) < 0.01
    assert sum(map(abs, errors)) / len(errors) < 0.09  # what a straight line can do


def test_one_gpu_has_nothing_to_move():
    assert data_parallel_step(RESNET50, NVLINK, 32, 1).seconds == perfect_step(RESNET50, 32, 1).seconds
    assert dict(ddp_step(RESNET50, NVLINK, 32, 1).parts)["all-reduce"] == 0


def test_dataparallel_can_be_ahead_where_all_reduce_is_slow():
    work = replace(GPT2, output_bytes=4)
    slow = PROFILES["titan-pcie"]
    assert data_parallel_step(work, slow, 8, 2).seconds < ddp_step(work, slow, 8, 2).seconds
    assert data_parallel_step(work, NVLINK, 8, 2).seconds > ddp_step(work, NVLINK, 8, 2).seconds


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_the_slowest_gpu_sets_the_pace_and_more_bytes_cost_more(gpus):
    base = data_parallel_step(RESNET50, NVLINK, 33, gpus)
    assert dict(base.parts)["backward"] == pytest.approx(-(-33 // gpus) * RESNET50.seconds_per_row * 2 / 3)
    for bytes_of in ("parameter_bytes", "input_bytes", "output_bytes", "gradient_bytes"):
        more = replace(RESNET50, **{bytes_of: 10**9})
        assert data_parallel_step(more, NVLINK, 33, gpus).seconds > base.seconds
    for name, value in (("copy_bandwidth", 1e9), ("latency", 0.1), ("replica_overhead", 0.1)):
        slower = replace(NVLINK, **{name: value})
        assert data_parallel_step(RESNET50, slower, 33, gpus).seconds > base.seconds, name
    assert ddp_step(replace(RESNET50, parameter_bytes=10**12), NVLINK, 33, gpus).seconds > 1


def test_an_all_reduce_between_machines_is_slower():
    inside, between = (all_reduce_seconds(10**8, NVLINK, gpus) for gpus in (8, 9))
    assert between > 2 * inside


@pytest.mark.parametrize(("rows", "gpus"), [(32, 1), (32, 2), (30, 8), (5, 8), (1, 3)])
def test_the_trace_of_a_step_lasts_as_long_as_the_step(rows, gpus):
    step = data_parallel_step(GPT2, NVLINK, rows, gpus)
    trace = step_trace(GPT2, NVLINK, rows, gpus)
    last = max(event.stop for event in trace)
    assert last <= step.seconds + 1e-12
    assert last >= 0.99 * step.seconds - 1e-4
    working = min(gpus, len(labkit.split(rows, gpus).pieces))
    assert len(trace.only(phase="parallel_apply")) == 2 * working
    assert len(trace.only(phase="gather", direction="forward", device="cuda:0")) == working - 1
    home = sorted((event.start, event.stop) for event in trace.only(phase="gather", direction="forward"))
    assert all(one[1] <= other[0] + 1e-12 for one, other in zip(home, home[1:], strict=False))


def test_scaling_knows_its_limits():
    found = predict_scaling(BERT, PROFILES["v100-dlperf"], (1, 8, 16, 4096))
    assert found.seconds["data_parallel"][2:] == (None, None)
    assert found.efficiency("perfect") == (1, 1, 1, 1)
    assert found.throughput("perfect")[1] == pytest.approx(8 * 119.6)
    assert found.efficiency("ddp")[1] > 0.9 > found.efficiency("ddp")[2]
    assert repr(found).startswith("32 rows per GPU on V100, NVLink, 100 Gb Ethernet; DDP on GPUs 1: 276 ms")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Workload(-1, 3), ValueError, "seconds_per_row must be at least 0, got -1"),
        (lambda: Workload("1", 3), TypeError, "seconds_per_row must be a number, got '1'"),
        (lambda: Hardware("x", 0, 1), ValueError, "copy_bandwidth must be above 0, got 0"),
        (lambda: Hardware("x", 1, 1, latency=-1), ValueError, "latency must be at least 0, got -1"),
        (lambda: Hardware("x", 1, "1"), TypeError, "reduce_bandwidth must be a number, got '1'"),
        (
            lambda: data_parallel_step(BERT, NVLINK, 9, 9),
            ValueError,
            "gpus must be at most 8, the GPUs of one",
        ),
        (lambda: predict_scaling(BERT, NVLINK, ()), ValueError, "counts must name at least one"),
        (lambda: predict_scaling(BERT, NVLINK, rows=0), ValueError, "rows must be at least 1, got 0"),
    ],
)
def test_bad_input_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
