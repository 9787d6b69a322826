"""DTensors of several ranks: wrapper, local tensor and gradient are on the rank's GPU, and values are one GPU's."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import tensor as dtensors
from torch.distributed.tensor import DTensor, Replicate, Shard, _random, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

N = 4


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


def test_layers_by_column_by_row_by_sequence_and_the_loss(joined):
    def train(rank):
        net, x, labels = weights()
        there = parallelize_module(
            net.cuda(), mesh(),
            {
                "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1),
                                        use_local_output=False),
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
            here, gradients, mine.grad.cpu(),
            {name: p.full_tensor().cpu() for name, p in there.named_parameters()},
        )  # fmt: skip

    results = joined.run(train)
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


def test_what_is_redistributed_and_its_gradients_stay_on_the_ranks_gpu(joined):
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

    assert joined.run(train) == [[]] * N


def test_the_shards_of_tensor_parallel_training_count(joined):
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
    assert joined.run(train) == [[shard, 2 * shard, 4 * shard, 4 * shard, 4 * shard]] * N


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_over_all_ranks_is_that_of_the_joined_batch(joined, dtype, layout):
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

    results = joined.run(train)
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


def test_random_numbers_differ_between_shards_and_are_one_gpus_where_a_tensor_is_replicated(joined):
    def whole(value):
        """The shards of all ranks."""
        return value.redistribute(placements=[Replicate()]).to_local().cpu()

    def each(local):
        """What every rank has."""
        found = [torch.empty_like(local) for _ in range(N)]
        dist.all_gather(found, local)
        return [one.cpu() for one in found]

    def draw(rank):
        m = mesh()
        torch.manual_seed(5)
        shards = dtensors.randn(8, N * 3, device_mesh=m, placements=[Shard(1)])
        copies = dtensors.rand(8, 2, device_mesh=m, placements=[Replicate()])
        x = nn.init.kaiming_uniform_(dtensors.empty(N * 2, 3, device_mesh=m, placements=[Shard(0)]))
        dropped = nn.functional.dropout(copies, 0.5)
        x_dropped = nn.functional.dropout(dtensors.ones(N * 64, device_mesh=m, placements=[Shard(0)]), 0.5)
        after = torch.rand(3, device="cuda")
        torch.manual_seed(5)
        again = dtensors.randn(8, N * 3, device_mesh=m, placements=[Shard(1)])
        assert is_here(shards, copies, x, dropped, x_dropped, again)
        assert torch.initial_seed() == 5
        torch.cuda.manual_seed(6)
        one = dtensors.rand(4, 4, device_mesh=m, placements=[Replicate()]).to_local()
        torch.cuda.manual_seed(6)
        assert torch.equal(one, torch.rand(4, 4, device="cuda"))
        generator = torch.Generator("cuda").manual_seed(6)
        torch.manual_seed(rank.number)
        before = torch.cuda.get_rng_state()
        theirs = [DTensor.from_local(torch.empty(2, device="cuda"), m, [Shard(0)]) for _ in range(2)]
        for values in theirs:
            values.uniform_(generator=generator)
        assert torch.equal(torch.cuda.get_rng_state(), before)
        return [
            *map(whole, (shards, x, x_dropped, again, *theirs)),
            *(each(local.to_local()) for local in (copies, dropped)), each(after),
        ]  # fmt: skip

    for shards, x, x_dropped, again, first, second, *same in joined.run(draw):
        parts = [*shards.chunk(N, 1), *again.chunk(N, 1)[:0]]
        assert all(not torch.equal(one, other) for one in parts for other in parts if one is not other)
        assert len(set(x.flatten().tolist())) == x.numel()
        assert len({tuple(part.tolist()) for part in x_dropped.chunk(N)}) == N
        assert torch.equal(shards, again)
        assert len({*first.tolist(), *second.tolist()}) == 4 * N
        for copies in same:
            assert all(torch.equal(copies[0], other) for other in copies)


def test_ranks_that_were_not_seeded_alike_draw_as_the_first_from_its_first_number_on(joined):
    def draw(rank):
        torch.manual_seed(rank.number)
        drawn = dtensors.rand(3, device_mesh=mesh(), placements=[Replicate()]).to_local().tolist()
        return drawn, torch.rand(2, device="cuda").tolist(), torch.rand(2).tolist()

    def draw_alone(rank):
        _random._rng_tracker.distribute_region_enabled = False
        torch.manual_seed(0)
        return dtensors.rand(N, device_mesh=mesh(), placements=[Shard(0)]).to_local().tolist()

    first, *others = joined.run(draw)
    assert all(other[:2] == first[:2] and other[2] != first[2] for other in others)
    torch.manual_seed(0)
    assert first[0] == torch.rand(3).tolist()
    assert len({*map(tuple, joined.run(draw_alone))}) == 1


def test_a_dtensor_is_shown_as_torch_shows_it(joined):
    def show(rank):
        x = distribute_tensor(torch.arange(float(N), device="cuda"), mesh(), [Shard(0)])
        return f"{x}", str(x), f"{x.sum()}"

    for rank, (formed, shown, number) in enumerate(joined.run(show)):
        assert formed == shown
        assert formed.startswith(
            f"DTensor(local_tensor=tensor([{rank}.], device='cuda:{rank}'), device_mesh="
        )
        assert number.startswith(f"DTensor(local_tensor={rank}.0, device_mesh=")


def test_losses_without_a_rule_are_sharded_by_what_they_are_made_of(joined):
    def lose(rank):
        torch.manual_seed(0)
        x, y = torch.randn(2 * N, 3, device="cuda", requires_grad=True), torch.rand(2 * N, 3, device="cuda")
        shards = [distribute_tensor(each, mesh(), [Shard(0)]) for each in (x, y)]
        found = []
        for loss in (
            nn.functional.mse_loss, nn.functional.smooth_l1_loss, nn.functional.binary_cross_entropy_with_logits,
        ):  # fmt: skip
            result = loss(*shards)
            assert not result.placements[0].is_replicate()
            found.append((result.full_tensor().item(), loss(x, y).item()))
        return found

    for found in joined.run(lose):
        for sharded, whole in found:
            assert sharded == pytest.approx(whole)


def test_the_loss_of_shards_under_a_dispatch_mode(joined):
    def lose(rank):
        torch.manual_seed(0)
        x, y = torch.randn(8, 4 * N, device="cuda"), torch.randint(4 * N, (8,), device="cuda")
        shards = distribute_tensor(x, mesh(), [Shard(1)]).requires_grad_()
        x.requires_grad_()
        with loss_parallel(), CommDebugMode() as seen:
            loss = nn.functional.cross_entropy(shards, y)
            loss.backward()
        plain = nn.functional.cross_entropy(x, y)
        plain.backward()
        assert is_here(loss, shards.grad)
        torch.testing.assert_close(shards.grad.full_tensor(), x.grad)
        return loss.full_tensor().item(), plain.item(), seen.get_total_counts()

    for sharded, whole, collectives in joined.run(lose):
        assert sharded == pytest.approx(whole)
        assert collectives == 3
