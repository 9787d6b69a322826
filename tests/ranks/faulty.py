"""Faulty distributed scripts, drawn by a seed: each with the fault that was put in, and what must be said of it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

BEGIN = """\
import os, queue, sys, threading
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()


def vector(n=4, dtype=torch.float32):
    return torch.ones(n, dtype=dtype, device="cuda")

"""
# What all ranks may do one after the other. Each is of another kind or size, so that they do not pass for another.
GOOD = """\
dist.all_reduce(vector({n}))
dist.all_reduce(vector({n}, torch.int64), op=dist.ReduceOp.MAX)
dist.broadcast(vector({n}), src={root})
dist.barrier()
dist.all_gather([vector({n}) for _ in range(size)], vector({n}))
dist.all_gather_into_tensor(vector(size * {n}), vector({n}))
dist.reduce_scatter_tensor(vector({n}), vector(size * {n}))
dist.all_to_all_single(vector(size * {n}), vector(size * {n}))
dist.reduce(vector({n}), dst={root})
dist.gather(vector({n}), [vector({n}) for _ in range(size)] if rank == {root} else None, dst={root})
dist.all_reduce(vector({n}), async_op=True).wait()
objects = [rank] * size; dist.all_gather_object(objects, {{"rank": rank}})
""".splitlines()


@dataclass(frozen=True)
class Faulty:
    """A script, the name of its fault, and what the error must say: patterns that are all found in its text."""

    fault: str
    source: str
    ranks: int
    said: tuple[str, ...]


SAID = {
    "{MEET}": r"ranks that meet in call \d+ of group default_pg do not call the same",
    "{STUCK}": "no rank can go on",
}


def read() -> dict[str, tuple[str, list[str]]]:
    """The faults of faulty.txt: name -> (where it stands, its lines)."""
    blocks = Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n=== ")[1:]
    faults = {}
    for heading, *lines in (block.rstrip().splitlines() for block in blocks):
        name, where = heading.split(", ")
        faults[name] = where, lines
    return faults


FAULTS = read()


def made(seed: int) -> Faulty:
    """The script of this number."""
    draw = random.Random(seed)
    ranks = draw.choice((2, 2, 3, 4))
    name = list(FAULTS)[seed % len(FAULTS)]
    good = [
        line.format(n=draw.randrange(1, 9), root=draw.randrange(ranks))
        for line in draw.choices(GOOD, k=draw.randrange(6))
    ]
    where, lines = FAULTS[name]
    facts = SAID | {"{who}": str(draw.randrange(ranks)), "{batches}": str(draw.randrange(2, 5))}
    for field, value in facts.items():
        lines = [line.replace(field, value) for line in lines]
    said = [line[2:] for line in lines if line.startswith("> ")]
    choices = [line[2:] for line in lines if line.startswith("| ")]
    faulty = [line for line in lines if not line.startswith(("> ", "| "))]
    if choices:  # what one of them makes torch say stands behind it
        chosen, _, own = draw.choice(choices).partition("  # ")
        faulty, said = [chosen, *faulty], [*said, *([re.escape(own)] if own else [])]
    at = draw.randrange(len(good) + 1) if where == "somewhere" else len(good)
    return Faulty(name, BEGIN + "\n".join([*good[:at], *faulty, *good[at:]]) + "\n", ranks, tuple(said))


def run(script: Faulty) -> str:
    """The text of the error in which ``script`` ends; "" if it ends well."""
    from labkit_ranks.threads.world import RanksFailed, World

    code = compile(script.source, "train.py", "exec")

    def program(rank) -> None:
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as error:
            if error.code:
                raise

    with World(script.ranks) as world:
        try:
            world.run(program, to_end=True)
        except RanksFailed as failed:
            return f"{failed}"
    return ""


def problem(script: Faulty) -> str:
    """What is wrong with what was said of ``script``; "" if it was named right."""
    text = run(script)
    wrong = [pattern for pattern in script.said if not re.search(pattern, text)]
    return f"{script.fault}: not said: {wrong}\n{script.source}\n{text}" if wrong else ""
