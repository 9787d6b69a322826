"""Templates: the process behind the wall of which workers are forked, as the judge starts and ends it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import content
from ...base import ours
from ...base.language import VARIABLE
from ..meeting import BELL
from .inside.processes import children, cpu, descendants, memory, waiting
from .workers import Bell, Limits, Worker, by_keeper

PACKAGE = Path(ours.FOLDER).resolve()
# What of labkit a student's code may read while it is graded: what it computes with, and what runs it. Whatever is not
# named here is not there: judges, answers and content, under any name and in any room.
SHOWN = (
    "__init__.py __init__.pyi base turns plans engine machine children trace cost view explore diagnosis distributed "
    "classroom/__init__.py classroom/meeting.py classroom/wall/__init__.py classroom/wall/inside"
).split()
HOME = "/answer"  # of a worker, as :mod:`.inside.sandbox` makes it
_FIRST_ID = 0x6C61_6200  # user ids that no system gives out: two for each judge's process
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_START = 120  # seconds of wall time that torch may take to be imported on a very busy machine
_GROUPS = {  # of the two versions: where groups are made, and the file of the limit
    Path("/sys/fs/cgroup"): "memory.max",
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
}
_OWN_FILES = 256 << 20  # bytes of a worker's own files, which are memory too


class _Group:
    """A control group with the process ``pid`` in it and all that it will start, whose memory is limited together, with
    what the kernel holds for them (buffers of sockets and pipes). What the process has already is not counted.

    It is there where the system lets us make one: for root on Linux, outside of most containers.
    """

    def __init__(self, pid: int) -> None:
        self._limit: Path | None = None
        for root, limit in _GROUPS.items():
            with suppress(OSError):
                for left in root.glob("labkit-*"):  # of a grading that was killed
                    with suppress(OSError):
                        left.rmdir()
                folder = root / f"labkit-{os.getpid()}-{pid}"
                folder.mkdir()
                if (folder / limit).exists():
                    (folder / "cgroup.procs").write_text(str(pid))
                    self._limit = folder / limit
                    return
                folder.rmdir()

    def limit(self, memory: int, keeper: int) -> None:
        """Sets how many bytes there may be; beyond, the kernel ends first what the process ``keeper`` starts."""
        if self._limit:
            with suppress(OSError):
                self._limit.write_text(str(memory + _OWN_FILES))
                Path(f"/proc/{keeper}/oom_score_adj").write_text("1000")

    def close(self) -> None:
        """Takes the group away when its processes have ended."""
        for _ in range(100 if self._limit else 0):
            assert self._limit
            with suppress(OSError):
                self._limit.parent.rmdir()
                return
            time.sleep(0.01)


class CannotStart(RuntimeError):
    """The sandbox cannot be had on this machine in this way; the message says why."""


class Template:
    """A process behind the wall, with torch imported, of which workers are forked. Whoever starts one closes it.

    way      see :mod:`.isolation`: "root" or "user".
    preload  modules to import beforehand.
    hidden   folders of the teacher's that must not be seen, should they lie in one that must (a course inside a
             virtual environment, say).
    """

    def __init__(self, way: str, preload: Sequence[str] = (), hidden: Sequence[Path] = ()) -> None:
        self.way, self._group = way, None
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = configuration(way, hidden) | {"control": there.fileno(), "preload": list(preload)}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            python("template.main", config),
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env=environment(),
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
        # The template itself; behind a wall the started process only waits for it.
        self.process = next(iter(children().get(self._process.pid, ())), self._process.pid)
        self._size, self._private = memory(self.process)
        self._group = _Group(self.process) if way == "root" else None

    def worker(self, limits: Limits, without: Sequence[str] = ()) -> Worker:
        """Starts a worker; ``limits`` are those of its first request, and bound what all of its requests may take.

        without   dotted names of what does not exist in it (:mod:`.inside.banned`).
        """
        asked, requests = os.pipe()
        replies, told = os.pipe()
        heard, bell = os.pipe()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        order = {
            "cpu": 600, "address_space": self._size + limits.memory, "processes": limits.processes,
            "without": list(without),
        }  # fmt: skip
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], [asked, told, heard, there.fileno()])
        except OSError:
            for fd in requests, replies, bell:
                os.close(fd)
            here.close()
            raise CannotStart("the template has ended") from None
        finally:
            for fd in asked, told, heard:
                os.close(fd)
            there.close()
        _, told_by, _, _ = here.recvmsg(4, socket.CMSG_SPACE(_CREDENTIALS.size))
        if self._group and told_by:
            self._group.limit(limits.memory, _CREDENTIALS.unpack(told_by[0][2])[0])
        here.send(b".")
        pipes = os.fdopen(requests, "wb", 0), os.fdopen(replies, "rb", 0)
        pipe = os.fstat(bell).st_ino
        return Worker(self.taken, *pipes, by_keeper(here), Bell(bell, lambda: self.waiting(pipe)))

    def taken(self) -> tuple[float, int]:
        """Gives CPU seconds and bytes of memory of their own of all workers that there are now."""
        seconds, held = 0.0, 0
        for pid in descendants(*children().get(self.process, ())):
            with suppress(OSError, ValueError, IndexError):
                seconds += cpu(pid)
                held += max(0, memory(pid)[1] - self._private)
        return seconds, held

    def waiting(self, pipe: int) -> tuple[int, bool]:
        """Counts the threads of all workers that wait for this bell, and says whether any other is at work."""
        below, found = children(), []
        workers = [worker for keeper in below.get(self.process, ()) for worker in below.get(keeper, ())]
        for pid in descendants(*below.get(self.process, ())):
            if pid not in workers or not below.get(pid):  # else it waits for the process of a part
                with suppress(OSError):
                    found.append(waiting(pid, BELL, pipe))
        return sum(count for count, _ in found), any(is_awake for _, is_awake in found)

    def close(self) -> None:
        self._control.close()  # it ends by itself, and so it is known what it took
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        if self._group:
            self._group.close()
        self.log.close()


class Bare:
    """Stands for a :class:`Template` where there is neither wall nor fork: each worker is a Python of its own.

    It is slow (each imports torch), and holds back nothing but endless work: for students who are trusted.
    """

    way = "bare"

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._preload = list(preload)

    def worker(self, limits: Limits, without: Sequence[str] = ()) -> Worker:
        process = subprocess.Popen(
            python("student.bare", self._preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            bufsize=0,
        )
        assert process.stdin
        assert process.stdout

        def end() -> None:
            process.kill()
            process.wait()

        worker = Worker(lambda: (0.0, 0), process.stdin, process.stdout, end)  # type: ignore[arg-type]
        worker.request({"do": "take away", "names": list(without)}, replace(limits, wall=_START))
        return worker

    def close(self) -> None:
        """Does nothing: each worker is closed by the session that asked for it."""


def template(way: str, preload: Sequence[str], hidden: Sequence[Path] = ()) -> Template | Bare:
    """Starts what workers are taken from, in the way that :func:`.isolation.best` names."""
    return Bare(preload) if way == "bare" else Template(way, preload, hidden)


def python(function: str, told: object) -> list[str]:
    """Gives the command of a Python that knows nothing of the user's and calls a function of :mod:`.inside`."""
    module = function.partition(".")[0]
    start = f"from {__package__}.inside import {module}; {function}(json.loads(sys.argv[2]))"
    code = f"import json, sys; sys.path.insert(0, sys.argv[1]); {start}"
    return [sys.executable, "-I", "-c", code, str(PACKAGE.parent), json.dumps(told)]


def configuration(way: str, hidden: Sequence[Path] = ()) -> dict[str, Any]:
    """Gives the arguments of :func:`.inside.sandbox.enter`; ``hidden`` are folders of the teacher's."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    folders |= {path for path in sys.path if "site-packages" in path or "dist-packages" in path}
    readable = {folder for folder in folders if os.path.isdir(folder)}
    readable |= {os.path.realpath(folder) for folder in readable}
    base = _FIRST_ID + (os.getpid() & 0x1FFFFF) * 2
    return {
        "way": way,
        "readable": sorted(readable | {str(Path(sys.executable).resolve().parent)}),
        "hidden": [os.path.realpath(path) for path in (PACKAGE, content.FOLDER, *hidden)],
        "shown": [str(PACKAGE / name) for name in SHOWN if (PACKAGE / name).exists()],
        "ids": [base, base + 1],
    }


def environment() -> dict[str, str]:
    """Gives environment variables for a worker: of the teacher's only the language, no keys, no names, no paths."""
    known = {"PATH": "/usr/bin:/bin", "HOME": HOME, "TMPDIR": HOME, "LANG": "C.UTF-8"}
    known |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    known |= {"PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return known | {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}
