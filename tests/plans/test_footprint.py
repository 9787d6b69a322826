"""The memory of a DataParallel step: the model against the simulated machine, which counts real bytes."""

import pytest
import torch
from torch import nn

import labkit
from labkit.plans.footprint import Footprint, Footprints, million_parameters


def test_home_holds_what_the_others_do_not():
    found = labkit.data_parallel_memory(30, 3, weights=100, activations=7, outputs=2, optimizer=200).gpus
    assert found[0] == Footprint(100, 70, 20 + 60, 200, 200)
    assert found[1] == found[2] == Footprint(100, 70, 20, 100, 0)
    assert found[0].total == 650


def test_between_calls_the_replicas_are_gone():
    found = labkit.data_parallel_memory(30, 3, weights=100, activations=7, optimizer=200, running=False).gpus
    assert [gpu.total for gpu in found] == [400, 0, 0]


def test_one_gpu_has_no_replica_and_idle_gpus_hold_nothing():
    (alone,) = labkit.data_parallel_memory(30, 1, weights=100, activations=7, outputs=2).gpus
    assert alone == Footprint(100, 210, 60, 100, 0)
    found = labkit.data_parallel_memory(10, 8, weights=100).gpus
    assert [gpu.total > 0 for gpu in found] == [True] * 5 + [False] * 3


def test_too_much_is_named():
    found = labkit.data_parallel_memory(30, 3, weights=100, optimizer=200, capacity=250)
    assert found.over_capacity == (0,)
    assert labkit.data_parallel_memory(30, 3, weights=100).over_capacity == ()
    full = labkit.data_parallel_memory(30, 3, weights=100, optimizer=200, capacity=500)
    assert full.over_capacity == (), "exactly full is not too much"
    assert repr(found) == "3 GPUs: cuda:0 500 B, cuda:1 200 B, cuda:2 200 B"


@pytest.mark.parametrize(("optimizer", "values"), [("SGD", 0), ("momentum", 1), ("Adam", 2)])
def test_an_optimizer_keeps_its_values_for_each_parameter_at_home(optimizer, values):
    home, other = million_parameters(30, 2, 5, optimizer).gpus
    assert home == Footprint(weights=20_000_000, gradients=40_000_000, optimizer=values * 20_000_000)
    assert other == Footprint(weights=20_000_000, gradients=20_000_000)
    with pytest.raises(ValueError, match="optimizer must be one of 'SGD', 'momentum', 'Adam', got 'Lion'"):
        million_parameters(30, 2, 5, "Lion")


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"weights": -1}, ValueError, "weights must be at least 0, got -1"),
    ({"weights": 1.5}, TypeError, "weights must be a whole number, got 1.5"),
    ({"weights": 1, "capacity": 0}, ValueError, "capacity must be at least 1, got 0"),
    ({"weights": 1, "rows": -1}, ValueError, "batch must be at least 0, got -1"),
])  # fmt: skip
def test_bad_sizes_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        labkit.data_parallel_memory(**{"rows": 3, "gpus": 2} | options)


# Widths of which every tensor fills whole blocks of 512 bytes, as CUDA hands them out. What joins gradients, and how
# many at a time of the same size: PyTorch keeps what was joined, the sum and what has just arrived; labkit adds to
# what was joined.
@pytest.mark.parametrize(("wrap", "buffers"), [(labkit.DataParallel, 1), (nn.DataParallel, 2)])
@pytest.mark.parametrize(("width", "rows"), [(256, 40), (128, 4000), (1024, 40)])
def test_the_model_is_what_the_simulated_machine_counts(width, rows, wrap, buffers):
    gpus, layers = 4, 6
    with labkit.simulate(gpus=gpus) as machine:
        net = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        model, batch = wrap(net), torch.randn(rows, width)
        for _ in range(2):
            optimizer.zero_grad()
            for gpu in range(gpus):
                torch.cuda.reset_peak_memory_stats(gpu)
            model(batch).sum().backward()
            optimizer.step()
        peaks = [torch.cuda.max_memory_allocated(gpu) for gpu in range(gpus)]
        after = [machine.memory(gpu) for gpu in range(gpus)]
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    row = width * 4  # of each layer, backward wants what went in
    sizes = {"weights": weights, "activations": layers * row, "outputs": row, "optimizer": weights}
    between = labkit.data_parallel_memory(rows, gpus, **sizes, running=False)
    assert after == [gpu.total for gpu in between.gpus]
    step = labkit.data_parallel_memory(rows, gpus, **sizes)
    together = min(weights, 10 * 2**20 + 4 * width**2)  # the last weight that is joined may go beyond
    for peak, model_says in zip(peaks[1:], step.gpus[1:], strict=True):
        # The replica's weights are freed as its gradients are made, before these are joined.
        assert 0.85 * (model_says.total - weights + together) <= peak <= 1.05 * model_says.total
    assert peaks[0] <= step.gpus[0].total + buffers * together + 2 * rows * row
    assert peaks[0] >= 0.75 * step.gpus[0].total


def test_footprints_compare_by_value():
    assert Footprints((Footprint(1),)) == Footprints((Footprint(1),))


@pytest.mark.parametrize(("gpus", "shortened"), [(4, False), (5, True)])
def test_more_than_four_gpus_are_not_listed(gpus, shortened):
    memory = labkit.data_parallel_memory(10, gpus, weights=100)
    assert str(memory).endswith("…") == shortened
    assert str(memory).count("cuda:") == 4
