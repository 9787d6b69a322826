"""Runs in a forked worker what ``python -u SCRIPT ARGS`` does in a new process.

Two differences from a new Python: all workers have the same hash seed, so sets have the same order in each; and
packages that read the environment during their import have read the launcher's.
"""

from __future__ import annotations

import ast
import atexit
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from labkit.base import as_main
from simgpu import inherit
from simgpu.tracebacks import strip_labkit_frames

from ..processes import deadlock_detector, process_patches

# Modules that optimizers and parallel models import late, in half a second.
_LATE = ("torch._dynamo",)
_LATE_BY = ("optim", "parallel", "fsdp", "fully_shard", "compile", "tensor")


def preload_torch(script: str, module: bool) -> None:
    """Import the parts of torch that ``script`` needs, once for all workers."""
    try:
        text = Path(script).read_text("utf-8") if not module else ""
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return  # the worker will report it
    names = [name for node in ast.walk(tree) for name in _imported_names(node)]
    names = [name for name in names if name.partition(".")[0] == "torch"]
    if any(word in text for word in _LATE_BY):
        names += _LATE
    for name in dict.fromkeys(names):
        with suppress(Exception):  # not a module
            importlib.import_module(name)


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def run_worker(arguments: list[str]) -> int:
    """Do what ``python ARGUMENTS`` does with ``[-u] [-m] SCRIPT ARGS``; return the exit code."""
    unbuffered, module = False, False
    while arguments and arguments[0] in ("-u", "-m"):
        flag, *arguments = arguments
        unbuffered, module = unbuffered or flag == "-u", module or flag == "-m"
    if unbuffered:
        sys.stdout, sys.stderr = (_make_unbuffered(stream) for stream in (sys.stdout, sys.stderr))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        torch.set_num_threads(int(threads))  # OpenMP has read it before
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    inherit()
    process_patches.inherit()
    program = as_main.MainProgram(arguments[0], arguments[1:], module)
    code = _run_to_exit(lambda: program.run(ModuleType("__main__")))
    # Like the end of Python, without destroying C++ objects: gloo sometimes aborts when other ranks do the same.
    deadlock_detector.set_exit_code(_run_to_exit(threading._shutdown) or code)  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return deadlock_detector.exit_code()


def _make_unbuffered(stream: object) -> io.TextIOWrapper:
    assert isinstance(stream, io.TextIOWrapper)
    raw: Any = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, newline="\n", write_through=True)


def _run_to_exit(run: Callable[[], object]) -> int:
    """Call ``run()``, print its error as Python does, and return the exit code."""
    try:
        run()
    except BaseException as error:
        strip_labkit_frames(error)
        if not isinstance(error, SystemExit):
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        as_main.show_error(error)
        deadlock_detector.leave_report(getattr(error, "report", None))
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return as_main.exit_code(error)
    return 0
