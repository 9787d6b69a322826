"""What begins alike in ranks and drifts is found, reduced or not; averaging, experts and shards are no drift."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import labkit_cli as cli
from labkit_ranks.diagnosis import diagnose_ranks

RANKS = 2


def begin(rank):
    torch.cuda.set_device(rank.local)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    return rank.number


def diagnose(program):
    return diagnose_ranks(lambda rank: program(begin(rank)), RANKS)


def rows(n, step=0):
    """A rank's own rows in a step, which no DataLoader has read: one GPU is no reference."""
    generator = torch.Generator().manual_seed(100 * n + step)
    return torch.randn(4, 4, generator=generator).cuda()


def train(model, n, steps=3, before=lambda: None, after=lambda: None, parameters=None):
    optimizer = torch.optim.SGD(model.parameters() if parameters is None else parameters, lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(rows(n, step)).pow(2).mean().backward()
        before()
        optimizer.step()
        after()


def average(parameters, op=dist.ReduceOp.AVG):
    for parameter in parameters:
        dist.all_reduce(parameter.grad, op=op)


def exchange(x):
    return all_to_all_single_autograd(x, None, None, dist.group.WORLD)


class Experts(nn.Module):
    """A mixture of one expert in each rank, which begin alike, behind a router that all hold."""

    def __init__(self, expert="expert"):
        super().__init__()
        self.router, self.called = nn.Linear(4, RANKS, bias=False), expert
        self.add_module(expert, nn.Linear(4, 4))

    def forward(self, x):
        gates = self.router(x).softmax(1)
        sent = torch.cat([x * gates[:, at : at + 1] for at in range(RANKS)])
        return exchange(getattr(self, self.called)(exchange(sent))).unflatten(0, (RANKS, -1)).sum(0)


# Drift.


def router_not_reduced(n):
    train(Experts().cuda(), n)


def router_of_a_mesh(n):
    """As torchtitan's issue 2387: a DTensor that is replicated, used by its own part."""
    mesh = init_device_mesh("cuda", (RANKS,))
    gate = nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Replicate()]))
    optimizer = torch.optim.SGD([gate], lr=0.1)
    for step in range(2):
        (rows(n, step) @ gate.to_local()).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def group_of_one(n):
    """As VeOmni's issue 1059."""
    groups = [dist.new_group([at]) for at in range(RANKS)]
    train(DDP(nn.Linear(4, 3).cuda(), process_group=groups[n]), n)


def step_before_the_reduction(n):
    model = nn.Linear(4, 3).cuda()
    train(model, n, after=lambda: average(model.parameters()))


def head_outside(n, mend=False):
    body, head = DDP(nn.Linear(4, 4).cuda()), nn.Linear(4, 3).cuda()
    parameters = [*body.parameters(), *head.parameters()]
    reduce = (lambda: average(head.parameters())) if mend else (lambda: None)
    train(lambda x: head(body(x)), n, before=reduce, parameters=parameters)


def unfrozen_later(n):
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).cuda()
    layers[0].requires_grad_(False)
    model = DDP(layers)
    layers[0].requires_grad_(True)
    train(model, n)


def no_sync_to_the_last(n, last=True):
    model = DDP(nn.Linear(4, 3).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        with model.no_sync() if last or step % 2 == 0 else nullcontext():
            (model(rows(n, step)).pow(2).mean() / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def never_wrapped(n):
    """Rows are dealt out, and nothing else is shared."""
    data = TensorDataset(torch.randn(16, 4))
    model = nn.Linear(4, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
        model(x.cuda()).pow(2).mean().backward()
        optimizer.step()


DRIFT = {
    router_not_reduced: ["router.weight", "no reduction", "train(Experts"],
    router_of_a_mesh: ["parameter 0", "optimizer.step()"],
    group_of_one: ["no reduction", "train(DDP"],
    step_before_the_reduction: ["after the optimizer's step", "dist.all_reduce(parameter.grad"],
    head_outside: ["Linear.weight", "no reduction"],
    unfrozen_later: ["0.weight, 0.bias", "unfrozen"],
    no_sync_to_the_last: ["weight, bias", "`no_sync`"],
    never_wrapped: ["weight", "no reduction"],
}


@pytest.mark.parametrize("program", DRIFT, ids=lambda program: program.__name__)
def test_drift_is_found_with_its_line(program):
    (finding,) = diagnose(program).findings
    assert (finding.name, finding.severity) == ("weights_drift", "error")
    assert "expert" not in finding.reason
    line = int(finding.where.partition(".py:")[2].split()[0])
    said = f"{finding.reason} {finding.fix} {Path(__file__).read_text('utf-8').splitlines()[line - 1]}"
    *facts, code = DRIFT[program]
    for fact in facts:
        assert fact in said


# None.


def router_reduced(n, expert="expert"):
    """The experts begin alike, and become different, as they should."""
    model = Experts(expert).cuda()
    train(model, n, before=lambda: average(model.router.parameters()))


def layers_of_experts_reduced(n):
    router_reduced(n, "ffn")


def marked_layers(n):
    """As DeepSpeed and Megatron mark experts, which begin alike."""
    model = Experts("ffn").cuda()
    model.router.requires_grad_(False)
    for parameter in model.ffn.parameters():
        parameter.allreduce = False
    train(model, n)


def experts_of_their_own(n):
    model = Experts("ffn").cuda()
    nn.init.normal_(model.ffn.weight, generator=torch.Generator("cuda").manual_seed(n))
    train(model, n, before=lambda: average(model.router.parameters()))


def head_reduced(n):
    head_outside(n, mend=True)


def no_sync_but_the_last(n):
    no_sync_to_the_last(n, last=False)


def flat_gradients(n):
    """Reduced in one piece that holds copies."""
    model = nn.Linear(4, 3).cuda()

    def reduce():
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in model.parameters()])

    train(model, n, before=reduce)


def local_sgd(n, steps=5):
    """Averaged after every second step, and not after the last."""
    model, done = nn.Linear(4, 3).cuda(), []

    def average_weights():
        done.append(1)
        for parameter in model.parameters() if len(done) % 2 == 0 else ():
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)

    train(model, n, steps, after=average_weights)


def gossip(n):
    """Each mixes its weights with those of the one before it: they are never the same."""
    model = DDP(nn.Linear(4, 3).cuda(), process_group=[dist.new_group([at]) for at in range(RANKS)][n])

    def mix():
        for parameter in model.parameters():
            other = torch.empty_like(parameter.data)
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, parameter.data, 1 - n), dist.P2POp(dist.irecv, other, 1 - n)]
            ):
                work.wait()
            parameter.data.mul_(0.7 + 0.1 * n).add_(other, alpha=0.3 - 0.1 * n)

    train(model, n, after=mix)


def owner_steps(n):
    """As ZeRO: each optimizer holds a rank's share, which its owner hands out."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).cuda()

    def hand_out():
        for owner, layer in enumerate(model):
            for parameter in layer.parameters():
                dist.broadcast(parameter.data, owner)

    train(model, n, 3, lambda: average(model.parameters()), hand_out, model[n].parameters())


def moving_average(n):
    """The last thing rank 0 does is to put the moving average in place."""
    model = DDP(nn.Linear(4, 3).cuda())
    mean = torch.optim.swa_utils.AveragedModel(model.module)
    train(model, n, after=lambda: mean.update_parameters(model.module))
    if n == 0:
        model.module.load_state_dict(mean.module.state_dict())


def adapters(n):
    base = nn.Linear(4, 4).cuda().requires_grad_(False)
    down, up = nn.Linear(4, 2, bias=False).cuda(), nn.Linear(2, 4, bias=False).cuda()
    nn.init.zeros_(up.weight)
    layers = nn.ModuleDict({"base": base, "down": down, "up": up})

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return base(x) + up(down(x))

    train(DDP(Adapted()), n)


def adversaries(n):
    maker, critic = DDP(nn.Linear(4, 4).cuda()), DDP(nn.Linear(4, 1).cuda())
    optimizers = [torch.optim.Adam(model.parameters()) for model in (maker, critic)]
    for step in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
            critic(maker(rows(n, step))).mean().backward()
            optimizer.step()


def hybrid_shards(n):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).cuda()
    fsdp.fully_shard(model, mesh=init_device_mesh("cuda", (RANKS, 1), mesh_dim_names=("all", "node")))
    train(model, n)
    assert isinstance(next(model.parameters()), DTensor)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(RANKS)[dist.get_rank()]


def classes_cut_beside_ddp(n):
    """As insightface's PartialFC: each rank has a share of the classes, from the same seed."""
    body = DDP(nn.Linear(4, 4).cuda())

    class Share(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, device="cuda"))

        def forward(self, x):
            return (Gather.apply(x) @ self.weight.T - n).pow(2)

    share = Share()
    train(lambda x: share(body(x)), n, parameters=[*body.parameters(), *share.parameters()])


def pipeline_of_stages_made_alike(n):
    stage = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        if n == 0:
            dist.send((y := stage(rows(0, step))).detach(), 1)
            dist.recv(gradient := torch.empty_like(y), 1)
            y.backward(gradient)
        else:
            dist.recv(x := torch.empty(4, 4, device="cuda"), 0)
            stage(x.requires_grad_()).pow(2).mean().backward()
            dist.send(x.grad, 0)
        optimizer.step()
        dist.all_reduce(torch.ones(1, device="cuda"))


def runs_of_their_own(n):
    """A search: each rank has settings of its own, and they share a number at each step."""
    model = nn.Linear(4, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (n + 1))
    for step in range(3):
        loss = model(rows(0, step)).pow(2).mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.MIN)


SOUND = [
    router_reduced, layers_of_experts_reduced, marked_layers, experts_of_their_own, head_reduced,
    no_sync_but_the_last, flat_gradients, local_sgd, gossip, owner_steps, moving_average, adapters,
    adversaries, hybrid_shards, classes_cut_beside_ddp, pipeline_of_stages_made_alike, runs_of_their_own,
]  # fmt: skip


@pytest.mark.parametrize("program", SOUND, ids=lambda program: program.__name__)
def test_what_is_meant_is_no_drift(program):
    found = diagnose(program)
    assert found.findings == ()
    assert found.judged == (program not in (gossip, pipeline_of_stages_made_alike, runs_of_their_own))


# Scale: what divides twice, or not at all.


def scaled(n, over=1, by_hand=False):
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 3))
    plain = nn.Linear(4, 3).cuda()
    model = plain if by_hand else DDP(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        (F.mse_loss(model(x.cuda()), y.cuda()) / dist.get_world_size() ** over).backward()
        if by_hand:
            average(model.parameters(), dist.ReduceOp.SUM)
        optimizer.step()


@pytest.mark.parametrize(
    ("over", "by_hand", "fact"), [(1, False, "divided by 2"), (0, True, "is 2 times one GPU")]
)
def test_a_mean_that_is_taken_twice_or_never_is_told_as_that(over, by_hand, fact):
    (finding,) = diagnose(lambda n: scaled(n, over, by_hand)).findings
    assert finding.name == "gradient_scale"
    assert fact in finding.reason
    assert ("op=dist.ReduceOp.AVG" in finding.fix) == by_hand
    assert finding.where.startswith("test_replicas.py:")
    assert diagnose(lambda n: scaled(n, 1 - over, by_hand)).ok


def test_a_sampler_of_rank_0_in_every_rank():
    def program(n):
        data = TensorDataset(torch.randn(16, 4))
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, RANKS, rank=0))
        model = DDP(nn.Linear(4, 3).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in loader:
            model(x.cuda()).pow(2).mean().backward()
            optimizer.step()

    (finding,) = diagnose(program).findings
    assert finding.name == "same_rows"
    assert "part 0 of 2" in finding.reason
    line = int(finding.where.partition(".py:")[2].split()[0])
    assert "loader = DataLoader(" in Path(__file__).read_text("utf-8").splitlines()[line - 1]


# What nothing was compared of.

NOTHING = "import torch\nx = torch.ones(3, device='cuda')\n"
CALLS = (
    "import os, torch, torch.distributed as dist\n"
    "dist.init_process_group('nccl')\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
    "x = torch.ones(3, device='cuda')\ndist.all_reduce(x)\nx.sum().item()\n"
)
ALONE = """
model = torch.nn.Linear(3, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(x * torch.randn(3, device='cuda')).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(("source", "why"), [
    (NOTHING, "some rank made no optimizer step"),
    (CALLS, "some rank made no optimizer step"),
    (CALLS + ALONE, "exchanged nothing"),
], ids=['nothing', 'calls', 'alone'])  # fmt: skip
def test_what_was_not_compared_is_not_judged(tmp_path, monkeypatch, capsys, source, why):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(source)
    assert cli.main(["check", "--ranks", "2", "--sarif", "found.sarif", "train.py"]) == 3
    page = capsys.readouterr().out
    assert "train.py on 2 ranks: not judged" in page
    assert "nothing wrong" not in page
    assert why in page
    (run,) = json.loads(Path("found.sarif").read_text())["runs"]
    assert run["results"] == []
    assert "not judged" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    assert cli.main(["diagnose", "--ranks", "2", "--json", "train.py"]) == 3
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["judged"], facts["compared"]) == (False, False, [])
    assert why in facts["uncompared"][0]
    assert "NumPy" in facts["not_looked_at"]
