"""Runs a script on hollow tensors, as few of its ranks as tell of all, and says what each GPU holds.

Ranks are alike if they hold the same: of those between two that were run and hold the same, none is run. Ranks that
send each other messages (the stages of a pipeline) are run together. Each other rank's part in a collective is that
of one that runs.
"""

from __future__ import annotations

import gc
import io
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from labkit.cost.hardware import Accelerator
from simgpu.features.tensors_without_data import DatalessMode, fresh_memory

from ..rank.rank import Rank
from ..threads.thread_transport import NotRunning
from ..threads.world import RanksFailed, World
from ..torchrun.script import RankProgram
from .memory_account import MemoryAccount, count_memory
from .timing import model_clock_of, model_clocks


@dataclass(frozen=True)
class RankPlan:
    """The memory of one rank's GPU, in bytes.

    allocated   after a step of the optimizer, as memory_allocated says, by kind.
    at_peak     at the most, by kind; ``phase`` ("forward", "backward", "step") and ``line`` are where that was.
    parts       the seconds of the last step: computing, bytes on their way, waiting for others. ``operations``: in it.
    elsewhere   the GPU that has these bytes, where that is not the rank's own.
    routed      whether it sends what an operator chose to other ranks, as a router does.
    like        the first rank that was run and holds the same; itself if no other before it does.
    """

    rank: int
    allocated: dict[str, int]
    at_peak: dict[str, int]
    phase: str
    line: str
    like: int
    parts: dict[str, float] = field(default_factory=dict)
    operations: float = 0.0
    elsewhere: str = ""
    routed: bool = False

    @property
    def peak(self) -> int:
        return sum(self.at_peak.values())


def measure(
    program: RankProgram, ranks: int, nodes: int = 1, *, memory: int | str = "80 GiB", gpu_model: str | None = None,
    steps: int = 2, every: bool = False, times: Accelerator | None = None,
) -> list[RankPlan]:  # fmt: skip
    """The memory of each rank's GPU when ``program`` has made ``steps`` steps.

    times   the GPU whose times are reckoned with.
    every   whether each rank is run, alike or not.

    Raises RanksFailed if the script fails.
    """
    found: dict[int, MemoryAccount] = {}
    wanted = set(range(ranks)) if every else {0, ranks - 1}
    together: set[frozenset[int]] = set()
    while wanted:
        batch = set(wanted)
        for group in together:
            if group & batch:
                batch |= group
        try:
            found |= _run(program, ranks, nodes, batch, memory, gpu_model, steps, times)
        except RanksFailed as failure:
            if not isinstance(failure.error, NotRunning):
                raise
            together.add(frozenset(failure.error.ranks))
            wanted |= {*failure.error.ranks}
            continue
        finally:
            # Modules are cycles. Beside a hollow tensor that is larger than the computer's memory nobody can fork.
            gc.collect()
        wanted = _ranks_between(found)
    return [_make_rank_plan(rank, found) for rank in range(ranks)]


def _run(
    program: RankProgram, ranks: int, nodes: int, running: set[int], memory: Any, gpu_model: str | None, steps: int,
    times: Accelerator | None,
) -> dict[int, MemoryAccount]:  # fmt: skip
    """Run these ranks together, and count what is on the GPU of each."""
    censuses: dict[int, MemoryAccount] = {}
    censuses |= {rank: MemoryAccount(censuses) for rank in sorted(running)}
    options = {"nodes": nodes, "memory": memory, "gpu_model": gpu_model, "running": running}
    with fresh_memory(), redirect_stdout(io.StringIO()), World(ranks, **options) as world:
        for rank in world.ranks:
            for gpu in rank.gpus:
                gpu.fraction = 1e6  # what does not fit is counted, too

        def work(rank: Rank) -> None:
            census = censuses[rank.number]
            census.times = model_clock_of(rank)
            with DatalessMode(None if census.times is None else census.times.saw) as hollow:
                try:
                    program.run(rank.main)
                except SystemExit as ended:
                    if ended.code not in (None, 0):
                        raise
                sends = any(kind.startswith("all_to_all") for kind in rank.visits.kinds())
                census.routed = sends and hollow.chose_gpus
                if not census.steps:
                    census.after = census.by_kind()
                if census.gpu is not None and census.gpu is not rank.gpu:
                    census.elsewhere = str(census.gpu.device)

        with count_memory(censuses, steps), model_clocks(times, 0.0) if times is not None else nullcontext():
            try:
                world.run(work, sorted(running))
            finally:
                for rank in world.ranks:
                    rank.main.__dict__.clear()  # what a script leaves is as large as the GPUs
    return censuses


def _make_rank_plan(rank: int, found: dict[int, MemoryAccount]) -> RankPlan:
    seen = found[max(one for one in found if one <= rank)]
    like = next(one for one in sorted(found) if found[one].holds_same(seen))
    return RankPlan(
        rank, seen.after, seen.at_peak, seen.phase, seen.line, like, seen.step_parts, seen.operations,
        seen.elsewhere, seen.routed,
    )  # fmt: skip


def _ranks_between(found: dict[int, MemoryAccount]) -> set[int]:
    """Ranks in the middle between two that were run and differ."""
    run = sorted(found)
    pairs = zip(run, run[1:], strict=False)
    return {(a + b) // 2 for a, b in pairs if b - a > 1 and not found[a].holds_same(found[b])}
