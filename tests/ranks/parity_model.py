"""A small transformer with experts that trains on one GPU and under each parallelism, by arguments.

--ddp N --fsdp N (rows), --tp N (heads and hidden units), --cp N (sequence), --pp N (layers), --ep N (experts; they
share the ranks of --ddp and --cp)
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

VOCABULARY, HIDDEN, HEADS, EXPERTS, LENGTH, ROWS = 16, 32, 4, 4, 16, 8


def exchange(x, group):
    """All-to-all of equal blocks."""
    return all_to_all_single_autograd(x.contiguous(), None, None, group)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.cp = None

    def forward(self, x, positions):
        q, k, v = (
            part(x).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        if self.cp is not None:
            k, v = (torch.cat(list(all_gather(t.contiguous(), group=self.cp)), 2) for t in (k, v))
        mask = torch.arange(k.shape[2], device=x.device) <= positions[:, None]
        scores = (q @ k.transpose(-1, -2) * (HIDDEN // HEADS) ** -0.5).masked_fill(~mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN, HIDDEN) / 6)
        self.ep = None

    def forward(self, x):
        rows = x.flatten(0, 1)
        scores, chosen = self.gate(rows).softmax(-1).topk(2, dim=-1)
        weights = torch.zeros(len(rows), EXPERTS, device=x.device).scatter(1, chosen, scores)
        sent = rows.expand(EXPERTS, *rows.shape)
        if self.ep is None:
            back = F.gelu(torch.einsum("eth,eho->eto", sent, self.weight))
        else:
            got = exchange(sent, self.ep).view(self.ep.size(), -1, *rows.shape)
            out = F.gelu(torch.einsum("weth,eho->weto", got, self.weight))
            back = exchange(out.reshape(EXPERTS, *rows.shape), self.ep)
        return torch.einsum("eth,te->th", back, weights).view_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.experts = Attention(), Experts()
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x, positions):
        x = x + self.attention(self.norm1(x), positions)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x + self.experts(self.norm3(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.layers = nn.ModuleDict({str(n): Block() for n in range(2)})
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, x):
        positions = self.positions
        x = self.tokens(x) + self.places(positions) if self.tokens is not None else x
        for layer in self.layers.values():
            x = layer(x, positions)
        return self.head(self.norm(x)) if self.head is not None else x


def main():
    parser = argparse.ArgumentParser()
    for name in ("ddp", "fsdp", "tp", "cp", "pp", "ep", "accumulate"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--seed-by-rank", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    data = options.ddp * options.fsdp
    mesh = init_device_mesh(
        "cuda", (options.pp, data, options.cp, options.tp), mesh_dim_names=("pp", "data", "cp", "tp")
    )
    torch.manual_seed(dist.get_rank() if options.seed_by_rank else 0)
    model = Transformer().to(device)
    torch.manual_seed(1)
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH)).cumsum(1) % VOCABULARY
    labels = (ids * 5 + 3) % VOCABULARY
    positions = torch.arange(LENGTH).chunk(options.cp)[mesh["cp"].get_local_rank()].to(device)
    ids, labels = (
        t.chunk(data)[mesh["data"].get_local_rank()]
        .chunk(options.cp, 1)[mesh["cp"].get_local_rank()]
        .to(device)
        for t in (ids, labels)
    )
    model.positions = positions
    if options.pp > 1:
        stage = mesh["pp"].get_local_rank()
        if stage == 0:
            model.norm = model.head = None
        else:
            model.tokens = model.places = None
        del model.layers[str(1 - stage)]
    everyone = mesh["data", "cp"]._flatten("rows").get_group() if data * options.cp > 1 else None
    for layer in model.layers.values():
        layer.attention.cp = mesh["cp"].get_group() if options.cp > 1 else None
        if options.ep > 1:
            at = everyone.rank()
            layer.experts.weight = nn.Parameter(layer.experts.weight.detach().chunk(options.ep)[at].clone())
            layer.experts.ep = everyone
        if options.tp > 1:
            column, row = ColwiseParallel(), RowwiseParallel()
            names = {f"attention.{name}": column for name in "qkv"} | {"attention.out": row}
            parallelize_module(layer, mesh["tp"], names | {"up": column, "down": row})
    if options.fsdp > 1:
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    parts = options.accumulate * (4 if options.pp > 1 else 1)

    def loss_of(output, target):
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    if options.pp > 1:
        pipe = PipelineStage(model, stage, options.pp, device, group=mesh["pp"].get_group())
        schedule = Schedule1F1B(pipe, n_microbatches=4, loss_fn=loss_of)
    for _ in range(4):
        optimizer.zero_grad()
        if options.pp > 1:
            schedule.step(*([ids] if stage == 0 else []), **({"target": labels} if stage else {}))
        else:
            for x, y in zip(ids.chunk(parts), labels.chunk(parts), strict=True):
                (loss_of(model(x), y) / parts).backward()
        for name, p in model.named_parameters():
            if everyone is None:
                continue
            if name.endswith("experts.weight") and options.ep > 1:
                p.grad /= everyone.size()
            elif options.fsdp > 1 and options.cp > 1:
                dist.all_reduce(p.grad.to_local(), op=dist.ReduceOp.AVG, group=mesh["cp"].get_group())
            elif options.fsdp == 1:
                local = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
                dist.all_reduce(local, op=dist.ReduceOp.AVG, group=everyone)
        optimizer.step()
    dist.destroy_process_group()


main()
