"""System calls of a rank in a thread: exit, signals and the current folder, as a process has them.

The patches are in place while there are ranks. Threads outside of ranks, and children of this process, get the
original functions.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from labkit.base.patches import Patch

from .own_modules import is_per_process, is_shared_file
from .process_state import ProcessState


class RankExit(BaseException):
    """Ends a rank as ``os._exit`` or a signal ends a process; ``code`` is the exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_exit_functions(state: ProcessState, show: Callable[[BaseException], object]) -> None:
    """Call the rank's ``atexit`` functions, the last first, and pass their errors to ``show``."""
    while state.exit_functions:
        function, args, kwargs = state.exit_functions.pop()
        try:
            function(*args, **kwargs)
        except Exception as error:
            show(error)


def patches() -> Iterator[Patch]:
    """Yield patches of ``os``, ``signal``, ``atexit``, and of functions that start processes."""
    for owner, name, for_a_rank in _FOR_RANKS:
        if hasattr(owner, name):  # some systems lack some
            yield Patch.wrap(owner, name, functools.partial(_choose_function, for_a_rank))


_FOR_RANKS: list[tuple[Any, str, Callable[..., Any]]] = []


def _for_ranks(owner: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a replacement of ``owner.name`` in ranks, called with the rank's state, the original, and arguments."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        _FOR_RANKS.extend((owner, name, function) for name in names)
        return function

    return keep


def _choose_function(
    for_a_rank: Callable[..., Any], real: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    state = ProcessState.current
    # Outside of ranks, or in a forked child.
    if state is None or state.rank is None or state.process != os.getpid():
        return real(*args, **kwargs)
    return for_a_rank(state, real, *args, **kwargs)


@_for_ranks(atexit, "register")
def _register(state: ProcessState, real: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(3)
    file, own = caller.f_code.co_filename, is_per_process(str(caller.f_globals.get("__name__", "")))
    # Installed modules, which all ranks share, register functions for the end of the process.
    if not own and not file.startswith("<") and is_shared_file(file):
        return real(function, *args, **kwargs)
    state.exit_functions.append((function, args, kwargs))
    return function


@_for_ranks(atexit, "unregister")
def _unregister(state: ProcessState, real: Any, function: Any, /) -> None:
    state.exit_functions[:] = [one for one in state.exit_functions if one[0] != function]
    real(function)


@_for_ranks(signal, "signal")
def _signal(state: ProcessState, real: Any, number: Any, handler: Any, /) -> Any:
    if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
        raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
    before = signal.getsignal(number)
    state.handlers[number] = handler
    return before


@_for_ranks(signal, "getsignal")
def _getsignal(state: ProcessState, real: Any, number: Any, /) -> Any:
    return state.handlers.get(number, real(number))


@_for_ranks(os, "kill")
def _kill(state: ProcessState, real: Any, process: int, number: int, /) -> None:
    if process != os.getpid():
        real(process, number)
    else:
        _raise_signal_in_rank(state, number, sys._getframe(3))


@_for_ranks(signal, "raise_signal")
def _raise_signal(state: ProcessState, real: Any, number: int, /) -> None:
    _raise_signal_in_rank(state, number, sys._getframe(3))


def _raise_signal_in_rank(state: ProcessState, number: int, frame: FrameType) -> None:
    """Apply a signal to a rank, running in ``frame``, as to a process."""
    handler = state.handlers.get(number, signal.SIG_DFL)
    if number == signal.SIGINT and handler is signal.SIG_DFL:
        raise KeyboardInterrupt
    if callable(handler):
        handler(number, frame)
    elif handler is signal.SIG_DFL and number not in _HARMLESS:
        raise RankExit(-number)


_HARMLESS = {0} | {getattr(signal, name, 0) for name in ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT")}


@_for_ranks(os, "_exit")
def _exit(state: ProcessState, real: Any, status: int) -> NoReturn:
    raise RankExit(status & 0xFF)


@_for_ranks(os, "abort")
def _abort(state: ProcessState, real: Any) -> NoReturn:
    raise RankExit(-signal.SIGABRT)


@_for_ranks(os, "chdir")
def _chdir(state: ProcessState, real: Any, path: Any) -> None:
    ProcessState.prepare_chdir()
    real(path)


# Other processes. They inherit C's environment, which is the process's; Python's dictionary is the rank's.


@_for_ranks(subprocess.Popen, "__init__")
def _popen(
    state: ProcessState, real: Any, process: Any, args: Any, *more: Any, env: Any = None, **options: Any
) -> None:
    real(process, args, *more, env=os.environ if env is None else env, **options)


@_for_ranks(multiprocessing.util, "spawnv_passfds")
@_for_ranks(os, "system", "fork", "execv", "spawnv", "posix_spawn")
def _export_environment_first(state: ProcessState, real: Any, *args: Any, **kwargs: Any) -> Any:
    state.export_environment()
    return real(*args, **kwargs)
