"""The price of the simulated machine: one GPU, tiny operations, eight GPUs, recording, starting.

python benchmarks/machine.py
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import torch
from pairs import ratio, report
from torch import nn
from torch.overrides import TorchFunctionMode

import labkit


class Empty(TorchFunctionMode):
    """A function mode that does nothing: what any mode costs."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = (
            nn.Conv2d(inside, outside, 1, stride, bias=False)
            if stride != 1 or inside != outside
            else nn.Identity()
        )

    def forward(self, x):
        y = torch.relu(self.norm1(self.one(x)))
        return torch.relu(self.norm2(self.two(y)) + self.short(x))


def resnet(width=16):
    """The shape of a ResNet-18: a stem, eight blocks in four stages, a head."""
    sizes = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
    blocks, inside = [], width
    for at, outside in enumerate(sizes):
        blocks.append(Block(inside, outside, 2 if outside != inside else 1))
        inside = outside
        del at
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10),
    )  # fmt: skip


def step(model, x):
    """A training step of ``model`` on ``x``, as a function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return run


def many(function, times):
    """``times`` calls of ``function`` as one program."""

    def run():
        for _ in range(times):
            function()

    return run


def on_machine(machine, program):
    """``program`` run while torch sees ``machine``; outside, torch is itself."""

    def run():
        with machine.use_in_thread():
            program()

    return run


def against_plain(model, x, times):
    """The same step on one simulated GPU and on the plain CPU, in turn."""
    import copy

    plain = many(step(copy.deepcopy(model), x), times)
    machine = labkit.simulate(gpus=1)
    simulated = many(step(copy.deepcopy(model).cuda(), x.cuda()), times)

    def unseen():
        with torch._C.DisableTorchFunction():  # the machine stays up, its mode is off
            plain()

    result = ratio(simulated, unseen)
    machine.close()
    return result


def replicas_memory():
    """The bytes that eight replicas add to the process, over the sum of the eight GPUs' memory_allocated."""

    def resident():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    with labkit.simulate(gpus=8):
        before = resident()
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
        replicas = labkit.replicate(model, range(8))
        added = resident() - before
        counted = sum(torch.cuda.memory_allocated(gpu) for gpu in range(8))
        del replicas
    return added / counted


def main():
    torch.manual_seed(0)
    report(
        "one simulated GPU against the CPU: ResNet-18-like step",
        against_plain(resnet(), torch.randn(8, 3, 32, 32), 1),
        1.05,
    )
    report("the same: Linear(5, 2) step", against_plain(nn.Linear(5, 2), torch.randn(30, 5), 50), 1.6)

    with labkit.simulate(gpus=8):
        x = torch.randn(64, 3, 32, 32, device="cuda:0")
        model = resnet().cuda()
        wrapped = labkit.DataParallel(model)
        plain, shards = resnet(), [piece.cpu().clone() for piece in x.chunk(8)]

        def call():
            wrapped(x).square().mean().backward()

        def loop():
            with torch._C.DisableTorchFunction():
                for shard in shards:
                    plain(shard).square().mean().backward()

        claim = "eight simulated GPUs against a loop over the eight shards, there and back"
        report(claim, ratio(call, loop, pairs=15), 1.15)

        def recorded():
            with labkit.record():
                call()

        report("recording a trace against not recording, eight GPUs", ratio(recorded, call, pairs=15), 1.05)

    with labkit.simulate(gpus=1) as machine:
        a, b = torch.ones(10, device="cuda"), torch.ones(10, device="cuda")
        c, d = torch.ones(10), torch.ones(10)
        torch._C._pop_torch_function_stack()

        def simulated():
            with machine.mode:
                for _ in range(2000):
                    torch.add(a, b)

        def empty():
            with Empty():
                for _ in range(2000):
                    torch.add(c, d)

        report(
            "a 10-element add against the same under an empty function mode",
            ratio(simulated, empty, pairs=41),
            1.3,
        )
        torch._C._push_on_torch_function_stack(machine.mode)

    # In a process of its own: this one's allocator has seen much by now.
    alone = subprocess.run([sys.executable, __file__, "--memory"], check=True, capture_output=True, text=True)
    report("memory of the process for eight replicas against the bytes counted", float(alone.stdout), 1.05)

    times = []
    for _ in range(21):
        started = perf_counter()
        machine = labkit.simulate(gpus=8)
        times.append(perf_counter() - started)
        machine.close()
    report("starting an 8-GPU machine", sorted(times)[10] * 1000, 20, " ms")

    def bare():
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    def imported():
        subprocess.run([sys.executable, "-c", "import labkit"], check=True)

    def seconds(program):
        started = perf_counter()
        program()
        return perf_counter() - started

    extra = sorted(seconds(imported) - seconds(bare) for _ in range(21))[10]
    report("import labkit over bare Python", extra * 1000, 10, " ms")


if __name__ == "__main__":
    if sys.argv[1:] == ["--memory"]:
        print(replicas_memory())
    else:
        main()
