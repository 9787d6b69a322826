"""The judge's side of the workers: starting them, asking them, watching what they take, ending them.

A :class:`Template` is one process in the sandbox that has torch imported; each :class:`Worker` is a fork of it. Only
this process knows limits and clocks; whatever a worker says of itself is not asked for.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ... import content
from ...base import ours
from ...base.language import VARIABLE, say
from .inside import frames

PACKAGE = Path(ours.FOLDER).resolve()
# What of labkit a student's code may read while it is graded: what it computes with, and what runs it. Whatever is not
# named here is not there: judges, answers and content, under any name and in any room.
SHOWN = (
    "__init__.py __init__.pyi base turns plans engine machine children trace cost view explore diagnosis distributed "
    "classroom/__init__.py classroom/wall/__init__.py classroom/wall/inside"
).split()
HOME = "/answer"  # of a worker, as :mod:`.worker.sandbox` makes it
_FIRST_ID = 0x6C61_6200  # user ids that no system gives out: two for each lane
_START = 120  # seconds of wall time that torch may take to be imported on a very busy machine
_TICK = 0.05  # seconds between two looks at what a worker takes
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Limits:
    """What the student's code may take to answer one request.

    cpu        seconds of processor time, of all its processes together.
    wall       seconds on the clock; None: enough for a machine that is busy with other things.
    memory     bytes beyond what the template has.
    processes  processes and threads at once.
    """

    cpu: float = 5.0
    wall: float | None = None
    memory: int = 3 << 29
    processes: int = 96

    @property
    def clock(self) -> float:
        return 6 * self.cpu + 5 if self.wall is None else self.wall

    def with_cpu(self, cpu: float) -> Limits:
        return replace(self, cpu=cpu)


class Ended(Exception):
    """No answer came. ``why``: cpu, wall, memory, died, garbled; ``str()`` says it in words, for the teacher."""

    def __init__(self, why: str, told: str) -> None:
        super().__init__(told)
        self.why = why


class CannotStart(RuntimeError):
    """The sandbox cannot be had on this machine in this way; the message says why."""


class Template:
    """A process behind the wall, with torch imported, of which workers are forked. A context manager.

    way      see :mod:`.isolation`: "root", "user", "landlock" or "limits".
    preload  modules to import beforehand.
    hidden   folders of the teacher's that must not be seen, should they lie in one that must (a course inside a
             virtual environment, say).
    lane     which of several templates of this grading it is.
    """

    def __init__(
        self, way: str, preload: Sequence[str] = (), hidden: Sequence[Path] = (), lane: int = 0
    ) -> None:
        self.way = way
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = configuration(way, hidden, lane) | {
            "control": there.fileno(),
            "preload": list(preload),
        }
        code = "import sys, json; sys.path.insert(0, sys.argv[2]); from labkit.classroom.wall.inside import template; "
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-c",
                code + "template.main(json.loads(sys.argv[1]))",
                json.dumps(config),
                PACKAGE.parent,
            ],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env=environment(way),
            cwd="/",
            start_new_session=True,
        )
        there.close()
        self._control = here
        self._control.settimeout(_START)
        try:
            told = json.loads(self._control.recv(1 << 16) or b"{}")
        except (OSError, ValueError) as error:
            told = {"failed": str(error)}
        if "ready" not in told:
            self.log.seek(0)
            said = told.get("failed") or self.log.read()[-2000:].decode("utf-8", "replace") or "it ended"
            self.close()
            raise CannotStart(said)
        self.process = self._inside()
        self._size, self._private = _memory(self.process)

    def _inside(self) -> int:
        """The id of the template itself, which the started process only waits for."""
        return next(iter(_children().get(self._process.pid, ())), self._process.pid)

    def worker(self, limits: Limits) -> Worker:
        """A fresh one; ``limits`` are those of its first request, and bound what all of its requests may take."""
        asked, requests = os.pipe()
        replies, told = os.pipe()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "cpu": 600,
            "address_space": self._size + limits.memory,
            "processes": limits.processes,
        }
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], [asked, told, there.fileno()])
        except OSError:
            for fd in requests, replies:
                os.close(fd)
            here.close()
            raise CannotStart("the template has ended") from None
        finally:
            os.close(asked)
            os.close(told)
            there.close()
        keeper = _Kept(here)
        return Worker(self, os.fdopen(requests, "wb", 0), os.fdopen(replies, "rb", 0), keeper)

    def taken(self) -> tuple[float, int]:
        """(CPU seconds, bytes of memory of its own) of the processes of the workers there are now."""
        children = _children()
        keepers = children.get(self.process, [])
        found = [pid for keeper in keepers for pid in children.get(keeper, [])]
        for pid in found:  # grows as it is walked
            found += children.get(pid, [])
        cpu, memory = 0.0, 0
        for pid in found:
            with suppress(OSError, ValueError, IndexError):
                cpu += _cpu(pid)
                memory += max(0, _memory(pid)[1] - self._private)
        return cpu, memory

    def close(self) -> None:
        self._control.close()
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        self.log.close()

    def __enter__(self) -> Template:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Bare:
    """In place of a :class:`Template` where there is neither wall nor fork: each worker is a Python of its own.

    It is slow (each imports torch), and holds back nothing but endless work: for students who are trusted.
    """

    way = "bare"

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._preload = list(preload)

    def worker(self, limits: Limits) -> Worker:
        code = (
            "import sys, os; sys.path.insert(0, sys.argv[1])\n"
            "from labkit.classroom.wall.inside import student\n"
            "student.bare(sys.argv[2:])"
        )
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code, str(PACKAGE.parent), *self._preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            bufsize=0,
        )
        assert process.stdin
        assert process.stdout
        worker = Worker(self, process.stdin, process.stdout, _Started(process))  # type: ignore[arg-type]
        worker.request({"do": "define", "sources": [["start", ""]]}, replace(limits, wall=_START))
        return worker

    def taken(self) -> tuple[float, int]:
        return 0.0, 0

    def close(self) -> None:
        pass

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Keeper(Protocol):
    """Whoever can end a worker, and knows how it ended."""

    def status(self) -> int | None:
        """The exit code, negative for a signal; None if it is not known."""

    def kill(self) -> None:
        """End it and all that it started; again is no harm."""


class _Kept:
    """A keeper in the sandbox, at the other end of a socket (see :mod:`.worker.template`)."""

    def __init__(self, here: socket.socket) -> None:
        self._here = here
        here.settimeout(10)

    def status(self) -> int | None:
        try:
            return os.waitstatus_to_exitcode(json.loads(self._here.recv(4096))["status"])
        except (OSError, ValueError, KeyError):
            return None

    def kill(self) -> None:
        with suppress(OSError):
            self._here.shutdown(socket.SHUT_WR)
            while self._here.recv(4096):
                pass
        self._here.close()


class _Started:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def status(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(10)
        return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Worker:
    """One process with a student's code, and the pipes to it."""

    def __init__(
        self, template: Template | Bare, requests: BinaryIO, replies: BinaryIO, keeper: Keeper
    ) -> None:
        self._template, self._requests, self._replies, self._keeper = template, requests, replies, keeper
        self._inbox: queue.Queue[tuple[bytes, bytes] | Exception] = queue.Queue(2)
        self._over: Ended | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def request(self, message: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """The reply to ``message``; :class:`Ended` if there is none, and then the worker is gone."""
        if self._over:
            raise self._over
        try:
            return self._request(message, limits)
        except Ended as ended:
            self._over = ended
            self.close()
            raise

    def _request(self, message: dict[str, Any], limits: Limits) -> dict[str, Any]:
        if not self._inbox.empty():
            raise self._early()
        token = secrets.token_hex(16)
        framed = frames.pack({"token": token, **message})
        writing = threading.Thread(target=self._write, args=(framed,), daemon=True)
        writing.start()
        reply = frames_reply(self._wait(limits), token)
        writing.join(limits.clock)
        return reply

    def _early(self) -> Ended:
        found = self._inbox.get()
        if isinstance(found, EOFError):
            return Ended("died", self._death())
        return Ended("garbled", "it spoke before it was asked")

    def _wait(self, limits: Limits) -> tuple[bytes, bytes]:
        end = time.monotonic() + limits.clock
        before: float | None = None
        while True:
            try:
                found = self._inbox.get(timeout=_TICK)
            except queue.Empty:
                cpu, memory = self._template.taken()
                if before is None:
                    before = cpu - _TICK if cpu > _TICK else 0.0
                if cpu - before > limits.cpu:
                    raise Ended("cpu", f"more than {limits.cpu:g} s of processor time") from None
                if memory > limits.memory:
                    raise Ended("memory", f"more than {limits.memory >> 20} MiB") from None
                if time.monotonic() > end:
                    raise Ended("wall", f"no answer within {limits.clock:g} s") from None
                continue
            if isinstance(found, EOFError):
                raise Ended("died", self._death())
            if isinstance(found, Exception):
                raise Ended("garbled", str(found))
            return found

    def _write(self, framed: bytes) -> None:
        with suppress(OSError, ValueError):  # it has ended; the reader says so
            view = memoryview(framed)
            while view:
                view = view[self._requests.write(view) :]

    def _read(self) -> None:
        try:
            while True:
                header = frames.exactly(self._replies, frames.HEADER.size)
                if not header:
                    raise EOFError
                text, body = frames.sizes(header)
                self._inbox.put((frames.exactly(self._replies, text), frames.exactly(self._replies, body)))
        except (OSError, ValueError) as error:
            self._inbox.put(error if isinstance(error, frames.Garbled) else EOFError())
        except EOFError as error:
            self._inbox.put(error)

    def _death(self) -> str:
        """How the worker ended, as its keeper tells."""
        status = self._keeper.status()
        if status is None:
            return say(en="its process is gone", zh="它的进程消失了")
        if status < 0:
            return say(en=f"its process was ended by signal {-status}", zh=f"它的进程被信号 {-status} 终止")
        return say(
            en=f"its process ended itself with exit code {status}",
            zh=f"它的进程自己退出了，退出码 {status}",
        )

    def close(self) -> None:
        """Kill it and all that it started, and wait until they are gone."""
        self._keeper.kill()
        with suppress(OSError):
            self._requests.close()
        end = time.monotonic() + 10
        while self._reader.is_alive() and time.monotonic() < end:
            with suppress(queue.Empty):  # it may be waiting to hand over a frame that nobody wants
                self._inbox.get_nowait()
            self._reader.join(_TICK / 10)
        with suppress(OSError):
            self._replies.close()


def frames_reply(found: tuple[bytes, bytes], token: str) -> dict[str, Any]:
    """The reply in a frame, if it is one to the request with this token; else :class:`Ended`."""
    try:
        reply = frames.unpack(*found)
    except frames.Garbled as error:
        raise Ended("garbled", str(error)) from None
    if type(reply) is not dict or set(reply) != {"token", "value", "error", "printed"}:
        raise Ended("garbled", "no reply")
    if type(reply["token"]) is not str or not secrets.compare_digest(reply["token"].encode(), token.encode()):
        raise Ended("garbled", "a reply to another question")
    return reply


def template(way: str, preload: Sequence[str], hidden: Sequence[Path] = (), lane: int = 0) -> Template | Bare:
    """What workers are taken from, in the way that :func:`.isolation.best` names."""
    return Bare(preload) if way == "bare" else Template(way, preload, hidden, lane)


def configuration(way: str, hidden: Sequence[Path] = (), lane: int = 0) -> dict[str, Any]:
    """What :func:`.worker.sandbox.enter` is told; ``hidden`` are folders of the teacher's."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    folders |= {path for path in sys.path if "site-packages" in path or "dist-packages" in path}
    readable = {
        name for folder in folders if os.path.isdir(folder) for name in (folder, os.path.realpath(folder))
    }
    base = _FIRST_ID + (os.getpid() & 0xFFFF) * 64 + 2 * lane
    return {
        "way": way,
        "readable": sorted(readable | {str(Path(sys.executable).resolve().parent)}),
        "hidden": [os.path.realpath(path) for path in (PACKAGE, content.FOLDER, *hidden)],
        "shown": [str(PACKAGE / name) for name in SHOWN],
        "ids": [base, base + 1],
    }


def environment(way: str = "root") -> dict[str, str]:
    """Nothing of the teacher's but the language: no keys, no names, no paths."""
    known = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }
    known |= {"MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if way in ("root", "user"):
        known |= {"HOME": HOME, "TMPDIR": HOME}
    return known | {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stream:
                parent = int(stream.read().rpartition(b") ")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def _cpu(pid: int) -> float:
    """Seconds of processor time of a process, and of its children that have ended."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        fields = stream.read().rpartition(b") ")[2].split()
    return sum(map(int, fields[11:15])) / _HERTZ


def _memory(pid: int) -> tuple[int, int]:
    """Bytes of a process: addresses it has, memory that is not a file's."""
    with open(f"/proc/{pid}/statm", "rb") as stream:
        size, resident, shared = map(int, stream.read().split()[:3])
    return size * _PAGE, (resident - shared) * _PAGE
