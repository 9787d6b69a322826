"""The check-up of a distributed script finds each planted fault, and nothing in sound scripts."""

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as tensor_parallel
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset

import labkit_cli as cli
from labkit.base.language import using
from labkit_ranks.diagnosis import diagnose_ranks
from labkit_ranks.diagnosis.kinds import KINDS
from labkit_ranks.diagnosis.records import RankRecord

RANKS = 4


def begin(rank):
    torch.cuda.set_device(rank.local)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    return rank.number


def dataset(rows=32):
    return TensorDataset(torch.randn(rows, 4), torch.arange(rows) % 3)


def fit(model, loader, epochs=1, each_epoch=lambda epoch: None, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        each_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()


def sampled(rows=32, **options):
    data = dataset(rows)
    sampler = DistributedSampler(data, **options)
    return sampler, DataLoader(data, batch_size=4, sampler=sampler)


def net():
    return nn.Linear(4, 3).cuda()


def two_layers():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).cuda()


def with_optimizer(model, lr=0.1):
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def average(parameters, op=dist.ReduceOp.AVG):
    for parameter in parameters:
        dist.all_reduce(parameter.grad, op=op)


def diagnose(program, ranks=RANKS):
    return diagnose_ranks(lambda rank: program(begin(rank)), ranks)


# Planted faults, by the name under which they are to be found. The numbers are those of the table of faults.


def uneven_inputs(n):  # 1
    model = DDP(net())
    for _ in range(2 + (n == 0)):
        model(torch.randn(2, 4).cuda()).sum().backward()


def loop_left_early(n):
    model = DDP(net())
    for step in range(9):
        loss = model(torch.full((2, 4), n / 4.0).cuda()).square().sum()
        loss.backward()
        if loss.item() < n and step > 1:
            break


def loop_left_early_by_epoch(n):
    """Each rank reads all its batches, and stops by its own patience."""
    model, best = DDP(net()), n
    sampler, loader = sampled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            step_loss = F.cross_entropy(model(x.cuda()), y.cuda())
            step_loss.backward()
            optimizer.step()
        if step_loss.item() < best:
            return


def uneven_inputs_of_a_loader(n):
    """The loop has an exit, and rank 1 has read all its rows."""
    model = DDP(net())
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(9 - (n == 1), 4)), batch_size=1)):
        loss = model(x.cuda()).sum()
        loss.backward()
        loss.item()
        if step == 100:
            break


def backward_in_some_ranks(n):
    """Rank 1 has no rows, and its result doesn't depend on what the all-to-all brought."""
    x = torch.ones(RANKS, 4, device="cuda", requires_grad=True)
    out = all_to_all_single_autograd(x, [1] * RANKS, [1] * RANKS, dist.group.WORLD)
    loss = (out if n != 1 else x[:0]).sum()
    loss.backward()
    torch.cuda.synchronize()


def calls_differ(n):  # 2
    if n != 2:
        dist.barrier()
    dist.all_reduce(torch.ones(3).cuda())


def shapes_differ(n):  # 3
    dist.all_reduce(torch.ones(3 + n).cuda())


def collective_in_some_ranks(n):  # 4
    fit(DDP(net()), sampled()[1])
    if n == 0:
        dist.all_gather_object([None] * RANKS, "saved")


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


def unused_parameters(n):  # 5
    fit(DDP(Unused().cuda()), sampled()[1])


def all_on_one_gpu(rank):  # 6
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(3).cuda())


def same_rows(n):  # 7
    fit(DDP(net()), DataLoader(dataset(), batch_size=4, shuffle=True))


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(16):
            yield torch.randn(4, generator=generator), 1


def same_rows_of_a_stream(n):
    fit(DDP(net()), DataLoader(Stream(), batch_size=4))


def set_epoch_forgotten(n):
    fit(DDP(net()), sampled()[1], epochs=2)


def gradient_scale(n):  # 8
    model, optimizer = with_optimizer(DDP(net()))
    y = torch.tensor([0, 1, 2, 0])
    y[: 3 * (n == 0)] = -100  # of rank 0's four tokens three are padding
    F.cross_entropy(model(torch.randn(4, 4).cuda()), y.cuda()).backward()
    optimizer.step()


def gradient_scale_of_padding(n):  # 8
    y = torch.ones(4, dtype=torch.int64).cuda()
    y[: 3 * (n == 0)] = 2
    model, optimizer = with_optimizer(DDP(net()))
    F.cross_entropy(model(torch.randn(4, 4).cuda()), y, ignore_index=2).backward()
    optimizer.step()


def gradient_scale_of_passes(n):
    model, optimizer = with_optimizer(DDP(net()))
    for k in range(4):
        model.require_backward_grad_sync = k == 3
        F.mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()).backward()
    optimizer.step()


def accumulation_without_no_sync(n):  # 9
    model, optimizer = with_optimizer(DDP(net()))
    for _ in range(4):
        (F.mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()) / 4).backward()
    optimizer.step()


def optimizer_before_sharding(n):  # 10
    model, optimizer = with_optimizer(net())
    fsdp.fully_shard(model)
    model(torch.randn(2, 4).cuda()).sum().backward()
    optimizer.step()


def weights_drift(n):  # 11
    fit(DDP(net()), sampled()[1], lr=0.1 * (1 + n))


def weights_differ_from_the_start(n):
    torch.manual_seed(n)
    model, optimizer = with_optimizer(net())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4).cuda()).sum().backward()
        average(model.parameters())
        optimizer.step()


def rows_counted_twice(n):  # 12
    model = DDP(net())
    sampler, loader = sampled()
    fit(model, loader, each_epoch=sampler.set_epoch)
    correct = torch.zeros(2).cuda()
    with torch.no_grad():
        for x, y in sampled(30, shuffle=False)[1]:
            hits = model(x.cuda()).argmax(1) == y.cuda()
            correct += torch.stack((hits.sum().float(), torch.tensor(float(len(y))).cuda()))
    dist.all_reduce(correct)


def batch_norm_of_few(n):  # 13
    fit(DDP(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).cuda()), sampled()[1])


# Those of the second table. Each has its sound twin below.


def step_of(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()


def own_rows(n):
    """A rank's own rows, from a generator of their own."""
    generator = torch.Generator().manual_seed(7 + n)
    return torch.randn(4, 4, generator=generator).cuda(), torch.randint(3, (4,), generator=generator).cuda()


def gradients_reduced_twice(n, op=dist.ReduceOp.SUM, sync=True):
    model, optimizer = with_optimizer(DDP(net()))
    for _ in range(2):
        with nullcontext() if sync else model.no_sync():
            step_of(model, optimizer, *own_rows(n))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=op)
        optimizer.step()


def gradients_reduced_twice_and_averaged(n):
    gradients_reduced_twice(n, dist.ReduceOp.AVG)


def gradients_of_shards_reduced_again(n):
    model = nn.Linear(4, 4).cuda()
    fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_of(model, optimizer, *own_rows(n))
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.to_local())
    optimizer.step()


def clipped_by_own_norm(n, own=True, **options):
    model, optimizer = with_optimizer(fsdp.FullyShardedDataParallel(two_layers(), **options))
    step_of(model, optimizer, *own_rows(n))
    if own:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    else:
        model.clip_grad_norm_(0.1)
    optimizer.step()


def clipped_by_own_norm_with_original_parameters(n):
    clipped_by_own_norm(n, use_orig_params=True)


def clipped_before_reducing(n, before=True):
    model, optimizer = with_optimizer(net())
    for _ in range(2):
        step_of(model, optimizer, *own_rows(n))
        if before:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        average(model.parameters())
        if not before:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def clipped_pieces(n, together=False):
    """Each rank has a piece of the model, of which it knows the gradient's norm."""
    model = Attention(8, RANKS).cuda()
    nn.init.normal_(model.qkv.weight, generator=torch.Generator("cuda").manual_seed(n))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 5, 24).cuda()).pow(2).mean().backward()
    if together:
        grads = [parameter.grad for parameter in model.parameters()]
        norm = torch.nn.utils.get_total_norm(grads) ** 2
        dist.all_reduce(norm)
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm.sqrt())
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def used_before_wait(n, wait=False):
    x = torch.ones(3).cuda()
    work = dist.all_reduce(x, async_op=True)
    if wait:
        work.wait()
    y = x * 2
    work.wait()
    return y


def changed_before_wait(n, wait=False):
    x, parts = torch.ones(3).cuda(), [torch.empty(3).cuda() for _ in range(RANKS)]
    work = dist.all_gather(parts, x, async_op=True)
    if wait:
        work.wait()
    x += 1
    work.wait()


def received_too_early(n):
    x, y = torch.ones(3).cuda(), torch.zeros(3).cuda()
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, (n + 1) % RANKS), dist.P2POp(dist.irecv, y, (n - 1) % RANKS)]
    )
    torch.stack([y, x])
    for work in works:
        work.wait()


def one_file_by_several(n, folder=None, mine=lambda n: True, name=lambda n: "model.pt"):
    model = DDP(net())
    fit(model, sampled()[1])
    if mine(n):
        torch.save(model.state_dict(), f"{folder or os.environ['LABKIT_TEST_FOLDER']}/{name(n)}")
    dist.barrier()


def text_file_by_several(n, folder=None):
    with open(f"{folder or os.environ['LABKIT_TEST_FOLDER']}/config.json", "w") as file:
        file.write("{}")


def loaded_to_one_gpu(n, **options):
    path = f"{os.environ['LABKIT_TEST_FOLDER']}/weights.pt"
    model = net()
    if n == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    model.load_state_dict(torch.load(path, **options))


class Noisy(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.net, self.p = nn.Linear(4, 3), p

    def forward(self, x):
        return F.dropout(self.net(x), self.p, self.training)


def same_random_numbers(n, seed=lambda n: 1):
    model = DDP(Noisy().cuda())
    torch.manual_seed(seed(n))
    sampler, loader = sampled()
    fit(model, loader, 2, sampler.set_epoch)


def same_noise(n, seed=lambda n: 1):
    model = DDP(net())
    torch.manual_seed(seed(n))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x, y = own_rows(n)
        step_of(model, optimizer, x + 0.1 * torch.randn_like(x), y)
        optimizer.step()


class Attention(nn.Module):
    """Attention of which each of ``ranks`` has its share of the heads, the output's sum taken over all."""

    def __init__(self, heads, ranks, dim=24):
        super().__init__()
        self.heads, self.wide = heads // ranks, dim // heads
        self.qkv = nn.Linear(dim, 3 * self.heads * self.wide, bias=False)
        self.out = nn.Linear(self.heads * self.wide, dim, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.wide)).permute(2, 0, 3, 1, 4)
        x = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return _Sum.apply(x)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def cut_with_a_remainder(n, heads=6):
    model, optimizer = with_optimizer(Attention(heads, dist.get_world_size()).cuda())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 5, 24).cuda()).pow(2).mean().backward()
        optimizer.step()


class Llama(nn.Module):
    """Attention that is cut from without, as PyTorch's own tutorial does."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(24, 24, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).view(2, 5, self.heads, 4).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def cut_with_a_remainder_by_dtensor(n, heads=6):
    ranks = dist.get_world_size()
    model = Llama(heads).cuda()
    column, row = tensor_parallel.ColwiseParallel, tensor_parallel.RowwiseParallel
    plan = {"wq": column(), "wk": column(), "wv": column(), "wo": row()}
    tensor_parallel.parallelize_module(model, init_device_mesh("cuda", (ranks,)), plan)
    model.heads = heads // ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 5, 24).cuda()).pow(2).mean().backward()
        optimizer.step()


def rank_for_local_rank(rank):
    torch.cuda.set_device(rank.number)
    dist.init_process_group("nccl")
    fit(DDP(net()), sampled()[1])


class _Gather(torch.autograd.Function):
    """The parts of a sequence put together; the gradient's own part comes back."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Sequenced(nn.Module):
    """A LayerNorm on a rank's part of the sequence, and a column-parallel layer on all of it."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.up(_Gather.apply(self.norm(x.chunk(dist.get_world_size(), 1)[dist.get_rank()])))


def norm_gradients_not_reduced(n, reduce=False):
    model = Sequenced().cuda()
    nn.init.normal_(model.up.weight, generator=torch.Generator("cuda").manual_seed(n))
    nn.init.zeros_(model.up.bias)  # alike in all, and each of its own all the same
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(64.0).view(2, 8, 4).sin().cuda()).pow(2).sum().backward()
        if reduce:
            for parameter in model.norm.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()


def no_sync_around_backward(n, around=False):
    model, optimizer = with_optimizer(DDP(net()))
    for k in range(4):
        x, y = own_rows(n)
        with model.no_sync() if around and k < 3 else nullcontext():
            loss = F.cross_entropy(model(x), y) / 4
            with model.no_sync() if k < 3 else nullcontext():
                loss.backward()
    optimizer.step()


def differs_from_one_gpu(n, mend=False):
    """A term of the loss over all rows is made of each rank's rows alone."""
    model = DDP(net())
    sampler, loader = sampled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x.cuda())
        spread = out.var(0).sum() if not mend else out.square().mean()
        (F.cross_entropy(out, y.cuda()) + spread).backward()
        optimizer.step()


def gradients_not_reduced(n, reduce=False):
    """A layer that each rank has whole, in front of a cut one: its gradient is a term of each rank."""
    ranks = dist.get_world_size()
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "cut": nn.Linear(4, 8, bias=False)}).cuda()
    whole = model["cut"].weight.detach()
    model["cut"].weight = nn.Parameter(whole.chunk(ranks)[n].clone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in DataLoader(dataset(), batch_size=8):
        optimizer.zero_grad()
        loss = model["cut"](model["first"](x.cuda())).pow(2).sum() / 64
        loss.backward()
        if reduce:
            for parameter in model["first"].parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()


def calls_never_met(n):
    for _ in range(2 - n):
        dist.recv(torch.ones(2).cuda(), 0) if n else dist.send(torch.ones(2).cuda(), 1)


def deadlock(n):
    if n < 2:
        dist.recv(x := torch.ones(2).cuda(), 1 - n)
        print(x)


def script_fails(n):
    if n == 1:
        raise KeyError("lost")
    dist.barrier()


PLANTED = [
    uneven_inputs, uneven_inputs_of_a_loader, loop_left_early, loop_left_early_by_epoch, backward_in_some_ranks,
    calls_differ, shapes_differ, collective_in_some_ranks, unused_parameters, all_on_one_gpu, same_rows,
    same_rows_of_a_stream, set_epoch_forgotten, gradient_scale, gradient_scale_of_passes, gradient_scale_of_padding,
    accumulation_without_no_sync,
    optimizer_before_sharding, weights_drift, weights_differ_from_the_start, rows_counted_twice, batch_norm_of_few,
    calls_never_met, deadlock, script_fails,
    gradients_reduced_twice, gradients_reduced_twice_and_averaged, gradients_of_shards_reduced_again,
    clipped_by_own_norm, clipped_by_own_norm_with_original_parameters, clipped_before_reducing, clipped_pieces,
    used_before_wait, changed_before_wait, received_too_early, one_file_by_several, text_file_by_several,
    loaded_to_one_gpu, same_random_numbers, same_noise, cut_with_a_remainder, cut_with_a_remainder_by_dtensor,
    rank_for_local_rank, norm_gradients_not_reduced, no_sync_around_backward, differs_from_one_gpu,
    gradients_not_reduced,
]  # fmt: skip
NAMES = {
    uneven_inputs_of_a_loader: "uneven_inputs", loop_left_early_by_epoch: "loop_left_early",
    gradients_reduced_twice_and_averaged: "gradients_reduced_twice",
    gradients_of_shards_reduced_again: "gradients_reduced_twice",
    clipped_by_own_norm_with_original_parameters: "clipped_by_own_norm",
    clipped_before_reducing: "clipped_by_own_norm", clipped_pieces: "clipped_by_own_norm",
    changed_before_wait: "used_before_wait", received_too_early: "used_before_wait",
    text_file_by_several: "one_file_by_several", same_noise: "same_random_numbers",
    cut_with_a_remainder_by_dtensor: "cut_with_a_remainder",
    no_sync_around_backward: "accumulation_without_no_sync", same_rows_of_a_stream: "same_rows",
    gradient_scale_of_passes: "gradient_scale", gradient_scale_of_padding: "gradient_scale",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_FOLDER", str(tmp_path))


# What is said of these is said by the error that ended the run.
FAULTS = {
    "uneven_inputs", "collective_in_some_ranks", "deadlock", "calls_differ", "shapes_differ", "calls_never_met",
    "all_on_one_gpu", "backward_in_some_ranks",
}  # fmt: skip


def test_every_kind_is_planted():
    assert LINES.keys() <= set(PLANTED)
    assert {kind.name for kind in KINDS.values()} | FAULTS == {
        NAMES.get(program, program.__name__) for program in PLANTED
    }


FACTS = {
    loop_left_early: ["`break` at test_diagnose_ranks.py:"],
    loop_left_early_by_epoch: ["`return` at test_diagnose_ranks.py:"],
    backward_in_some_ranks: ["does not depend on the call in forward"],
    uneven_inputs: ["2 times and ended", "test_diagnose_ranks.py:"],
    unused_parameters: ["to spare.weight, spare.bias in rank"],
    same_rows: ["of 128 rows", "32 are different"],
    set_epoch_forgotten: ["Epochs 1 and 2"],
    gradient_scale: ["over 1, 4, 4, 4 elements", "rank 0 3.25 times", "0.812 times"],
    gradient_scale_of_passes: ["of 4 backward passes add up to 4 times"],
    accumulation_without_no_sync: ["in 4 backward passes", "4 collectives instead of 1"],
    optimizer_before_sharding: ["weight, bias"],
    weights_drift: ["After step 1"],
    rows_counted_twice: ["32 rows", "has 30", "rows 0, 1"],
    batch_norm_of_few: ["here 4 values", "4 rows per rank"],
    all_on_one_gpu: ["Duplicate GPU detected", "cuda:0"],
}  # fmt: skip
LINES = {
    gradients_reduced_twice: "all_reduce(parameter.grad, op=op)",
    gradients_reduced_twice_and_averaged: "all_reduce(parameter.grad, op=op)",
    gradients_of_shards_reduced_again: "to_local", clipped_by_own_norm: "clip_grad_norm_",
    clipped_by_own_norm_with_original_parameters: "clip_grad_norm_",
    clipped_before_reducing: "clip_grad_norm_", clipped_pieces: "clip_grad_norm_",
    used_before_wait: "y = x * 2", changed_before_wait: "x += 1", received_too_early: "torch.stack",
    one_file_by_several: "torch.save", text_file_by_several: "open(", loaded_to_one_gpu: "torch.load",
    same_random_numbers: "F.dropout", same_noise: "randn_like", cut_with_a_remainder: "self.qkv(x)",
    cut_with_a_remainder_by_dtensor: ".view(2, 5", rank_for_local_rank: "set_device(rank.number)",
    norm_gradients_not_reduced: "self.norm(", no_sync_around_backward: "loss.backward()",
    differs_from_one_gpu: "spread).backward()", gradients_not_reduced: "optimizer.step()",
}  # fmt: skip


@pytest.mark.parametrize("program", PLANTED, ids=lambda program: program.__name__)
def test_each_planted_fault_is_found_and_no_other(program):
    chooses_its_gpu = program in (all_on_one_gpu, rank_for_local_rank)
    found = diagnose_ranks(program, RANKS) if chooses_its_gpu else diagnose(program)
    (finding,) = found.findings
    assert finding.name == NAMES.get(program, program.__name__)
    assert not found.ok
    for fact in FACTS.get(program, []):
        assert fact in f"{finding.where} {finding.reason}"
    if program in LINES:
        line = int(re.search(r"test_diagnose_ranks\.py:(\d+)", finding.where)[1])
        assert LINES[program] in Path(__file__).read_text("utf-8").splitlines()[line - 1]


@pytest.mark.parametrize(
    "use", ["torch.device('cuda', arguments.local_rank)", "torch.cuda.set_device(arguments.local_rank)"]
)
def test_an_argument_of_the_old_launcher_is_named_beside_the_error(use, tmp_path, capfd):
    """torchrun passes no ``--local_rank``: the default, -1, is no device, or leaves all ranks on one."""
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, torch, torch.distributed as dist\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int, default=-1)\narguments = parser.parse_args()\n"
        f"{use}\ndist.init_process_group('nccl')\ndist.all_reduce(torch.ones(2, device='cuda'))\n",
        "utf-8",
    )
    assert cli.main(["check", "--nproc-per-node", "2", str(script)]) == 1
    said = capfd.readouterr().out
    assert 'read `int(os.environ["LOCAL_RANK"])`' in said
    assert "labkit diagnose FACTORY" not in said, "the script failed; it is a distributed one"


def test_heads_are_not_blamed_for_a_mask_that_is_as_long_as_a_ranks_piece_of_the_sequence():
    """As in a guide's script with transformers 5, whose model makes the mask for the rank's piece of the sequence."""

    class MaskOfPiece(Llama):
        def forward(self, x):
            q, k, v = (w(x).view(2, 8, -1, 4).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
            length = x.shape[1] // dist.get_world_size()
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device)
            attention = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.wo(attention.transpose(1, 2).flatten(2))

    def trains(n):
        model = MaskOfPiece(8)
        model.wq, model.wk, model.wv = (nn.Linear(24, 32, bias=False) for _ in range(3))
        model.wo = nn.Linear(32, 24, bias=False)
        model.cuda()
        column = tensor_parallel.ColwiseParallel
        plan = {"wq": column(), "wk": column(), "wv": column(), "wo": tensor_parallel.RowwiseParallel()}
        tensor_parallel.parallelize_module(model, init_device_mesh("cuda", (dist.get_world_size(),)), plan)
        model(torch.ones(2, 8, 24).cuda()).pow(2).mean().backward()

    (finding,) = diagnose(trains).findings
    assert finding.name == "script_fails"


def test_attention_without_dropout_is_compared_with_one_gpu():
    """`scaled_dot_product_attention` may draw random numbers; without dropout it does not."""

    class Attends(nn.Linear):
        def forward(self, x):
            x = super().forward(x[:, None])
            return F.scaled_dot_product_attention(x, x, x)[:, 0]

    def trains(n):
        sampler, loader = sampled()
        fit(DDP(Attends(4, 3).cuda()), loader, 1, sampler.set_epoch)

    found = diagnose(trains)
    assert found.ok
    assert "with one GPU on the ranks' joined batches" in " ".join(found.compared)


def test_other_weights_in_bfloat16_are_told_from_rounding():
    """Sums of random weights are as large as bfloat16's rounding of a computed value of that size."""

    def trains(n):
        torch.manual_seed(dist.get_world_size())
        model = DDP(nn.Linear(4, 256, dtype=torch.bfloat16).cuda())
        sampler, loader = sampled()
        for x, y in loader:
            F.cross_entropy(model(x.cuda().bfloat16()), y.cuda()).backward()

    assert "the first weights differ there" in " ".join(diagnose(trains).uncompared)


def test_an_error_inside_a_library_is_reported_at_the_scripts_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import json\nsettings = json.loads('{')\n", "utf-8")
    (finding,) = diagnose_ranks(str(script), 2).findings
    assert (finding.name, finding.where) == ("script_fails", "train.py:2")


def test_a_finding_speaks_chinese():
    with using("zh"):
        (finding,) = diagnose(used_before_wait).findings
    for text in (finding.reason, finding.fix):
        assert re.search("[\u4e00-\u9fff]", text)


def test_the_first_tensor_that_differs_is_named():
    (finding,) = diagnose(differs_from_one_gpu).findings
    assert "The first tensor that differs is the loss in step 1" in finding.reason
    found = diagnose(agrees_with_one_gpu)
    # In each step two outputs, a loss and two gradients; inputs and first weights are what they stand on.
    text = "10 outputs, losses and gradients with one GPU on the ranks' joined batches, in 2 steps"
    assert found.compared[-1] == text


def with_batch_norm():
    data = dataset(40 * RANKS)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).cuda()
    fit(DDP(model), DataLoader(data, batch_size=40, sampler=DistributedSampler(data)))


def with_several_alone():
    if dist.get_world_size() == 1:
        raise ValueError("two at least")
    fit(DDP(net()), sampled()[1])


def with_weights_by_size():
    torch.manual_seed(dist.get_world_size())
    fit(DDP(net()), sampled()[1])


def with_data_of_its_own():
    data = torch.Generator().manual_seed(dist.get_rank() + 10 * dist.get_world_size())
    fit(DDP(net()), [(torch.randn(4, 4, generator=data), torch.arange(4) % 3)])


NOT_COMPARED = {
    with_batch_norm: "BatchNorm uses the statistics of each rank's rows",
    with_several_alone: "fails there (ValueError: two at least)",
    with_weights_by_size: "the first weights differ there",
    with_data_of_its_own: "the data differ there",
}


@pytest.mark.parametrize("program", NOT_COMPARED, ids=lambda program: program.__name__)
def test_why_it_was_not_compared_with_one_gpu_is_said(program):
    found = diagnose(lambda n: program())
    assert found.findings == ()
    assert NOT_COMPARED[program] in found.uncompared[-1]


class Crossed(nn.Module):
    """Deep inside, a row is compared with the others of the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), Centred(), nn.Linear(4, 3))

    def forward(self, x):
        return self.second(self.first(x))


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_a_module_that_differs_is_named():
    def program(n):
        sampler, loader = sampled()
        fit(DDP(Crossed().cuda()), loader, 1, sampler.set_epoch)

    (finding,) = diagnose(program).findings
    assert finding.name == "differs_from_one_gpu"
    assert "the output of model.second.1 in step 1" in finding.reason


# Sound scripts.


def test_a_fault_of_several_loaders_is_one_finding():
    def program(n):
        model = DDP(net())
        for _ in range(3):  # a loader of its own for each epoch
            fit(model, DataLoader(dataset(), batch_size=8))

    (finding,) = diagnose(program).findings
    assert finding.name == "same_rows"
    assert finding.where.startswith("test_diagnose_ranks.py:")
    assert finding.where.endswith(
        ", loader 1 (SequentialSampler); also in loader 2 (SequentialSampler), loader 3 (SequentialSampler)"
    )


def ddp(n):
    sampler, loader = sampled(30)  # padded, in training
    fit(DDP(net()), loader, 3, sampler.set_epoch)


def tokens(n):
    model, optimizer = with_optimizer(DDP(net()))
    y = torch.tensor([0, 1, 2, 0]).cuda()
    y[: 3 * (n == 0)] = -100
    total = (y != -100).sum()
    dist.all_reduce(total)
    loss = F.cross_entropy(model(torch.randn(4, 4).cuda()), y, reduction="sum") * RANKS / total
    loss.backward()
    optimizer.step()


def evaluated_by_each(n):
    model = DDP(net())
    sampler, loader = sampled()
    fit(model, loader, 1, sampler.set_epoch)
    if n == 0:
        with torch.no_grad():
            for x, _ in DataLoader(dataset(10), batch_size=5):
                model.module(x.cuda())
    dist.barrier()


def synchronised_norm(n):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    fit(DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()), sampled()[1])


def evaluated_by_all(n):
    model = DDP(net())
    sampler, loader = sampled()
    fit(model, loader, 1, sampler.set_epoch)
    with torch.no_grad():
        for x, _ in DataLoader(dataset(10), batch_size=5):
            model.module(x.cuda())


def windows_that_overlap(n):
    everything = Subset(dataset(40), range(32))
    window = Subset(everything, [row % 32 for row in range(8 * n, 8 * n + 10)])
    fit(DDP(net()), DataLoader(window, batch_size=5))


def fewer_rows_than_ranks(n):
    fit(DDP(net()), sampled(2)[1])


def weighed_by_hand(n):
    model, optimizer = with_optimizer(net())
    rows = 4 if n else 1
    F.mse_loss(model(torch.randn(rows, 4).cuda()), torch.zeros(rows, 3).cuda()).backward()
    for parameter in model.parameters():
        parameter.grad *= rows / (4 * RANKS - 3)
        dist.all_reduce(parameter.grad)
    optimizer.step()


def two_losses(n):
    model, optimizer = with_optimizer(DDP(net()))
    y = model(torch.randn(4, 4).cuda())
    (F.mse_loss(y, torch.zeros_like(y)) + 0.1 * F.l1_loss(y, torch.ones_like(y))).backward()
    optimizer.step()


def twice(factor, scaler=None):
    """A step of two backward passes, of losses that count ``factor`` each."""
    model, optimizer = with_optimizer(DDP(net()))
    for last in (False, True):
        with nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(torch.randn(4, 4).cuda()), torch.zeros(4, 3).cuda()) * factor
            (loss if scaler is None else scaler.scale(loss)).backward()
    optimizer.step()


def a_factor_of_its_own(n):
    twice(1 / 3)


def scaled_for_halves(n):
    twice(1 / 2, torch.amp.GradScaler("cuda", init_scale=2.0))


SOUND = [
    ddp, tokens, evaluated_by_each, synchronised_norm, evaluated_by_all,
    windows_that_overlap, fewer_rows_than_ranks, weighed_by_hand, two_losses, a_factor_of_its_own, scaled_for_halves,
]  # fmt: skip


@pytest.mark.parametrize("program", SOUND, ids=lambda program: program.__name__)
def test_sound_scripts_give_no_finding(program):
    found = diagnose(program)
    assert found.findings == ()
    assert found.ok


# The sound twins of the second table.


def clipped_by_dtensor(n):
    model = net()
    fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_of(model, optimizer, *own_rows(n))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def clipped_each_model_for_itself(n):
    model, optimizer = with_optimizer(net())
    step_of(model, optimizer, *own_rows(n))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def used_otherwise(n):
    """Shapes are asked for, what is only sent is read, and a later call of the group has been waited for."""
    x, y, parts = torch.ones(3).cuda(), torch.ones(2).cuda(), [torch.empty(3).cuda() for _ in range(RANKS)]
    dist.all_gather(parts, x, async_op=True)
    torch.empty_like(parts[0]), parts[0].shape, parts[0].view(1, 3), x * 2
    dist.all_reduce(y)
    torch.stack(parts)
    dist.all_reduce(x, async_op=True)
    torch.cuda.synchronize()
    x += 1


def saved_in_turn(n):
    for turn in range(RANKS):
        if turn == n:
            torch.save({}, f"{os.environ['LABKIT_TEST_FOLDER']}/turn.pt")
        dist.barrier()


def silenced(n):
    with open(os.devnull, "w") as nothing:
        print("hello", file=nothing)


def same_order_of_rows(n):
    """What all have to draw alike: weights, an order of rows, whether a layer takes part."""
    model, optimizer = with_optimizer(DDP(net()))
    data = torch.randn(32, 4)
    for _ in range(2):
        rows = torch.randperm(32)[n::RANKS]
        optimizer.zero_grad()
        model(data[rows].cuda() * (1 + torch.rand(1).item())).pow(2).mean().backward()
        optimizer.step()


def drawn_for_all(n):
    """Each draws the rows of all, and takes its own."""
    model, optimizer = with_optimizer(DDP(net()))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4 * RANKS, 4)[n::RANKS].cuda()).pow(2).mean().backward()
        optimizer.step()


def zero(n):
    """An optimizer within another changes a rank's share; then the weights are broadcast."""
    model = DDP(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).cuda())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in sampled()[1]:
        step_of(model, optimizer, x.cuda(), y.cuda())
        optimizer.step()


def convolutional():
    return DDP(nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(4, 64), nn.Linear(64, 3)).cuda())


def in_float16(n):
    """Its gradients are kept in float32, and were computed in float16."""
    model, optimizer = with_optimizer(convolutional())
    for x, y in sampled(64)[1]:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x.view(-1, 1, 2, 2).cuda()), y.cuda())
        loss.backward()
        optimizer.step()


def tensor_parallel_peers(n):
    """They have the same rows, and are to drop the same of them."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4), nn.Dropout()).cuda()
    plan = {"0": tensor_parallel.ColwiseParallel(), "1": tensor_parallel.RowwiseParallel()}
    tensor_parallel.parallelize_module(model, init_device_mesh("cuda", (RANKS,)), plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, _ in DataLoader(dataset(8), batch_size=4):
        optimizer.zero_grad()
        model(x.cuda()).pow(2).mean().backward()
        optimizer.step()


def cut_evenly_by_dtensor(n):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).cuda()
    plan = {"0": tensor_parallel.ColwiseParallel(), "2": tensor_parallel.RowwiseParallel()}
    tensor_parallel.parallelize_module(model, init_device_mesh("cuda", (RANKS,)), plan)
    fit(model, DataLoader(dataset(), batch_size=8))


def sequence_parallel_by_dtensor(n):
    """A norm's gradient is a DTensor whose terms the optimizer adds up."""
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)).cuda()
    column = tensor_parallel.ColwiseParallel(input_layouts=Shard(1))
    row = tensor_parallel.RowwiseParallel(output_layouts=Replicate())
    plan = {"0": tensor_parallel.SequenceParallel(), "1": column, "2": row}
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    tensor_parallel.parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, _ in DataLoader(dataset(), batch_size=8):
        optimizer.zero_grad()
        model(distribute_tensor(x.view(2, 4, 4).cuda(), mesh, [Shard(1)])).square().sum().backward()
        optimizer.step()


def sequence_that_ranks_share(n):
    """Attention within context parallelism, as PyTorch's own tutorial has it."""
    mesh, layer = init_device_mesh("cuda", (RANKS,)), nn.Linear(32, 96).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(2, 128 * RANKS, 32).cuda()
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
            q, k, v = layer(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
            F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean().backward()
        average(layer.parameters())
        optimizer.step()
        optimizer.zero_grad()


def agrees_with_one_gpu(n):
    differs_from_one_gpu(n, mend=True)


TWINS = {
    "reduced by hand alone": lambda n: gradients_reduced_twice(n, dist.ReduceOp.AVG, sync=False),
    "clipped by fsdp": lambda n: clipped_by_own_norm(n, own=False),
    "clipped after reducing": lambda n: clipped_before_reducing(n, before=False),
    "clipped together": lambda n: clipped_pieces(n, together=True),
    "used after wait": lambda n: used_before_wait(n, wait=True),
    "changed after wait": lambda n: changed_before_wait(n, wait=True),
    "saved by one": lambda n: one_file_by_several(n, mine=lambda n: n == 0),
    "saved by each": lambda n: one_file_by_several(n, name=lambda n: f"model{n}.pt"),
    "loaded to the host": lambda n: loaded_to_one_gpu(n, map_location="cpu"),
    "loaded to its own": lambda n: loaded_to_one_gpu(n, map_location=f"cuda:{n}"),
    "random numbers of its own": lambda n: same_random_numbers(n, seed=lambda n: n),
    "noise of its own": lambda n: same_noise(n, seed=lambda n: n),
    "cut evenly": lambda n: cut_with_a_remainder(n, heads=8),
    "norm gradients reduced": lambda n: norm_gradients_not_reduced(n, reduce=True),
    "no sync around all": lambda n: no_sync_around_backward(n, around=True),
    "gradients reduced": lambda n: gradients_not_reduced(n, reduce=True),
} | {program.__name__: program for program in (
    clipped_by_dtensor, clipped_each_model_for_itself, used_otherwise, saved_in_turn, silenced,
    same_order_of_rows, drawn_for_all, zero, in_float16, tensor_parallel_peers, cut_evenly_by_dtensor,
    sequence_parallel_by_dtensor, sequence_that_ranks_share, agrees_with_one_gpu,
)}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_the_sound_twins_give_no_finding(name):
    found = diagnose(TWINS[name])
    assert found.findings == ()


def test_loaders_that_are_made_anew_are_each_their_own():
    """Though one that is gone may have had the place in memory."""
    records = RankRecord()
    for number in range(1, 21):
        assert records.loader(DataLoader([0] * number)).size == number
    assert len(records.loaders) == 20


# How it shows itself.


def test_it_shows_itself():
    found = diagnose(accumulation_without_no_sync, 2)
    assert "1 warning" in repr(found)
    assert "Do: Put all passes of a step except the last into `with model.no_sync():`" in repr(found)
    assert "<code>with model.no_sync():</code>" in found._repr_html_()
    facts = json.loads(found.to_json())
    assert facts["ranks"] == 2
    assert [finding["name"] for finding in facts["findings"]] == ["accumulation_without_no_sync"]
    assert "accumulation_without_no_sync" in found


def test_torch_is_as_it_was_afterwards():
    before = F.cross_entropy, DataLoader.__iter__, torch.autograd.backward, DDP.__init__
    diagnose(ddp, 2)
    assert (F.cross_entropy, DataLoader.__iter__, torch.autograd.backward, DDP.__init__) == before


def test_a_script_that_is_not_there():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        diagnose_ranks("nowhere.py", 2)


# Of a file, by the command.

SCRIPT = """\
import argparse, os, torch, torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--passes", type=int, default=1)
passes = parser.parse_args().passes
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(torch.nn.Linear(4, 3).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(passes):
    (mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()) / passes).backward()
optimizer.step()
print("done")
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_with_its_own_arguments(script):
    assert diagnose_ranks(script, 2).ok
    found = diagnose_ranks(script, 2, ["--passes", "3"])
    assert [finding.name for finding in found.findings] == ["accumulation_without_no_sync"]
    assert found.summary() == "train.py on 2 ranks: 0 errors, 1 warning"


@pytest.mark.parametrize(("passes", "code"), [(1, 0), (3, 1)])
def test_the_command(script, capsys, passes, code):
    assert cli.main(["diagnose", "--ranks", "2", "--json", str(script), "--passes", str(passes)]) == code
    told = capsys.readouterr()
    assert json.loads(told.out)["ok"] == (code == 0)
    assert told.err.count("done") == 2


def test_a_deadlock_is_told_once(tmp_path, capsys):
    path = tmp_path / "stuck.py"
    path.write_text(
        SCRIPT.replace("optimizer.step()", "dist.recv(torch.ones(2).cuda(), 1 - dist.get_rank())")
    )
    assert cli.main(["diagnose", "--ranks", "2", str(path)]) == 1
    told = capsys.readouterr()
    assert "no rank can go on" in told.out
    assert "Traceback" not in told.err + told.out
    assert "no rank can go on" not in told.err


@pytest.mark.parametrize(("arguments", "said"), [
    (["train.py", "--ranks", "2"], "--ranks must precede the script"),
    (["--ranks", "2", "nowhere.py"], "no such script: nowhere.py"),
    (["--ranks", "1", "train.py"], "--ranks"),
])  # fmt: skip
def test_bad_usage_is_one_line(capsys, arguments, said):
    assert cli.main(["diagnose", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
