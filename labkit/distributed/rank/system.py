"""What a process asks of its system, and a rank that is a thread asks too: to end, to be told of a signal, to move.

Rows (:mod:`labkit.base.patches`) that are in while ranks are. Whoever is no rank, or a child of this process, gets what
Python really has.
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
from typing import Any, NoReturn

from ...base.patches import Patch
from .own_modules import is_of_a_process, is_shared_file
from .process_state import ProcessState


class Left(BaseException):
    """Ends a rank as ``os._exit`` and signals end a process; ``code`` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def patches() -> Iterator[Patch]:
    """For ``os``, ``signal``, ``atexit``, and what starts other processes."""
    yield Patch(atexit, "register", _register(atexit.register))
    yield Patch(atexit, "unregister", _unregister(atexit.unregister))
    yield Patch(signal, "signal", _signal(signal.signal))
    yield Patch(signal, "getsignal", _getsignal(signal.getsignal))
    yield Patch(signal, "raise_signal", _raise_signal(signal.raise_signal))
    yield Patch(os, "kill", _kill(os.kill))
    yield Patch(os, "_exit", _exit(os._exit))
    yield Patch(os, "abort", _abort(os.abort))
    yield Patch(os, "chdir", _chdir(os.chdir))
    yield Patch(subprocess.Popen, "__init__", _with_environment(subprocess.Popen.__init__))
    yield Patch(multiprocessing.util, "spawnv_passfds", _after_telling_c(multiprocessing.util.spawnv_passfds))
    for name in ("system", "fork", "execv", "spawnv", "posix_spawn"):
        if hasattr(os, name):
            yield Patch(os, name, _after_telling_c(getattr(os, name)))


def _rank_here() -> ProcessState | None:
    """The state of the rank that runs; None outside, and in a child that was forked."""
    state = ProcessState.current
    return state if state is not None and state.rank is not None and state.process == os.getpid() else None


def run_exit_functions(state: ProcessState, show: Callable[[BaseException], object]) -> None:
    """Call what the rank has registered, the last first; ``show`` is told what they raise."""
    while state.exit_functions:
        function, args, kwargs = state.exit_functions.pop()
        try:
            function(*args, **kwargs)
        except Exception as error:
            show(error)


def _register(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def register(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        state = _rank_here()
        # What installed modules register, which all ranks share, is for the end of the process.
        if state is None or _is_shared_code(sys._getframe(1).f_code.co_filename, sys._getframe(1).f_globals):
            return real(function, *args, **kwargs)
        state.exit_functions.append((function, args, kwargs))
        return function

    return register


def _is_shared_code(file: str, names: dict[str, Any]) -> bool:
    own = is_of_a_process(str(names.get("__name__", "")))
    return not own and not file.startswith("<") and is_shared_file(file)


def _unregister(real: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(real)
    def unregister(function: Any, /) -> None:
        if (state := _rank_here()) is not None:
            state.exit_functions[:] = [one for one in state.exit_functions if one[0] != function]
        real(function)

    return unregister


def _signal(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(real)
    def set_handler(number: Any, handler: Any, /) -> Any:
        state = _rank_here()
        if state is None:
            return real(number, handler)
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        before = signal.getsignal(number)
        state.handlers[number] = handler
        return before

    return set_handler


def _getsignal(real: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(real)
    def getsignal(number: Any, /) -> Any:
        state = _rank_here()
        return real(number) if state is None else state.handlers.get(number, real(number))

    return getsignal


def _strike(state: ProcessState, number: int) -> None:
    """What a signal to itself does to a rank."""
    handler = state.handlers.get(number, signal.SIG_DFL)
    if number == signal.SIGINT and handler is signal.SIG_DFL:
        raise KeyboardInterrupt
    if callable(handler):
        handler(number, sys._getframe(2))
    elif handler is signal.SIG_DFL and number not in _HARMLESS:
        raise Left(-number)


_HARMLESS = {0} | {getattr(signal, name, 0) for name in ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT")}


def _kill(real: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(real)
    def kill(process: int, number: int, /) -> None:
        state = _rank_here()
        if state is None or process != os.getpid():
            real(process, number)
        else:
            _strike(state, number)

    return kill


def _raise_signal(real: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(real)
    def raise_signal(number: int, /) -> None:
        state = _rank_here()
        if state is None:
            real(number)
        else:
            _strike(state, number)

    return raise_signal


def _exit(real: Callable[[int], NoReturn]) -> Callable[..., NoReturn]:
    @functools.wraps(real)
    def exit_(status: int) -> NoReturn:
        if _rank_here() is None:
            real(status)
        raise Left(status & 0xFF)

    return exit_


def _abort(real: Callable[[], NoReturn]) -> Callable[[], NoReturn]:
    @functools.wraps(real)
    def abort() -> NoReturn:
        if _rank_here() is None:
            real()
        raise Left(-signal.SIGABRT)

    return abort


def _chdir(real: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(real)
    def chdir(path: Any) -> None:
        if _rank_here() is not None:
            ProcessState.moving()
        real(path)

    return chdir


# Other processes. Python's dictionary of the environment is the rank's; C's, which they would get, is the process's.


def _with_environment(start: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(start)
    def init(process: Any, args: Any, *more: Any, env: Any = None, **options: Any) -> None:
        if env is None and _rank_here() is not None:
            env = os.environ
        start(process, args, *more, **({} if env is None else {"env": env}), **options)

    return init


def _after_telling_c(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def tell_c(*args: Any, **kwargs: Any) -> Any:
        if (state := _rank_here()) is not None:
            state.tell_c()
        return real(*args, **kwargs)

    return tell_c
