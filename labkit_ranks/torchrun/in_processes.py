"""Runs PyTorch's elastic launcher with workers forked from it."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import traceback
from argparse import Namespace
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any
from unittest.mock import patch

from labkit.base.patches import Patch, Patches
from simgpu.children import environment as children

from ..processes.store_keys import REPORTS
from .forked_workers import ForkedWorkers, flush_streams

# Workers are forked for so many restarts, in 15 ms each. Later ones start Python; their reports are not repeated last.
_MOST_RESTARTS = 15
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def run(
    options: Namespace, given: Collection[str], machine: children.MachineDescription, faults: list[str]
) -> int:
    """Do what torchrun does with ``options``, on ``machine``, with real processes; return the exit code.

    given    the names of the options that the user has given.
    faults   receives the names of the faults that are reported last.

    ``--nnodes N`` without an address of the other nodes starts all N nodes here, each with a launcher of its own.
    """
    environment = children.environment_with_machine({**os.environ}, machine.text())
    interface = _LOOPBACK.get(sys.platform)
    if interface is not None:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    gc.disable()  # importing torch leaves no garbage, and collecting takes a tenth of the time
    with patch.dict(os.environ, environment):  # the agent passes its own environment on
        from .worker import preload_torch

        preload_torch(options.training_script, options.module)
        folder = os.environ[REPORTS] = mkdtemp(prefix="labkit")
        try:
            code = _launch(options, given)
            # Print reports last, below torchrun's own: a rank may have printed one far above.
            for path in Path(folder).glob(f"{options.max_restarts}*"):
                fault, _, text = path.read_text("utf-8").partition("\n")
                sys.stderr.write(f"labkit: {text}\n")
                faults.append(fault)
            return code
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _launch(options: Any, given: Collection[str]) -> int:
    """Start the nodes of this computer."""
    from torch.distributed.run import parse_min_max_nnodes

    nodes = parse_min_max_nnodes(options.nnodes)[1]
    names = ("node_rank", "master_addr", "rdzv_backend", "rdzv_endpoint", "rdzv_conf")
    elsewhere = any(name in given for name in names)
    if not elsewhere and not options.standalone and "master_port" not in given:
        with socket.socket() as free:  # the default, 29500, is also that of other runs
            free.bind(("127.0.0.1", 0))
            options.master_port = int(free.getsockname()[1])
    if nodes == 1 or elsewhere or options.standalone:
        return _run_node(options)
    running = {}
    for node in range(1, nodes):
        options.node_rank = node
        flush_streams()
        pid = os.fork()
        if not pid:
            code = 70
            try:
                code = _run_node(options)
            finally:
                flush_streams()
                os._exit(code)
        running[pid] = node
    options.node_rank = 0
    codes = [_run_node(options)]
    while running:
        pid, status = os.wait()
        if running.pop(pid, None) is not None:
            codes.append(os.waitstatus_to_exitcode(status))
    return next((code for code in codes if code), 0)


def _run_node(options: Any) -> int:
    """Run a node: the agent in the launcher's process, and workers."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing import api as agent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    from .worker import run_worker

    starts = 1 + min(options.max_restarts, _MOST_RESTARTS)
    workers = ForkedWorkers(torchrun.determine_local_world_size(options.nproc_per_node) * starts, run_worker)
    gc.enable()
    handler = _make_handler(workers)
    try:
        with Patches(lambda: [Patch(agent, "get_subprocess_handler", handler)]):
            record(torchrun.run)(options)
    except ChildFailedError as error:
        # The launcher's own frames don't help.
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        return 1
    except SignalException as signalled:
        sys.stderr.write("".join(traceback.format_exception_only(signalled)))
        return 128 + signalled.sigval
    finally:
        workers.close()
    return 0


def _make_handler(workers: ForkedWorkers) -> Any:
    """Return a replacement for the agent's way to start a worker, which takes a forked one instead of a new Python."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class Forked(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            streams: dict[int, IO[str] | None] = {1: self._stdout, 2: self._stderr}
            files = {number: stream.name for number, stream in streams.items() if stream is not None}
            # --no-python, or Python by way of numactl, is another program.
            worker = workers.start((args[1:], env, files)) if args[0] == sys.executable else None
            return worker or super()._popen(args, env)

        def close(self, death_sig: Any = None) -> None:
            # The worker may have ended, and the agent not have seen it yet.
            with suppress(ProcessLookupError):
                super().close(death_sig)

    return Forked
