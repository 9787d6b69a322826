"""DTensors of several ranks: wrapper, local tensor and gradient are on the rank's GPU, and values are one GPU's."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.distributed.world import World

N = 4


@pytest.fixture
def world():
    with World(N) as made:

        def begin(rank):
            dist.init_process_group("nccl")
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

        made.run(begin)
        yield made


def mesh():
    return dist.device_mesh.init_device_mesh("cuda", (N,))


def is_here(*tensors):
    """Whether each is on the rank's GPU with all that it holds, in whatever way it is asked."""
    places = set()
    for tensor in tensors:
        places |= {tensor.device}
        if hasattr(tensor, "_local_tensor"):
            places |= {tensor._local_tensor.device, tensor.to_local().device}
    return places == {torch.device("cuda", dist.get_rank())}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.head = (
            nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 12),
        )  # fmt: skip

    def forward(self, x):
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def weights():
    torch.manual_seed(1)
    return Net(), torch.randn(2, 4 * N, 8), torch.randint(0, 12, (2, 4 * N))


def test_layers_by_column_by_row_by_sequence_and_the_loss(world):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )  # fmt: skip

    def train(rank):
        net, x, labels = weights()
        there = parallelize_module(
            net.cuda(), mesh(),
            {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
                "head": ColwiseParallel(
                    input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
                ),
            },
        )  # fmt: skip
        optimizer = torch.optim.Adam(there.parameters())
        mine = x.cuda().chunk(N, 1)[rank.number].clone().requires_grad_()
        with loss_parallel():
            logits = there(mine)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.cuda().flatten())
            loss.backward()
        here = is_here(
            logits, loss, mine.grad, *(p for p in there.parameters()), *(p.grad for p in there.parameters())
        )
        gradients = {name: p.grad.full_tensor().cpu() for name, p in there.named_parameters()}
        optimizer.step()
        here = here and is_here(*(optimizer.state[p]["exp_avg"] for p in there.parameters()))
        return (
            here,
            gradients,
            mine.grad.cpu(),
            {name: p.full_tensor().cpu() for name, p in there.named_parameters()},
        )

    results = world.run(train)
    net, x, labels = weights()
    x.requires_grad_()
    optimizer = torch.optim.Adam(net.parameters())
    nn.functional.cross_entropy(net(x).flatten(0, 1), labels.flatten()).backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
    optimizer.step()
    for rank, (here, theirs, of_input, after) in enumerate(results):
        assert here
        for name, gradient in gradients.items():
            torch.testing.assert_close(theirs[name], gradient)
        torch.testing.assert_close(of_input, x.grad.chunk(N, 1)[rank])
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(after[name], parameter.detach(), atol=1e-4, rtol=1e-4)


def test_what_is_redistributed_and_its_gradients_stay_on_the_ranks_gpu(world):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def train(rank):
        over, wrong = mesh(), []
        ways = [Shard(0)], [Shard(1)], [Replicate()]
        for source in ways:
            for target in ways:
                torch.manual_seed(0)
                x = distribute_tensor(torch.randn(4 * N, 4 * N).cuda(), over, source).requires_grad_()
                y = x.redistribute(placements=target)
                total = (y * y).sum()
                total.backward()
                right = torch.equal(x.grad.full_tensor(), 2 * x.full_tensor())
                if not right or not is_here(x, y, x.grad, total, total.full_tensor(), x.full_tensor()):
                    wrong.append((source, target))
                (y.to_local() * 2).sum().backward()
        return wrong

    assert world.run(train) == [[]] * N


def test_the_shards_of_tensor_parallel_training_count(world):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    wide, deep = 512, 8

    def train(rank):
        def now():
            return torch.cuda.memory_allocated()

        layers = [nn.Linear(wide, wide, bias=False) for _ in range(deep)]
        plan = {str(k): RowwiseParallel() if k % 2 else ColwiseParallel() for k in range(deep)}
        net = parallelize_module(nn.Sequential(*layers).cuda(), mesh(), plan)
        del layers
        found = [now()]
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(1, wide, device="cuda")).square().sum().backward()
            found.append(now())
            optimizer.step()
            found.append(now())
        return found

    shard = deep * wide * wide * 4 // N
    assert world.run(train) == [[shard, 2 * shard, 4 * shard, 4 * shard, 4 * shard]] * N


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_over_all_ranks_is_that_of_the_joined_batch(world, dtype, layout):
    sizes = [3, 1, 2, 4]

    def made():
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(3)
        norm.weight.data, norm.bias.data = torch.rand(3), torch.randn(3)
        return norm, torch.randn(10, 3, 4, 4), torch.randn(10, 3, 4, 4)

    def train(rank):
        norm, x, gradient = made()
        norm = nn.SyncBatchNorm.convert_sync_batchnorm(norm).cuda()
        mine, back = (each.split(sizes)[rank.number].cuda().to(dtype) for each in (x, gradient))
        mine = mine.to(memory_format=layout).requires_grad_()
        y = norm(mine)
        y.backward(back)
        for parameter in norm.parameters():
            dist.all_reduce(parameter.grad)
        kept = y.dtype is dtype and y.is_contiguous(memory_format=layout) and is_here(y, mine.grad)
        found = y, mine.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var
        with torch.no_grad():
            shown = norm.eval()(mine)
        return kept, [each.detach().cpu().float() for each in (*found, shown)]

    results = world.run(train)
    norm, x, gradient = made()
    x.requires_grad_()
    y = norm(x)
    y.backward(gradient)
    of_all = norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var
    with torch.no_grad():
        shown = norm.eval()(x)
    near = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 3e-2, "rtol": 3e-2}
    for rank, (kept, found) in enumerate(results):
        assert kept
        own = y.split(sizes)[rank], x.grad.split(sizes)[rank], *of_all, shown.split(sizes)[rank]
        for theirs, ours in zip(found, own, strict=True):
            torch.testing.assert_close(theirs, ours.detach(), **near)
