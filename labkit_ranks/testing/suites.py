"""Run other people's tests under ``pytest --gpus N``, with ranks as threads of the process that starts them.

:func:`begin` is an entry point of the bootstrap (simgpu/children): it runs in pytest's process and in every child
process once torch is imported. Modules that torch has not imported yet are changed when somebody imports them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.abc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import torch
import torch.multiprocessing.spawn  # noqa: F401 (the module; torch.multiprocessing.spawn is its function)

from labkit.base.patches import Patch, Patches
from simgpu.children import environment as children

from . import triton_stand_in


@functools.cache
def begin() -> None:
    """Change torch in this process and in children."""
    children.add_entry("labkit_ranks.testing.suites:begin")
    spawning = sys.modules["torch.multiprocessing.spawn"]
    start = Patch.wrap(spawning, "start_processes", _start_processes)
    Patches(lambda: [start, Patch(torch.multiprocessing, "start_processes", start.value)]).put_in()
    after_import("torch.distributed.launcher.api", _change_launcher)
    for name in "common_distributed", "distributed.distributed_test":
        after_import(f"torch.testing._internal.{name}", _change_tests)
    triton_stand_in.offer()


def _change_launcher(module: Any) -> None:
    Patches(lambda: [Patch.wrap(module, "launch_agent", _launch_agent)]).put_in()


def _change_tests(module: Any) -> None:
    from . import pytorch_classes

    table = pytorch_classes.barrier_patches if hasattr(module, "Barrier") else pytorch_classes.patches
    Patches(lambda: table(module)).put_in()


def _start_processes(
    real: Callable[..., Any], fn: Any, args: Sequence[Any] = (), nprocs: int = 1, join: bool = True, *more: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """Run ``fn(rank, *args)`` in ranks, each with its own copy of the arguments, as ``torch.multiprocessing.spawn``."""
    from .started_ranks import Ranks, fit_threads  # late: most processes start no ranks

    if nprocs < 2 or not join or not fit_threads(nprocs):
        return real(fn, args, nprocs, join, *more, **options)
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    from ..threads.world import RanksFailed

    with contextlib.closing(Ranks(nprocs)) as ranks:
        try:
            codes = ranks.run(lambda rank: fn(rank, *map(_copy, args)))
        except RanksFailed as failed:
            error = "".join(traceback.format_exception(failed.error))
            text = f"\n\n-- Process {failed.rank} terminated with the following error:\n{error}"
            raise ProcessRaisedException(text, failed.rank, os.getpid()) from failed.error
    for rank, code in enumerate(codes):
        if code:
            text = f"process {rank} terminated with exit code {code}"
            raise ProcessExitedException(text, error_index=rank, error_pid=os.getpid(), exit_code=code)
    return None


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # queues and locks are shared by processes, too
        return value


def _launch_agent(
    real: Callable[..., Any], config: Any, entrypoint: Any, args: Sequence[Any], **more: Any
) -> Any:
    """Run the script of ``torchrun``, ``accelerate launch`` or ``python -m torch.distributed.run`` in ranks.

    Other programs, several nodes, and output in files are left to PyTorch's launcher.
    """
    from torch.distributed.elastic.multiprocessing import Std

    from .started_ranks import fit_threads

    size, logs = config.nproc_per_node, config.logs_specs
    whole = config.min_nodes == config.max_nodes == 1 and not config.virtual_local_rank
    plain = all(getattr(logs, name, None) == Std.NONE for name in ("_redirects", "_tee"))
    if entrypoint != sys.executable or args[0] != "-u" or not whole or not plain or not fit_threads(size):
        return real(config, entrypoint, args, **more)
    from torch.distributed.run import get_args_parser

    from ..torchrun.in_threads import launch
    from ..torchrun.script import RankProgram

    ours = f"--nnodes=1 --nproc-per-node={size} --max-restarts={config.max_restarts} --role={config.role}".split()
    options = get_args_parser().parse_args([*ours, *map(str, args[1:])])
    program = RankProgram(options.training_script, options.training_script_args, options.module)
    code = launch(program, options, children.parse_description(os.environ[children.MACHINE]))
    if code:
        sys.exit(code)
    return {}


# Late changes of modules.


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Call ``change(module)`` once the module ``name`` is imported; at once if it is."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of one module, whose loader then changes the module."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name, self.change = name, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
