"""Workers forked from a launcher that has imported torch and labkit.

The launcher forks all of them before it has threads and an open machine, so forking loses nothing. Each waits for what
it is to run. A guard, the last process that is forked, kills them when the launcher is gone. POSIX only, as fork is.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

# Arguments of Python, environment, and files to write to instead of the launcher's descriptors (1 and 2).
_Order = tuple[Sequence[str], Mapping[str, str], Mapping[int, str]]
_PID_BYTES = 8


class ForkedWorkers:
    """``count`` processes, each of which can be started once and then calls ``work(arguments)``."""

    def __init__(self, count: int, work: Callable[[list[str]], int]) -> None:
        gc.freeze()  # else the first collection in each worker would copy the shared memory
        flush_streams()
        self._all = [ForkedWorker(work) for _ in range(count)]
        self._waiting = list(self._all)
        self._to_guard, self._guard = _fork_guard({worker.pid for worker in self._all})
        for worker in self._all:
            worker.to_guard = self._to_guard

    def start(self, order: _Order) -> ForkedWorker | None:
        """Start a worker; return None if all have been started."""
        if not self._waiting:
            return None
        worker = self._waiting.pop(0)
        worker.start(order)
        return worker

    def close(self) -> None:
        """End all workers, and wait for the end."""
        os.kill(self._guard, signal.SIGKILL)
        os.waitpid(self._guard, 0)
        _kill_groups(worker.pid for worker in self._all if worker.poll() is None)
        for worker in self._all:
            worker.wait()
        os.close(self._to_guard)


class ForkedWorker:
    """A process in a session of its own; the part of ``subprocess.Popen`` that the elastic agent uses."""

    def __init__(self, work: Callable[[list[str]], int]) -> None:
        self.args: Sequence[str] = ()
        self.returncode: int | None = None
        self.to_guard = -1
        orders, self._orders = Pipe(duplex=False)
        self.pid = os.fork()
        if not self.pid:
            self._orders.close()  # then a launcher that is killed before it has a guard ends the wait
            _run_worker(orders, work)
        orders.close()

    def start(self, order: _Order) -> None:
        self.args = order[0]
        self._orders.send(order)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                with suppress(BrokenPipeError):  # the guard is gone
                    os.write(self.to_guard, pid.to_bytes(_PID_BYTES, "little"))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            time.sleep(0.005)
        return code


def _fork_guard(pids: set[int]) -> tuple[int, int]:
    """Fork the guard of ``pids``; return the descriptor for pids that have ended, and the guard's pid.

    The descriptor is closed at the launcher's end. Then the guard kills the others.
    """
    ended, to_guard = os.pipe()
    guard = os.fork()
    if not guard:
        os.setsid()  # the launcher passes on the terminal's signals
        os.close(to_guard)
        while number := os.read(ended, _PID_BYTES):
            pids.discard(int.from_bytes(number, "little"))
        _kill_groups(pids)
        os._exit(0)
    os.close(ended)
    return to_guard, guard


def _kill_groups(pids: Iterable[int]) -> None:
    """Kill processes that lead a session, with their children."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _run_worker(orders: Connection, work: Callable[[list[str]], int]) -> NoReturn:
    code = 70
    try:
        os.setsid()
        arguments, environment, files = orders.recv()
        orders.close()
        for number, path in files.items():
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        gc.enable()
        code = work(list(arguments))
    finally:
        flush_streams()
        os._exit(code)


def flush_streams() -> None:
    """Flush the output, if anybody takes it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or a broken pipe
            stream.flush()
