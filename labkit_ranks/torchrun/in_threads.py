"""torchrun for ranks in one process: arguments, environment, restarts, report of failures."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from simgpu import Machine, machine_in_use
from simgpu.children.environment import MachineDescription

from ..calls.faults import Unmet
from ..rank.rank import Rank
from ..threads.world import ADDRESS, PORT, RanksFailed, World
from .logs import Logs
from .script import RankProgram, exit_code, show_reports
from .worker import preload_torch


def launch(
    program: RankProgram,
    options: Any,
    machine: MachineDescription,
    begins: Callable[[], None] = lambda: None,
    ends: Callable[[World], None] = lambda world: None,
) -> int:
    """Run ``program`` with the options of ``torch.distributed.run``; return torchrun's exit code.

    machine        the GPUs of each node.
    begins, ends   called in each attempt: before the ranks are created; and with the ranks when they have ended.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    nodes = int(options.nnodes)
    environ = _torchrun_variables(options)
    shown = {int(number) for number in options.local_ranks_filter.split(",") if number}
    kinds = Std.from_str(options.redirects), Std.from_str(options.tee)
    specs = [DefaultLogsSpecs(options.log_dir, *kinds, shown or None) for _ in range(nodes)]
    preload_torch(program.script, program.module)  # else the first rank would import for all on its clock
    try:
        for attempt in range(options.max_restarts + 1):
            environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
            begins()
            failed = _run_attempt(program, options, machine, environ, specs, ends)
            if not failed:
                return 0
            if attempt < options.max_restarts:
                show_reports(program.deferred_errors)
    finally:
        if options.log_dir is None:
            for spec in specs:
                shutil.rmtree(spec.root_log_dir, ignore_errors=True)
    # The launcher's own frames don't help.
    sys.stderr.write("".join(traceback.format_exception_only(ChildFailedError(program.script, failed))))
    show_reports(program.deferred_errors)  # last, below torchrun's report
    return 1


def _run_attempt(
    program: RankProgram,
    options: Any,
    machine: MachineDescription,
    environ: dict[str, str],
    specs: list[Any],
    ends: Callable[[World], None],
) -> dict[int, Any]:
    """Run all ranks once; return a ``ProcessFailure`` for each rank that failed."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    each, nodes = int(options.nproc_per_node), int(options.nnodes)
    with ExitStack() as stack:
        if machine_in_use() is None:
            numbers, told = machine.visible_gpus(os.environ), machine.text()
            made = Machine(**machine.options(os.environ), numbers=numbers, description=told)
            stack.enter_context(made.open())
        memory = machine.options(os.environ)["memory"]
        world = stack.enter_context(World(each * nodes, nodes=nodes, memory=memory, environ=environ))
        logs = []
        for node, spec in enumerate(specs):
            here = {rank.local: rank.environ for rank in world.ranks if rank.node == node}
            filters = options.duplicate_stdout_filters, options.duplicate_stderr_filters
            streams = (sys.stdout, sys.stderr)
            logs.append(stack.enter_context(Logs(spec, here, streams, options.role, filters)))

        program.deferred_errors = ()

        def work(rank: Rank) -> None:
            logs[rank.node].begin(rank)
            program(rank)

        try:
            world.run(work, to_end=True, interrupts=True)
        except RanksFailed as failure:
            if isinstance(failure.error, Unmet):  # no rank has failed
                program.deferred_errors = (failure.error,)
            found = {}
            for number, error in failure.errors.items():
                if code := exit_code(error):
                    rank = world.ranks[number]
                    file = logs[rank.node].error_files[rank.local]
                    found[number] = ProcessFailure(rank.local, os.getpid(), code, file)
            return found
        finally:
            ends(world)
    return {}


def _torchrun_variables(options: Any) -> dict[str, str]:
    """Return torchrun's variables (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
    address, _, port = (options.rdzv_endpoint if options.rdzv_backend == "static" else "").partition(":")
    return {
        "ROLE_NAME": options.role,
        "MASTER_ADDR": address or options.master_addr or ADDRESS,
        "MASTER_PORT": port or str(options.master_port or PORT),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()) if options.standalone else options.rdzv_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
