"""Faulty distributed scripts, drawn by a seed: each with the fault that was put in, and what must be said of it.

``python tests/ranks/faulty.py 1000`` runs so many (and ends itself, with a traceback, if one hangs).
"""

from __future__ import annotations

import faulthandler
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

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


FAULTS: dict[str, Callable[[random.Random, int, list[str]], tuple[list[str], tuple[str, ...]]]] = {}


def fault(make):
    FAULTS[make.__name__] = make
    return make


def made(seed: int) -> Faulty:
    """The script of this number."""
    draw = random.Random(seed)
    ranks = draw.choice((2, 2, 3, 4))
    name = list(FAULTS)[seed % len(FAULTS)]
    good = [
        line.format(n=draw.randrange(1, 9), root=draw.randrange(ranks))
        for line in draw.choices(GOOD, k=draw.randrange(6))
    ]
    lines, said = FAULTS[name](draw, ranks, good)
    return Faulty(name, BEGIN + "\n".join(lines) + "\n", ranks, said)


def put(draw: random.Random, good: list[str], *lines: str) -> list[str]:
    """``lines`` somewhere among the good ones."""
    at = draw.randrange(len(good) + 1)
    return [*good[:at], *lines, *good[at:]]


MEET = r"ranks that meet in call \d+ of group default_pg do not call the same"
STUCK = "no rank can go on"
READ = "torch.cuda.synchronize()"  # NCCL's calls only make the GPU wait


@fault
def skipped(draw, ranks, good):
    who = draw.randrange(ranks)
    lines = put(draw, good, f"if rank != {who}: dist.all_reduce(vector(17))")
    return lines, (
        f"{MEET}|{STUCK}",
        r"skipped a call|sizes differ|operations|types differ|never came to this line|has room|root",
    )


@fault
def one_more(draw, ranks, good):
    who = draw.randrange(ranks)
    return [*good, f"if rank == {who}: dist.barrier()"], (STUCK, r"never came to this line")


@fault
def other_shape(draw, ranks, good):
    call = draw.choice(
        ("dist.all_reduce(vector(3 + rank))", "dist.broadcast(vector(3 + rank), src=0)",
         "dist.reduce(vector(2 + rank), dst=0)",
         "dist.all_gather_into_tensor(vector(size * (1 + rank)), vector(1 + rank))",
         "dist.reduce_scatter_tensor(vector(1 + rank), vector(size * (1 + rank)))")
    )  # fmt: skip
    return put(draw, good, call), (MEET, "Their sizes differ")


@fault
def other_pieces(draw, ranks, good):
    call = "dist.all_gather([vector(2 + rank) for _ in range(size)], vector(2 + rank))"
    return put(draw, good, call), (MEET, "has room for")


@fault
def other_dtype(draw, ranks, good):
    call = draw.choice(("all_reduce(vector(4, kind))", "broadcast(vector(4, kind), src=0)"))
    return put(draw, good, "kind = torch.float16 if rank else torch.float32", f"dist.{call}"), (
        MEET,
        "types differ",
    )


@fault
def other_root(draw, ranks, good):
    call = draw.choice(("broadcast(vector(), src=rank)", "reduce(vector(), dst=rank)"))
    return put(draw, good, f"dist.{call}"), (MEET, "root")


@fault
def other_op(draw, ranks, good):
    call = "dist.all_reduce(vector(), op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)"
    return put(draw, good, call), (MEET, "operations")


@fault
def other_kind(draw, ranks, good):
    call = draw.choice(("dist.barrier()", "dist.broadcast(vector(), src=0)", "dist.reduce(vector(), dst=0)"))
    return put(draw, good, f"if rank: {call}", "else: dist.all_reduce(vector())"), (MEET, "skipped a call")


@fault
def asynchronous_and_never_waited_for(draw, ranks, good):
    return [*good, "dist.all_reduce(vector())", "if rank: dist.all_reduce(vector(), async_op=True)"], (
        "never met",
        r"all_reduce SUM \[4\] float32",
    )


@fault
def early_exit(draw, ranks, good):
    who = draw.randrange(ranks)
    leave = draw.choice(("sys.exit()", "sys.exit(0)", "raise SystemExit"))
    return [*good, f"if rank == {who}: {leave}", "dist.barrier()"], (STUCK, rf"rank {who} +has ended")


@fault
def exception(draw, ranks, good):
    who = draw.randrange(ranks)
    return put(draw, good, f"if rank == {who}: raise KeyError('lost')", "dist.barrier()"), (
        rf"rank {who} failed: KeyError: 'lost'",
    )


@fault
def interrupted(draw, ranks, good):
    who = draw.randrange(ranks)
    return put(draw, good, f"if rank == {who}: raise KeyboardInterrupt", "dist.barrier()"), (
        rf"rank {who} failed: KeyboardInterrupt",
    )


@fault
def uneven_batches(draw, ranks, good):
    who, batches = draw.randrange(ranks), draw.randrange(2, 5)
    lines = [
        "model = DDP(torch.nn.Linear(3, 2).cuda())",
        f"for step in range({batches} + (rank == {who})):",
        "    model(torch.ones(2, 3, device='cuda')).sum().backward()",
        READ,
    ]
    return [*good, *lines], (STUCK, r"Tensor\.backward", "unequal numbers of batches")


@fault
def uneven_calls(draw, ranks, good):
    who, batches = draw.randrange(ranks), draw.randrange(2, 5)
    lines = [f"for step in range({batches} + (rank == {who})):", "    dist.all_reduce(vector())"]
    ends = draw.choice(((STUCK, "the host at train.py"), ("never met", "exit code 0")))
    lines += [READ] * (ends[0] == STUCK)
    return [*good, *lines], (*ends, "unequal numbers of batches", f"{batches} times")


@fault
def unused_parameters(draw, ranks, good):
    lines = [
        "net = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])",
        "net.forward = lambda x: net[0](x)",
        "model = DDP(net.cuda())",
        "for step in range(2): model(torch.ones(2, 3, device='cuda')).sum().backward()",
    ]
    return [*good, *lines], ("Expected to have finished reduction in the prior iteration",)


@fault
def sent_and_never_received(draw, ranks, good):
    pair = "if rank == 0: dist.send(vector(), 1)", "if rank == 1: dist.recv(vector(), 0)"
    return [*put(draw, good, *pair), pair[0]], ("never met", r"send to rank 1 \[4\] float32")


@fault
def sent_much_and_never_received(draw, ranks, good):
    return [*good, "if rank == 0: dist.send(vector(2**21), 1)"], (
        STUCK,
        "rank 1 ended without the other half",
    )


@fault
def received_and_never_sent(draw, ranks, good):
    return [*good, "if rank == 1: dist.recv(vector(), 0)"], (STUCK, "rank 0 ended without the other half")


@fault
def both_receive_first(draw, ranks, good):
    lines = ["if rank < 2:", "    dist.recv(vector(), 1 - rank)", "    dist.send(vector(), 1 - rank)", READ]
    return [*good, *lines], (STUCK, "All receive, and nobody sends")


@fault
def both_send_much_first(draw, ranks, good):
    lines = [
        "if rank < 2:",
        "    dist.send(vector(2**21), 1 - rank)",
        "    dist.recv(vector(2**21), 1 - rank)",
        READ,
    ]
    return [*good, *lines], (STUCK, "All send, and nobody receives")


@fault
def received_in_another_size(draw, ranks, good):
    lines = ["if rank == 0: dist.send(vector(3), 1)", "if rank == 1: dist.recv(vector(4), 0)"]
    return put(draw, good, *lines), ("a message and its receiver do not fit", "sizes differ")


@fault
def groups_in_another_order(draw, ranks, good):
    lines = [
        "groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]",
        "if rank < 2:",
        "    for group in groups if rank else groups[::-1]: dist.all_reduce(vector(), group=group)",
    ]
    return [*good, *lines], (STUCK, "different groups")


@fault
def new_group_in_one_rank(draw, ranks, good):
    call = "dist.all_reduce(vector(), group=dist.new_group([0, 1]))"
    return [*good, f"if rank == 0: {call}"], (
        STUCK,
        "rank 0 +waits for rank 1",
        "rank 1.* never came to this line",
    )


@fault
def destroyed_too_early(draw, ranks, good):
    who = draw.randrange(ranks)
    return [*good, f"if rank == {who}: dist.destroy_process_group()", "dist.barrier()"], (
        rf"rank {who} failed: ValueError: Default process group has not been initialized",
    )  # fmt: skip


@fault
def group_used_after_its_end(draw, ranks, good):
    lines = [
        "world = dist.group.WORLD",
        "dist.destroy_process_group()",
        "dist.all_reduce(vector(), group=world)",
    ]
    return [*good, *lines], (
        "DistBackendError|Invalid process group|Default process group has not been initialized",
    )  # fmt: skip


@fault
def on_the_host(draw, ranks, good):
    return put(draw, good, "dist.all_reduce(torch.ones(3))"), (
        "No backend type associated with device type cpu",
    )


@fault
def all_on_one_gpu(draw, ranks, good):
    lines = ["torch.cuda.set_device(0)", "dist.all_reduce(vector())"]
    return [*good, *lines], (
        r"Duplicate GPU detected : rank \d and rank \d both on CUDA device 0",
        "LOCAL_RANK",
    )


@fault
def refused_arguments(draw, ranks, good):
    call, said = draw.choice((
        ("dist.all_reduce(torch.ones(3, 3, device='cuda')[:, 1])", "Tensors must be contiguous"),
        ("dist.broadcast(vector(3, torch.int16), src=0)", "data type is not supported for NCCL process group: Short"),
        ("dist.all_reduce(vector(3, torch.int64), op=dist.ReduceOp.BAND)", "Cannot use ReduceOp.BAND with NCCL"),
        ("dist.all_gather_into_tensor(vector(5), vector(3))", "output tensor size must be equal to world_size times"),
        ("dist.reduce_scatter_tensor(vector(5), vector(3))", "input tensor must be the same size as output size times"),
        ("dist.all_to_all_single(vector(5), vector(5), [1] * size, [1] * size)",
         "Split sizes doesn't match total dim 0 size"),
        ("dist.broadcast(vector(), src=99)", "99"),
    ))  # fmt: skip
    return put(draw, good, call), (re.escape(said),)


@fault
def waits_in_a_lock(draw, ranks, good):
    who = draw.randrange(ranks)
    what, named = draw.choice((
        ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "Lock"),
        ("queue.Queue().get()", r"Queue\.get"),
        ("threading.Event().wait()", r"Event\.wait"),
        ("threading.Barrier(2).wait()", r"Barrier\.wait"),
    ))  # fmt: skip
    return [*good, f"if rank == {who}: {what}", "dist.barrier()"], (STUCK, rf"rank {who} +waits for {named}")


@fault
def key_that_nobody_sets(draw, ranks, good):
    who = draw.randrange(ranks)
    lines = [f"if rank == {who}: dist.distributed_c10d._get_default_store().get('never')", "dist.barrier()"]
    return [*good, *lines], (STUCK, rf"rank {who} +waits for .*never")


@fault
def rank_0_alone(draw, ranks, good):
    call = draw.choice(
        (
            "dist.barrier()",
            "dist.all_gather_object([None] * size, 1)",
            "dist.broadcast_object_list([1], src=0)",
        )
    )
    return [*good, f"if rank == 0: {call}"], (STUCK, "never came to this line", "if rank == 0:")


def run(script: Faulty) -> str:
    """The text of the error in which ``script`` ends; "" if it ends well."""
    from labkit.distributed.threads.world import RanksFailed, World

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


def main(count: int, first: int = 0) -> int:
    import warnings

    warnings.simplefilter("ignore")
    started, wrong, ran, longest = perf_counter(), [], Counter(), 0.0
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(60, exit=True)
        script, began = made(seed), perf_counter()
        ran[script.fault] += 1
        if found := problem(script):
            wrong.append(seed)
            print(f"--- {seed}: {found}", flush=True)
        longest = max(longest, perf_counter() - began)
    faulthandler.cancel_dump_traceback_later()
    print(
        f"{count} scripts of {len(ran)} faults: 0 hangs, {len(wrong)} not named right {wrong}; "
        f"{perf_counter() - started:.1f} s, the longest {longest:.2f} s"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:] or ["1000"])))
