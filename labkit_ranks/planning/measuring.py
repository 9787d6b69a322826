"""Run a few ranks of a script on tensors without data, and derive what every rank's GPU holds.

If two ranks hold the same bytes, the ranks between are taken to be equal and not run. Ranks that exchange messages (the
stages of a pipeline) run together. In a collective, a running rank stands in for the ranks that don't run.
"""

from __future__ import annotations

import gc
import io
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import Any

from labkit.cost.hardware import Accelerator
from simgpu.features.tensors_without_data import DatalessMode, fresh_memory

from ..rank.rank import Rank
from ..threads.thread_transport import NotRunning
from ..threads.world import RanksFailed, World
from ..torchrun.script import RankProgram
from .memory_account import MemoryAccount, RankPlan, count_memory
from .timing import model_clock_of, model_clocks


def measure(
    program: RankProgram, ranks: int, nodes: int = 1, *, memory: int | str = "80 GiB", steps: int = 2,
    every: bool = False, times: Accelerator | None = None,
) -> list[RankPlan]:  # fmt: skip
    """Return the memory of each rank's GPU after ``steps`` optimizer steps of ``program``.

    times   the GPU whose speeds the clocks use.
    every   run every rank, not just a few.

    Raises RanksFailed if the script fails.
    """
    found: dict[int, RankPlan] = {}
    wanted = set(range(ranks)) if every else {0, ranks - 1}
    together: set[frozenset[int]] = set()
    while wanted:
        batch = set(wanted)
        for group in together:
            if group & batch:
                batch |= group
        try:
            found |= _run(program, ranks, nodes, batch, memory, steps, times)
        except RanksFailed as failure:
            if not isinstance(failure.error, NotRunning):
                raise
            together.add(frozenset(failure.error.ranks))
            wanted |= {*failure.error.ranks}
            continue
        finally:
            # Modules are cycles, and a tensor larger than the computer's memory keeps every process from forking.
            gc.collect()
        wanted = _ranks_between(found)
    return [_plan_of(rank, found) for rank in range(ranks)]


def _run(
    program: RankProgram, ranks: int, nodes: int, running: set[int], memory: Any, steps: int, times: Accelerator | None
) -> dict[int, RankPlan]:  # fmt: skip
    """Run the ranks ``running`` together; return what each rank's GPU held."""
    accounts: dict[int, MemoryAccount] = {}
    accounts |= {rank: MemoryAccount(RankPlan(rank), accounts) for rank in sorted(running)}
    quiet = redirect_stdout(io.StringIO())
    with fresh_memory(), quiet, World(ranks, nodes=nodes, memory=memory, running=running) as world:
        for rank in world.ranks:
            for gpu in rank.gpus:
                gpu.fraction = 1e6  # count bytes beyond the GPU's memory, too

        def work(rank: Rank) -> None:
            account = accounts[rank.number]
            account.times = model_clock_of(rank)
            with DatalessMode(None if account.times is None else account.times.saw) as mode:
                try:
                    program.run(rank.main)
                except SystemExit as ended:
                    if ended.code not in (None, 0):
                        raise
                sends = any(kind.startswith("all_to_all") for kind in rank.visits.kinds())
                account.plan.routed = sends and mode.has_chosen
                if not account.plan.steps:
                    account.plan.allocated = account.by_kind()
                if account.gpu is not None and account.gpu is not rank.gpu:
                    account.plan.elsewhere = str(account.gpu.device)

        with count_memory(accounts, steps), model_clocks(times, 0.0) if times is not None else nullcontext():
            try:
                world.run(work, sorted(running))
            finally:
                for rank in world.ranks:
                    rank.main.__dict__.clear()  # a script leaves tensors as large as the GPUs
    return {rank: account.plan for rank, account in accounts.items()}


def _plan_of(rank: int, found: dict[int, RankPlan]) -> RankPlan:
    seen = found[max(one for one in found if one <= rank)]
    like = next(one for one in sorted(found) if found[one].holds_same(seen))
    return replace(seen, rank=rank, like=like)


def _ranks_between(found: dict[int, RankPlan]) -> set[int]:
    """Return the ranks halfway between neighbours that were run and differ."""
    run = sorted(found)
    pairs = zip(run, run[1:], strict=False)
    return {(a + b) // 2 for a, b in pairs if b - a > 1 and not found[a].holds_same(found[b])}
