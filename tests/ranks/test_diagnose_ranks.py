"""The check-up of a distributed script finds each planted fault, and nothing in sound scripts."""

import json
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset

import labkit
from labkit import cli
from labkit.distributed.diagnosis import diagnose_ranks
from labkit.distributed.diagnosis.meaning import KINDS
from labkit.distributed.diagnosis.records import Loader, RankRecord

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


# Planted faults, by the name under which they are to be found. The numbers are those of the table of faults.


def uneven_inputs(rank):  # 1
    n = begin(rank)
    model = DDP(net())
    for _ in range(2 + (n == 0)):
        model(torch.randn(2, 4).cuda()).sum().backward()


def calls_differ(rank):  # 2
    n = begin(rank)
    if n != 2:
        dist.barrier()
    dist.all_reduce(torch.ones(3).cuda())


def shapes_differ(rank):  # 3
    n = begin(rank)
    dist.all_reduce(torch.ones(3 + n).cuda())


def collective_in_some_ranks(rank):  # 4
    n = begin(rank)
    fit(DDP(net()), sampled()[1])
    if n == 0:
        dist.all_gather_object([None] * RANKS, "saved")


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


def unused_parameters(rank):  # 5
    begin(rank)
    fit(DDP(Unused().cuda()), sampled()[1])


def all_on_one_gpu(rank):  # 6
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(3).cuda())


def same_rows(rank):  # 7
    begin(rank)
    fit(DDP(net()), DataLoader(dataset(), batch_size=4, shuffle=True))


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(16):
            yield torch.randn(4, generator=generator), 1


def same_rows_of_a_stream(rank):
    begin(rank)
    fit(DDP(net()), DataLoader(Stream(), batch_size=4))


def set_epoch_forgotten(rank):
    begin(rank)
    fit(DDP(net()), sampled()[1], epochs=2)


def gradient_scale(rank):  # 8
    n = begin(rank)
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.tensor([0, 1, 2, 0])
    y[: 3 * (n == 0)] = -100  # of rank 0's four tokens three are padding
    F.cross_entropy(model(torch.randn(4, 4).cuda()), y.cuda()).backward()
    optimizer.step()


def gradient_scale_of_padding(rank):  # 8
    n = begin(rank)
    y = torch.ones(4, dtype=torch.int64).cuda()
    y[: 3 * (n == 0)] = 2
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(torch.randn(4, 4).cuda()), y, ignore_index=2).backward()
    optimizer.step()


def gradient_scale_of_passes(rank):
    begin(rank)
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(4):
        model.require_backward_grad_sync = k == 3
        F.mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()).backward()
    optimizer.step()


def accumulation_without_no_sync(rank):  # 9
    begin(rank)
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        (F.mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()) / 4).backward()
    optimizer.step()


def optimizer_before_sharding(rank):  # 10
    begin(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fsdp.fully_shard(model)
    model(torch.randn(2, 4).cuda()).sum().backward()
    optimizer.step()


def weights_drift(rank):  # 11
    n = begin(rank)
    fit(DDP(net()), sampled()[1], lr=0.1 * (1 + n))


def weights_differ_from_the_start(rank):
    n = begin(rank)
    torch.manual_seed(n)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4).cuda()).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()


def rows_counted_twice(rank):  # 12
    begin(rank)
    model = DDP(net())
    sampler, loader = sampled()
    fit(model, loader, each_epoch=sampler.set_epoch)
    correct = torch.zeros(2).cuda()
    with torch.no_grad():
        for x, y in sampled(30, shuffle=False)[1]:
            hits = model(x.cuda()).argmax(1) == y.cuda()
            correct += torch.stack((hits.sum().float(), torch.tensor(float(len(y))).cuda()))
    dist.all_reduce(correct)


def batch_norm_of_few(rank):  # 13
    begin(rank)
    fit(DDP(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).cuda()), sampled()[1])


def calls_never_met(rank):
    n = begin(rank)
    if n == 0:
        dist.send(torch.ones(2).cuda(), 1)


def deadlock(rank):
    n = begin(rank)
    if n < 2:
        dist.recv(torch.ones(2).cuda(), 1 - n)


def script_fails(rank):
    if begin(rank) == 1:
        raise KeyError("lost")
    dist.barrier()


PLANTED = [
    uneven_inputs, calls_differ, shapes_differ, collective_in_some_ranks, unused_parameters, all_on_one_gpu, same_rows,
    same_rows_of_a_stream, set_epoch_forgotten, gradient_scale, gradient_scale_of_passes, gradient_scale_of_padding,
    accumulation_without_no_sync,
    optimizer_before_sharding, weights_drift, weights_differ_from_the_start, rows_counted_twice, batch_norm_of_few,
    calls_never_met, deadlock, script_fails,
]  # fmt: skip
NAMES = {
    same_rows_of_a_stream: "same_rows",
    gradient_scale_of_passes: "gradient_scale",
    gradient_scale_of_padding: "gradient_scale",
}


@pytest.mark.parametrize("program", PLANTED, ids=lambda program: program.__name__)
def test_each_planted_fault_is_found_and_no_other(program):
    found = diagnose_ranks(program, RANKS)
    assert [finding.name for finding in found.findings] == [NAMES.get(program, program.__name__)]
    assert not found.ok


# What is said of these is said by the error that ended the run.
FAULTS = {
    "uneven_inputs", "collective_in_some_ranks", "deadlock", "calls_differ", "shapes_differ", "calls_never_met",
    "all_on_one_gpu",
}  # fmt: skip


def test_every_kind_is_planted():
    assert {kind.name for kind in KINDS.values()} | FAULTS == {
        NAMES.get(program, program.__name__) for program in PLANTED
    }


@pytest.mark.parametrize(
    ("program", "facts"),
    [
        (uneven_inputs, ["2 times and ended", "test_diagnose_ranks.py:"]),
        (unused_parameters, ["to spare.weight, spare.bias in rank"]),
        (same_rows, ["of 128 rows", "32 are different"]),
        (set_epoch_forgotten, ["Epochs 1 and 2"]),
        (gradient_scale, ["over 1, 4, 4, 4 elements", "rank 0 3.25 times", "0.812 times"]),
        (gradient_scale_of_passes, ["of 4 backward passes add up to 4 times"]),
        (accumulation_without_no_sync, ["in 4 backward passes", "4 collectives instead of 1"]),
        (optimizer_before_sharding, ["weight, bias"]),
        (weights_drift, ["After step 1"]),
        (rows_counted_twice, ["32 rows", "30 rows that exist", "rows 0, 1"]),
        (batch_norm_of_few, ["of 4 values", "4 rows a rank"]),
        (all_on_one_gpu, ["Duplicate GPU detected", "cuda:0"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_finding_has_the_facts(program, facts):
    finding = diagnose_ranks(program, RANKS).findings[0]
    for fact in facts:
        assert fact in f"{finding.where} {finding.reason}"


# Sound scripts.


def test_a_fault_of_several_loaders_is_one_finding():
    def program(rank):
        begin(rank)
        model = DDP(net())
        for _ in range(3):  # a loader of its own for each epoch
            fit(model, DataLoader(dataset(), batch_size=8))

    (finding,) = diagnose_ranks(program, RANKS).findings
    assert finding.name == "same_rows"
    assert finding.where == (
        "loader 1 (SequentialSampler); alike in loader 2 (SequentialSampler), loader 3 (SequentialSampler)"
    )


def ddp(rank):
    begin(rank)
    sampler, loader = sampled(30)  # padded, in training
    fit(DDP(net()), loader, 3, sampler.set_epoch)


def accumulating(rank):
    begin(rank)
    model = DDP(net())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for _ in range(3):
            with model.no_sync():
                (F.mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()) / 4).backward()
        (F.mse_loss(model(torch.randn(2, 4).cuda()), torch.zeros(2, 3).cuda()) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


def tokens(rank):
    n = begin(rank)
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.tensor([0, 1, 2, 0]).cuda()
    y[: 3 * (n == 0)] = -100
    total = (y != -100).sum()
    dist.all_reduce(total)
    loss = F.cross_entropy(model(torch.randn(4, 4).cuda()), y, reduction="sum") * RANKS / total
    loss.backward()
    optimizer.step()


def sharded(rank):
    begin(rank)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).cuda()
    for layer in (model[0], model[2], model):
        fsdp.fully_shard(layer)
    fit(model, sampled()[1])


def by_hand(rank):
    begin(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 4).cuda()).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()


def two_models(rank):
    begin(rank)
    maker, critic = DDP(nn.Linear(2, 4).cuda()), DDP(nn.Linear(4, 1).cuda())
    optimizers = [torch.optim.Adam(model.parameters()) for model in (maker, critic)]
    for _ in range(2):
        for at, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            guess = critic(maker(torch.randn(3, 2).cuda()))
            F.binary_cross_entropy_with_logits(guess, torch.full_like(guess, float(at))).backward()
            optimizer.step()


def evaluated_by_each(rank):
    n = begin(rank)
    model = DDP(net())
    sampler, loader = sampled()
    fit(model, loader, 1, sampler.set_epoch)
    if n == 0:
        with torch.no_grad():
            for x, _ in DataLoader(dataset(10), batch_size=5):
                model.module(x.cuda())
    dist.barrier()


def synchronised_norm(rank):
    begin(rank)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    fit(DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()), sampled()[1])


def evaluated_by_all(rank):
    begin(rank)
    model = DDP(net())
    sampler, loader = sampled()
    fit(model, loader, 1, sampler.set_epoch)
    with torch.no_grad():
        for x, _ in DataLoader(dataset(10), batch_size=5):
            model.module(x.cuda())


def windows_that_overlap(rank):
    n = begin(rank)
    everything = Subset(dataset(40), range(32))
    window = Subset(everything, [row % 32 for row in range(8 * n, 8 * n + 10)])
    fit(DDP(net()), DataLoader(window, batch_size=5))


def fewer_rows_than_ranks(rank):
    begin(rank)
    fit(DDP(net()), sampled(2)[1])


def weighed_by_hand(rank):
    n = begin(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = 4 if n else 1
    F.mse_loss(model(torch.randn(rows, 4).cuda()), torch.zeros(rows, 3).cuda()).backward()
    for parameter in model.parameters():
        parameter.grad *= rows / (4 * RANKS - 3)
        dist.all_reduce(parameter.grad)
    optimizer.step()


def two_losses(rank):
    begin(rank)
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = model(torch.randn(4, 4).cuda())
    (F.mse_loss(y, torch.zeros_like(y)) + 0.1 * F.l1_loss(y, torch.ones_like(y))).backward()
    optimizer.step()


def twice(factor, scaler=None):
    """A step of two backward passes, of losses that count ``factor`` each."""
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for last in (False, True):
        with nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(torch.randn(4, 4).cuda()), torch.zeros(4, 3).cuda()) * factor
            (loss if scaler is None else scaler.scale(loss)).backward()
    optimizer.step()


def a_factor_of_its_own(rank):
    begin(rank)
    twice(1 / 3)


def scaled_for_halves(rank):
    begin(rank)
    twice(1 / 2, torch.amp.GradScaler("cuda", init_scale=2.0))


@pytest.mark.parametrize(
    "program",
    [
        ddp,
        accumulating,
        tokens,
        sharded,
        by_hand,
        two_models,
        evaluated_by_each,
        synchronised_norm,
        evaluated_by_all,
        windows_that_overlap,
        fewer_rows_than_ranks,
        weighed_by_hand,
        two_losses,
        a_factor_of_its_own,
        scaled_for_halves,
    ],  # fmt: skip
    ids=lambda program: program.__name__,
)
def test_sound_scripts_give_no_finding(program):
    found = diagnose_ranks(program, RANKS)
    assert found.findings == ()
    assert found.ok


def test_loaders_that_are_made_anew_are_each_their_own():
    """Though one that is gone may have had the place in memory."""
    records = RankRecord()
    for number in range(20):
        assert records.loader(DataLoader([number]), lambda: Loader(number, "", False)).size == number  # noqa: B023 (called at once)
    assert len(records.loaders) == 20


# How it shows itself.


def test_it_shows_itself():
    found = diagnose_ranks(accumulation_without_no_sync, 2)
    assert "1 warning" in repr(found)
    assert "Do: `with model.no_sync():`" in repr(found)
    assert "<code>with model.no_sync():</code>" in found._repr_html_()
    facts = json.loads(found.to_json())
    assert facts["ranks"] == 2
    assert [finding["name"] for finding in facts["findings"]] == ["accumulation_without_no_sync"]
    assert "accumulation_without_no_sync" in found


def test_it_speaks_chinese():
    labkit.set_language("zh")
    try:
        found = diagnose_ranks(uneven_inputs, 2)
    finally:
        labkit.set_language("en")
    assert "批次数不同" in found.findings[0].reason
    assert found.findings[0].fix.startswith("让所有 rank")


def test_torch_is_as_it_was_afterwards():
    before = F.cross_entropy, DataLoader.__iter__, torch.autograd.backward, DDP.__init__
    diagnose_ranks(ddp, 2)
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py", "--ranks", "2"], "--ranks stands before the script"),
        (["--ranks", "2", "nowhere.py"], "there is no file nowhere.py"),
        (["--ranks", "1", "train.py"], "--ranks"),
    ],
)
def test_bad_usage_is_one_line(capsys, arguments, said):
    assert cli.main(["diagnose", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
