"""A fork server: a process that has imported torch and labkit, and forks a worker for each rank.

The launcher forks the server before it has threads. The server has one thread and no open machine, so forking loses
nothing. Workers are its children; it reports to the launcher how each ended, and kills them when the launcher is gone.
POSIX only, as fork is.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from labkit.base.language import say, wrong

# Arguments of Python, environment, and files to write to instead of the launcher's descriptors (1 and 2).
_Order = tuple[Sequence[str], Mapping[str, str], Mapping[int, str]]


class ForkServer:
    """The launcher's end of the server, which calls ``preload()`` while the launcher goes on."""

    def __init__(self, preload: Callable[[], object], work: Callable[[list[str]], int]) -> None:
        self._control, control = Pipe()
        self._workers: dict[int, ForkedWorker] = {}
        flush_streams()
        self._pid = os.fork()
        if not self._pid:
            try:
                self._control.close()
                _serve(control, preload, work)
            finally:
                os._exit(70)
        control.close()

    def start(self, order: _Order) -> ForkedWorker:
        """Start a worker in a new session."""
        self._control.send(order)
        while (pid := self._read_status()) is None:
            pass
        worker = self._workers[pid] = ForkedWorker(self, pid, order[0])
        return worker

    def listen(self, timeout: float | None) -> None:
        """Read how workers ended, and wait up to ``timeout`` seconds for the first message."""
        while self._workers and self._control.poll(timeout):
            self._read_status()
            timeout = 0

    def close(self) -> None:
        """End the server and all workers, and wait for the end."""
        self._control.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _read_status(self) -> int | None:
        """Read a message of the server; return the process id of a new worker, or None."""
        try:
            pid, code = self._control.recv()
        except (EOFError, OSError):
            self._end_orphans()
            return None
        if code is None:
            return int(pid)
        self._workers.pop(pid).returncode = code
        return None

    def _end_orphans(self) -> None:
        """Kill the workers of a killed server."""
        en = "the process that starts the ranks was killed, and the ranks with it"
        zh = "负责启动各 rank 的进程被杀掉了，各 rank 也随之结束"
        if not self._workers:
            raise wrong(RuntimeError, en=en, zh=zh)
        sys.stderr.write(f"labkit: {say(en=en, zh=zh)}\n")
        _kill_groups(self._workers)
        for worker in self._workers.values():
            worker.returncode = -signal.SIGKILL
        self._workers.clear()


class ForkedWorker:
    """The part of ``subprocess.Popen`` that the elastic agent uses."""

    def __init__(self, server: ForkServer, pid: int, arguments: Sequence[str]) -> None:
        self.pid, self.args = pid, arguments
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self._server.listen(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            self._server.listen(left)
        return self.returncode


def _kill_groups(pids: Iterable[int]) -> None:
    """Kill processes that lead a session, with their children."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _serve(control: Connection, preload: Callable[[], object], work: Callable[[list[str]], int]) -> NoReturn:
    os.setsid()  # the launcher passes on the terminal's signals
    ended, wake = socket.socketpair()
    for end in ended, wake:
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    preload()
    gc.freeze()  # else the first collection in each worker would copy the shared memory
    gc.enable()
    alive: set[int] = set()
    while True:
        ready = wait([control, ended])
        if ended in ready:
            ended.recv(1 << 12)
            for pid, code in _reap_children():
                alive.discard(pid)
                _send_status(control, pid, code)
        if control in ready:
            try:
                order: _Order = control.recv()
            except (EOFError, OSError):  # the launcher is gone
                _kill_groups(alive)
                os._exit(0)
            pid = _fork_worker()
            if not pid:
                for used in control, ended, wake:
                    used.close()
                _run_worker(order, work)
            alive.add(pid)
            _send_status(control, pid, None)


def _fork_worker() -> int:
    """Fork, and return in the parent once the child has a session of its own to be killed by."""
    begun, begin = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begin)
        os.read(begun, 1)
    else:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.close(begin)
    os.close(begun)
    return pid


def _reap_children() -> list[tuple[int, int]]:
    """Return ended children with their exit codes (negative for a signal)."""
    found = []
    with suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((one[0], os.waitstatus_to_exitcode(one[1])))
    return found


def _send_status(control: Connection, pid: int, code: int | None) -> None:
    with suppress(OSError):
        control.send((pid, code))


def _run_worker(order: _Order, work: Callable[[list[str]], int]) -> NoReturn:
    arguments, environment, files = order
    for number, path in files.items():
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    code = 70
    try:
        code = work(list(arguments))
    finally:
        flush_streams()
        os._exit(code)


def flush_streams() -> None:
    """Flush the output, if anybody takes it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or a broken pipe
            stream.flush()
