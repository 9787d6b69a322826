"""Bytes on each rank's GPU, by formula and as ``torch.cuda`` counts them: what C++ made, and nobody met, too."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

N, MIB = 4, 2**20
WIDE, DEEP = 512, 8  # 8 MiB of weights in layers of 1 MiB
WEIGHTS = DEEP * WIDE * WIDE * 4
# Beside its buckets the Reducer has a map there of the parameters that were used: 4 bytes each, in one block.
MAP = 512


def on_all(joined, function):
    """What ``function()`` gives in every rank, which must be one and the same; nothing is left of it."""
    results = joined.run(lambda rank: function())
    gc.collect()
    assert [torch.cuda.memory_allocated(k) for k in range(N)] == [0] * N
    assert results == [results[0]] * N, results
    return results[0]


def bytes_now():
    return torch.cuda.memory_allocated()


def layers(device="cuda"):
    return nn.Sequential(*[nn.Linear(WIDE, WIDE, bias=False, device=device) for _ in range(DEEP)])


def step(model, optimizer):
    """One training step; the bytes after backward, and after the optimizer."""
    optimizer.zero_grad()
    model(torch.ones(1, WIDE, device="cuda")).square().sum().backward()
    between = bytes_now()
    optimizer.step()
    return between, bytes_now()


def test_gradients_count_as_soon_as_they_are_there(joined):
    def train():
        model = layers()
        seen = [bytes_now()]
        model[-1].weight.register_hook(lambda grad: seen.append(torch.cuda.memory_allocated() // MIB))
        model[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(bytes_now()))
        model(torch.ones(1, WIDE, device="cuda")).sum().backward()
        return [*seen, bytes_now(), torch.cuda.max_memory_allocated() >= 2 * WEIGHTS]

    weights, _, last, after, peak = on_all(joined, train)
    assert (weights, after, peak) == (WEIGHTS, 2 * WEIGHTS, True)
    assert 2 * WEIGHTS <= last < 2 * WEIGHTS + MIB


@pytest.mark.parametrize("megabytes", [1, pytest.param(3, marks=pytest.mark.more), 25])
@pytest.mark.parametrize("view", [False, True])
def test_ddp_has_buckets_beside_the_gradients_or_instead(joined, view, megabytes):
    def train():
        options = {"gradient_as_bucket_view": view, "bucket_cap_mb": megabytes}
        model = DistributedDataParallel(layers(), **options)
        made = bytes_now()
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        return made, [step(model, optimizer) for _ in range(3)]

    gradients = 0 if view else WEIGHTS
    trained = MAP + 2 * WEIGHTS + gradients
    first = trained, trained + 2 * WEIGHTS
    # The optimizer counts its steps on the host.
    assert on_all(joined, train) == (MAP + 2 * WEIGHTS, [first, (first[1], first[1]), (first[1], first[1])])


def test_ddp_that_accumulates_has_gradients_of_its_own_until_it_reduces(joined):
    def train():
        model = DistributedDataParallel(layers(), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.no_sync():
            alone = step(model, optimizer)
        return alone, step(model, optimizer)

    assert on_all(joined, train) == ((3 * WEIGHTS + MAP,) * 2, (2 * WEIGHTS + MAP,) * 2)


@pytest.mark.parametrize("backend", ["nccl", pytest.param(None, marks=pytest.mark.more)])
@pytest.mark.parametrize("view", [False, True])
def test_parameters_that_are_not_used_have_no_gradient_and_a_place_in_a_bucket(joined, backend, view):
    class OneByTurns(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.turn = layers()[:2], 0

        def forward(self, x):
            self.turn += 1
            return self.both[self.turn % 2](x)

    def train(how):
        options = {
            how: True, "gradient_as_bucket_view": view, "process_group": dist.new_group(backend=backend),
        }  # fmt: skip
        model = OneByTurns() if how == "find_unused_parameters" else layers()[:2]
        model = DistributedDataParallel(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return [step(model, optimizer)[0] for _ in range(3)]

    two = 2 * WEIGHTS // DEEP
    used, every = (0, 0) if view else (two // 2, two)
    assert on_all(joined, lambda: train("find_unused_parameters")) == [2 * two + MAP + used] * 3
    assert on_all(joined, lambda: train("static_graph")) == [2 * two + MAP + every] * 3


def test_a_communication_hook_is_given_its_bucket_on_the_gpu(joined):
    def train():
        def hook(state, bucket):
            buffer = bucket.buffer()
            seen.append({buffer.device, *(grad.device for grad in bucket.gradients())})
            return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

        seen = []
        model = DistributedDataParallel(layers())
        model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bytes_ = [step(model, optimizer)[1] for _ in range(2)]
        return bytes_, seen == [{torch.device("cuda", dist.get_rank())}] * len(seen)

    assert on_all(joined, train) == ([3 * WEIGHTS + MAP] * 2, True)


def test_zero_shards_the_optimizers_states(joined):
    def train(distributed):
        model = layers()
        if distributed:
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam)
        return [step(model, optimizer) for _ in range(2)]

    trained = 2 * WEIGHTS, 2 * WEIGHTS + 2 * WEIGHTS // N
    assert on_all(joined, lambda: train(False)) == [trained, (trained[1],) * 2]
    trained = trained[0] + MAP, trained[1] + MAP
    assert on_all(joined, lambda: train(True)) == [trained, (trained[1],) * 2]


@pytest.mark.parametrize("reshard", [True, False])
def test_fully_sharded_training(joined, reshard):
    def train():
        mesh = dist.device_mesh.init_device_mesh("cuda", (N,))
        model = layers()
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        del layer
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        found = [bytes_now()]
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(1, WIDE, device="cuda")).square().sum()
            found.append(bytes_now() // MIB)
            loss.backward()
            del loss
            found.append(bytes_now())
            optimizer.step()
            found.append(bytes_now())
        return found

    shard = WEIGHTS // N
    gathered = 0 if reshard else WEIGHTS
    assert on_all(joined, train) == [
        shard,
        (shard + gathered) // MIB, 2 * shard, 4 * shard,
        (3 * shard + gathered) // MIB, 4 * shard, 4 * shard,
    ]  # fmt: skip


def test_what_is_gathered_counts_in_the_peak(joined):
    def peak(reshard):
        mesh = dist.device_mesh.init_device_mesh("cuda", (N,))
        model = layers()
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        torch.cuda.reset_peak_memory_stats()
        model(torch.ones(1, WIDE, device="cuda")).square().sum().backward()
        return torch.cuda.max_memory_allocated()

    shard, layer = WEIGHTS // N, WEIGHTS // DEEP
    # Two layers at a time, and a buffer each; or all of them.
    assert shard + 2 * layer <= on_all(joined, lambda: peak(True)) <= 2 * shard + 5 * layer
    assert shard + WEIGHTS + layer <= on_all(joined, lambda: peak(False)) <= 2 * shard + WEIGHTS + 4 * layer


def test_a_flat_parameter_that_is_sharded(joined):
    def train():
        options = {"device_id": dist.get_rank(), "use_orig_params": True}
        model = nn.Sequential(*[FullyShardedDataParallel(layer, **options) for layer in layers()])
        model = FullyShardedDataParallel(model, **options)
        made = bytes_now()
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        return made, step(model, optimizer)

    shard = WEIGHTS // N
    assert on_all(joined, train) == (shard, (2 * shard, 4 * shard))


def alive_at_each_forward(schedule, pieces):
    """What the first stage of a pipeline holds after each forward, in layers' outputs, and of how many layers it is."""
    rows, wide, deep = 32, 64, 4
    stage = nn.Sequential(*[nn.Sequential(nn.Linear(wide, wide), nn.Tanh()) for _ in range(deep)]).cuda()
    part = PipelineStage(stage, dist.get_rank(), N, torch.device("cuda", torch.cuda.current_device()))
    steps = schedule(part, pieces, loss_fn=nn.functional.mse_loss)
    x = torch.ones(pieces * rows, wide, device="cuda")
    given = {0: ((x,), {}), N - 1: ((), {"target": x})}.get(dist.get_rank(), ((), {}))
    steps.step(*given[0], **given[1])  # makes the buffers of messages
    seen, before = [], bytes_now()
    stage.register_forward_hook(lambda *_: seen.append((bytes_now() - before) // (rows * wide * 4)))
    steps.step(*given[0], **given[1])
    return seen, deep


@pytest.mark.parametrize("pieces", [8, 16])
def test_a_stage_does_not_keep_what_it_has_sent(joined, pieces):
    one, deep = joined.run(lambda rank: alive_at_each_forward(Schedule1F1B, pieces))[0]
    all_of_them = joined.run(lambda rank: alive_at_each_forward(ScheduleGPipe, pieces))[0][0]
    assert one == [deep * min(number, N) for number in range(1, pieces + 1)]
    assert all_of_them == [deep * number for number in range(1, pieces + 1)]
