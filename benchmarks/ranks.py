"""The price of ranks: their start, a collective, training side by side.

python benchmarks/ranks.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from pairs import ratio, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import labkit
from labkit_ranks.threads.world import World

STEPS, COLLECTIVES = 40, 500


def begin(rank):
    """The first lines of a script."""
    if not dist.is_initialized():
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank.local)


def start(ranks):
    """Seconds until ``ranks`` threads have a process group."""
    started = perf_counter()
    with World(ranks) as world:
        world.run(begin)
        return perf_counter() - started


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
dist.barrier()
dist.destroy_process_group()
"""


def start_processes(ranks):
    """Seconds that a script takes in ``ranks`` processes which does no more than meet once, from the command on."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "meet.py")
        script.write_text(SCRIPT)
        command = [
            sys.executable,
            "-m",
            "labkit",
            "torchrun",
            "--processes",
            f"--nproc-per-node={ranks}",
            str(script),
        ]
        started = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return perf_counter() - started


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    ).cuda()


def train(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(128, 512, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def collective(ranks):
    """Seconds of each rank for one all_reduce of ten elements."""

    def many(rank):
        begin(rank)
        x = torch.ones(10, device="cuda")
        dist.all_reduce(x)
        started = perf_counter()
        for _ in range(COLLECTIVES):
            dist.all_reduce(x)
        dist.barrier()
        return (perf_counter() - started) / COLLECTIVES

    with World(ranks) as world:
        return max(world.run(many)) / ranks


def unevenness(ranks):
    """How far apart the waits of ranks that do the same are, in % of the run, while other programs compute, too."""

    def even(rank):
        begin(rank)
        torch.manual_seed(0)
        train(DistributedDataParallel(model(), device_ids=[rank.local]))

    program = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        with labkit.record() as trace, World(ranks) as world:
            world.run(even)
    finally:
        for other in others:
            other.kill()
            other.wait()
    events = [event for event in trace if event.rank is not None]
    whole = max(event.stop for event in events) - min(event.start for event in events)
    waits = [sum(event.waited for event in events if event.rank == rank) for rank in range(ranks)]
    return 100 * (max(waits) - min(waits)) / whole


def main():
    warnings.simplefilter("ignore")
    start(8)
    report("8 ranks start as threads", statistics.median(start(8) for _ in range(5)), 0.5, " s")
    report(
        "8 ranks start as processes, meet once and end", min(start_processes(8) for _ in range(3)), 3, " s"
    )
    report(
        "an all_reduce of ten elements, of each of 4 ranks",
        statistics.median(collective(4) for _ in range(5)) * 1e6, 100, " µs",
    )  # fmt: skip
    report(
        "waits of 4 even ranks, most less least, two other programs a processor",
        statistics.median(unevenness(4) for _ in range(3)), 5, " %",
    )  # fmt: skip
    with World(4) as world:

        def side_by_side():
            def run(rank):
                begin(rank)
                train(DistributedDataParallel(model(), device_ids=[rank.local]))

            world.run(run)

        def one_after_the_other():
            for gpu in range(4):
                torch.cuda.set_device(gpu)
                train(model())

        side_by_side()
        report(
            f"{STEPS} DDP steps on 4 ranks over the four replicas' work",
            ratio(side_by_side, one_after_the_other, pairs=7, warmup=1), 1.3,
        )  # fmt: skip


if __name__ == "__main__":
    main()
