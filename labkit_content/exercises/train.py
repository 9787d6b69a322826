"""The training program of lesson 23: a small transformer on sentences of a grammar, on one GPU or in a layout.

A script for torchrun: ``train.py --tp 2``. The lesson replaces some of its functions by a learner's.
"""

import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS = "_ . the a young small quick cat dog bird girl boy sees likes hears sleeps sings runs and but".split()
LENGTH, ROWS, WIDTH, HEADS, EXPERTS = 16, 8, 32, 4, 4
LAYOUTS = ("dp", "fsdp", "tp", "pp", "cp", "ep")


# The rows: sentences of a grammar.
def sentence(draw):
    def noun():
        adjective = draw.choice([[], ["young"], ["small"], ["quick"]])
        return [draw.choice(["the", "a"]), *adjective, draw.choice(["cat", "dog", "bird", "girl", "boy"])]

    def verb():
        if draw.random() < 0.5:
            return [draw.choice(["sleeps", "sings", "runs"])]
        return [draw.choice(["sees", "likes", "hears"]), *noun()]

    more = [draw.choice(["and", "but"]), *verb()] if draw.random() < 0.3 else []
    return [*noun(), *verb(), *more, "."]


def batch(seed):
    """Return rows of one to three sentences, padded with 0, the number of "_"."""
    draw, rows = random.Random(seed), torch.zeros(ROWS, LENGTH + 1, dtype=torch.long)
    for row in rows:
        words = [".", *(word for _ in range(draw.randint(1, 3)) for word in sentence(draw))][: LENGTH + 1]
        row[: len(words)] = torch.tensor([WORDS.index(word) for word in words])
    return rows


# The model: two layers, the second with experts.
class Attention(nn.Module):
    first, group = 0, None  # the place of the first word in the whole row; the ranks that hold parts of a row

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            one(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        if self.group:
            k, v = (collectives.all_gather_single(one.contiguous(), 2, self.group) for one in (k, v))
        place = self.first + torch.arange(q.shape[2], device=x.device)
        mask = place[:, None] >= torch.arange(k.shape[2], device=x.device)
        return self.o(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class ExpertLayer(nn.Module):
    group = None  # the ranks that share the experts

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(number): FeedForward() for number in range(EXPERTS)})

    def forward(self, x):
        rows = x.flatten(0, 1)
        weight, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        send = self.dispatch if self.group else self.compute
        return (weight[:, None] * send(rows[order], chosen[order])[order.argsort()]).view_as(x)

    def dispatch(self, rows, chosen):
        """Send each row to the rank that owns its expert, and the results back."""
        counts = torch.bincount(chosen, minlength=EXPERTS).view(self.group.size(), -1)
        dist.all_to_all_single(arriving := torch.empty_like(counts), counts, group=self.group)
        sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        own = torch.tensor([int(number) for number in self.experts], device=rows.device)
        numbers = own.repeat(len(counts)).repeat_interleave(arriving.flatten())
        here = collectives.all_to_all_single(rows, received, sent, self.group)
        return collectives.all_to_all_single(self.compute(here, numbers), sent, received, self.group)

    def compute(self, rows, chosen):
        out = torch.zeros_like(rows)
        for number, expert in self.experts.items():
            mine = (chosen == int(number)).nonzero().flatten()
            out = out.index_copy(0, mine, expert(rows[mine]).to(out.dtype))
        return out


class Layer(nn.Module):
    def __init__(self, feed_forward):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2, self.feed_forward = nn.RMSNorm(WIDTH), feed_forward

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    first = 0

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleDict({"0": Layer(FeedForward()), "1": Layer(ExpertLayer())})
        self.head = nn.Linear(WIDTH, len(WORDS), bias=False)

    def forward(self, x):
        if self.words is not None:
            x = self.words(x) + self.places(self.first + torch.arange(x.shape[1], device=x.device))
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x)


# The layouts.
def lay_out(model, layout, group):
    """Spread the model over the ranks of the group; parameters that one rank alone holds get the mark ``owned``."""
    rank, ranks, owned, made = group.rank(), group.size(), [], model
    if layout == "dp":
        made = DDP(model)
    elif layout == "fsdp":
        for part in (*model.layers.values(), model):
            fully_shard(part)
    elif layout == "tp":
        cut = {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {"attention.o": RowwiseParallel()}
        dense = {"feed_forward.up": ColwiseParallel(), "feed_forward.down": RowwiseParallel()}
        for layer, plan in zip(model.layers.values(), (cut | dense, cut), strict=True):
            parallelize_module(layer, dist.init_device_mesh("cuda", (ranks,)), plan)
    elif layout == "pp":
        del model.layers[str(1 - rank)]
        for name in ("words", "places") if rank else ("head",):
            setattr(model, name, None)
        owned = [*model.parameters()]
    elif layout == "cp":
        model.first = rank * LENGTH // ranks
        for layer in model.layers.values():
            layer.attention.first, layer.attention.group = model.first, group
    elif layout == "ep":
        moe = model.layers["1"].feed_forward
        moe.group = group
        for number in [number for number in range(EXPERTS) if number * ranks // EXPERTS != rank]:
            del moe.experts[str(number)]
        owned = [*moe.experts.parameters()]
    for parameter in owned:
        parameter.owned = True
    return made


def is_apart(parameter):
    """Return whether the ranks hold other parts of this parameter, or other parameters."""
    return getattr(parameter, "owned", False) or (
        isinstance(parameter, DTensor) and parameter.placements[0].is_shard()
    )


# One step.
def cut_rows(rows, rank, ranks):
    """Return the words of this rank's rows, and the word that follows each."""
    return rows[rank::ranks, :-1], rows[rank::ranks, 1:]


def cut_words(rows, rank, ranks):
    """Return this rank's part of the words of all rows, and the word that follows each."""
    return rows[:, :-1].chunk(ranks, 1)[rank], rows[:, 1:].chunk(ranks, 1)[rank]


def loss_sum(scores, following):
    """Return the sum of the losses, without padding."""
    return F.cross_entropy(scores.flatten(0, 1).float(), following.flatten(), ignore_index=0, reduction="sum")


def pipeline_step(stage, words, following, count):
    """Run forward and backward of four micro-batches; return the loss of this stage."""
    losses, schedule = [], Schedule1F1B(stage, 4, lambda *given: loss_sum(*given) / count, scale_grads=False)
    if stage.is_first:
        schedule.step(words)
    else:
        schedule.step(target=following, losses=losses)
    return sum(losses, torch.zeros_like(count))


def gradient_norm(model):
    """Return the norm of the gradient of the whole model."""
    same, apart = torch.zeros(2, device="cuda")
    for parameter in model.parameters():
        gradient = parameter.grad
        square = (gradient.to_local() if isinstance(gradient, DTensor) else gradient).square().sum()
        same, apart = (same, apart + square) if is_apart(parameter) else (same + square, apart)
    dist.all_reduce(apart)
    return (same + apart).sqrt()


def speak(model, count):
    """Print words that the model draws, each after those before it."""
    words, draw = [1], torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for _ in range(count):
            scores = model(torch.tensor([words[-LENGTH:]], device="cuda"))[0, -1]
            words.append(torch.multinomial(scores[1:].softmax(-1), 1, generator=draw).item() + 1)
    print(*(WORDS[word] for word in words[1:]))


def read_options(arguments):
    parser = argparse.ArgumentParser()
    for layout in LAYOUTS:
        parser.add_argument(f"--{layout}", type=int, default=1)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    for name, usual in (("steps", 10), ("seed", 0), ("say", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Train; print loss and gradient norm of each step, and return them."""
    options, device = read_options(arguments), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    layout = next((name for name in LAYOUTS if getattr(options, name) > 1), "one")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = lay_out(Transformer().to(device), layout, dist.group.WORLD)
    stage = PipelineStage(model, rank, ranks, device) if layout == "pp" else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=layout != "tp", foreach=False)
    cut, alone, history = cut_words if layout == "cp" else cut_rows, layout in ("one", "tp", "pp"), []
    for step in range(options.steps):
        rows = batch(1000 * options.seed + step).to(device)
        words, following = cut(rows, 0, 1) if alone else cut(rows, rank, ranks)
        count = (following != 0).sum().float()
        if not alone:
            dist.all_reduce(count)
        with torch.autocast("cuda", torch.bfloat16, enabled=options.precision == "bf16"):
            if stage:
                loss = pipeline_step(stage, words, following, count)
            else:
                loss = loss_sum(model(words), following) / count
                scale = ranks if layout in ("dp", "fsdp") else 1  # DDP and FSDP average over ranks
                (loss * scale).backward()
        if layout in ("cp", "ep"):
            for parameter in model.parameters():
                if not is_apart(parameter):
                    dist.all_reduce(parameter.grad)
        norm, loss = gradient_norm(model), loss.detach()
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm, foreach=layout != "tp")
        optimizer.step()
        optimizer.zero_grad()
        if layout not in ("one", "tp"):
            dist.all_reduce(loss)
        history.append((loss.item(), norm.item()))
        if rank == 0 and (step < 10 or step % 20 == 19):
            print("step {} loss {:.7f} norm {:.7f}".format(step + 1, *history[-1]), flush=True)
    if options.say:
        speak(model, options.say)
    return history


if __name__ == "__main__":
    main()
