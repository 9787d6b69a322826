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
    step_trace,
)
from labkit.cost.published import BERT, FIGURES, GPT2, RESNET50

NVLINK = PROFILES["v100-nvlink"]

# NCCL's all-reduce on 8 H200: bytes, and bytes per second. The first and the last fitted latency and bandwidth.
ALL_REDUCE = (
    (32 * 2**10, 0.82e9), (2**20, 22.8e9), (16 * 2**20, 125.7e9), (64 * 2**20, 198.0e9), (256 * 2**20, 249.2e9),
    (16 * 2**30, 275.6e9),
)  # fmt: skip


def test_the_model_beats_perfect_scaling_on_what_it_was_not_fitted_to():
    kept = tuple(figure for figure in FIGURES if not figure.fitted)
    assert len(kept) >= 8
    errors = [abs(figure.error) for figure in kept]
    perfect = [perfect_step(one.work, one.rows * one.gpus, one.gpus).seconds for one in kept]
    nulls = [abs(seconds / one.seconds - 1) for one, seconds in zip(kept, perfect, strict=True)]
    assert sum(errors) / len(kept) < 0.02
    assert sum(nulls) / len(kept) > 0.07
    pairs = zip(kept, errors, nulls, strict=True)
    assert all(error < null for figure, error, null in pairs if figure.gpus > 1)


def test_sums_beside_backward_slow_it_on_models_that_were_not_fitted_to():
    """Three ResNets on 1 to 16 GPUs: 1.6 %; without contention, which one GPU does not have, 3.6 %."""
    kept = [figure for figure in FIGURES if figure.work is not RESNET50 and figure.what.startswith("ResNe")]
    without = [replace(figure, hardware=replace(figure.hardware, ddp_contention=0.0)) for figure in kept]
    errors = [sum(abs(figure.error) for figure in some) / 15 for some in (kept, without)]
    assert errors == pytest.approx([0.0164, 0.036], abs=0.001)


def test_what_was_fitted_fits():
    assert all(abs(figure.error) < 0.01 for figure in FIGURES if figure.fitted)


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
    assert data_parallel_step(work, NVLINK, 32, 8).seconds > ddp_step(work, NVLINK, 32, 8).seconds


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


# Round numbers: 10 rows on 4 GPUs are pieces of 3, 3, 3 and 1, so that 7 rows and 3 messages leave cuda:0.
WORK = Workload(0.003, 10**8, input_bytes=10**6, output_bytes=10**5, gradient_bytes=2 * 10**5)
LINKS = Hardware(
    "x", copy_bandwidth=1e9, reduce_bandwidth=2e9, latency=1e-3, machine_size=4, network_bandwidth=5e8,
    network_latency=2e-3, replica_overhead=5e-3, ddp_overhead=0.1, ddp_contention=0.2,
)  # fmt: skip


def test_every_part_of_a_dataparallel_step_has_its_seconds():
    assert dict(data_parallel_step(WORK, LINKS, 10, 4).parts) == pytest.approx(
        {
            "scatter": 0.007 + 0.003, "replicate": 0.1 + 0.003, "forward": 0.003 + 4 * 0.005,
            "gather": 0.0007 + 0.003, "gather backward": 0.0014 + 0.003, "backward": 0.006,
            "reduce": 0.1 + 0.003,
        }
    )  # fmt: skip


def test_every_part_of_a_ddp_step_has_its_seconds():
    reduce = 6 * (10**8 / 4 / 2e9 + 1e-3)  # each of 4 ranks sends 6 of 4 quarters
    short = {"forward": 0.0033, "backward": 0.0066 * 1.2, "all-reduce": reduce - 0.0066 * 1.2}
    assert dict(ddp_step(WORK, LINKS, 10, 4).parts) == pytest.approx(short)
    # Where backward is long enough, the last bucket still comes after it.
    long = {"forward": 0.11, "backward": 0.22 * 1.2, "all-reduce": reduce * 25 * 2**20 / 10**8}
    assert dict(ddp_step(WORK, LINKS, 400, 4).parts) == pytest.approx(long)
    assert all_reduce_seconds(10**8, LINKS, 5) == pytest.approx(8 * (10**8 / 5 / 5e8 + 2e-3))
    # A ring is as fast as its slowest link, which may be inside a machine.
    fast = replace(LINKS, network_bandwidth=9e9)
    assert all_reduce_seconds(10**8, fast, 5) == pytest.approx(8 * (10**8 / 5 / 2e9 + 2e-3))


def test_the_trace_of_a_step_has_every_copy_with_its_bytes_and_time():
    trace = step_trace(WORK, LINKS, 10, 4)

    def told(phase, direction):
        found = trace.only(phase=phase, direction=direction)
        return [(e.device, e.source, e.nbytes, round(e.start, 6), round(e.seconds, 6)) for e in found]

    assert told("scatter", "forward") == [
        ("cuda:1", "cuda:0", 3_000_000, 0.0, 0.003333),
        ("cuda:2", "cuda:0", 3_000_000, 0.003333, 0.003333),
        ("cuda:3", "cuda:0", 1_000_000, 0.006667, 0.003333),
    ]
    assert told("replicate", "forward") == [(f"cuda:{k}", "cuda:0", 10**8, 0.01, 0.103) for k in (1, 2, 3)]
    # Replicas start one after the other; the one with a third of the rows computes for a third of the time.
    assert told("parallel_apply", "forward") == [
        ("cuda:0", None, 0, 0.118, 0.003), ("cuda:1", None, 0, 0.123, 0.003),
        ("cuda:2", None, 0, 0.128, 0.003), ("cuda:3", None, 0, 0.133, 0.001),
    ]  # fmt: skip
    assert [event[:3] for event in told("gather", "forward")] == [
        ("cuda:0", f"cuda:{k}", nbytes) for k, nbytes in ((1, 300_000), (2, 300_000), (3, 100_000))
    ]
    assert [event[:3] for event in told("gather", "backward")] == [
        (f"cuda:{k}", "cuda:0", nbytes) for k, nbytes in ((1, 600_000), (2, 600_000), (3, 200_000))
    ]
    assert [event[4] for event in told("parallel_apply", "backward")] == [0.006] * 3 + [0.002]
    assert told("replicate", "backward") == [("cuda:0", f"cuda:{k}", 10**8, 0.1501, 0.103) for k in (1, 2, 3)]


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: Workload(-1, 3), ValueError, "seconds_per_row must be at least 0, got -1"),
    (lambda: Workload("1", 3), TypeError, "seconds_per_row must be a number, got '1'"),
    (lambda: Hardware("x", 0, 1), ValueError, "copy_bandwidth must be above 0, got 0"),
    (lambda: Hardware("x", 1, 1, machine_size=0), ValueError, "machine_size must be above 0, got 0"),
    (lambda: Hardware("x", 1, 1, latency=-1), ValueError, "latency must be at least 0, got -1"),
    (lambda: Hardware("x", 1, "1"), TypeError, "reduce_bandwidth must be a number, got '1'"),
    (lambda: data_parallel_step(BERT, NVLINK, 9, 9), ValueError, "gpus must be at most 8, the GPUs of one"),
    (lambda: Workload(float("nan"), 3), ValueError, "seconds_per_row must be at least 0, got nan"),
    (lambda: Hardware("x", 1, 1, machine_size=True), TypeError, "machine_size must be a number, got True"),
])  # fmt: skip
def test_bad_input_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_where_there_is_no_network_gpus_end_with_the_machine():
    assert all_reduce_seconds(1000, PROFILES["titan-pcie"], 2) > 0
    with pytest.raises(ValueError, match=r"gpus must be at most 2, the GPUs of 2 × TITAN RTX, PCIe,"):
        all_reduce_seconds(1000, PROFILES["titan-pcie"], 4)
    with pytest.raises(ValueError, match="which has no network, got 16"):
        all_reduce_seconds(1000, Hardware("mine", 1e9, 1e9), 16)
