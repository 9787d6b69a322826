"""The judge's side of the sandbox: the template process from which workers are forked, and the kinds of isolation that
work on this computer.
"""

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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from labkit.base import ours
from labkit.base.language import VARIABLE, say
from labkit.base.texts import texts_beside

from ..meeting import BELL
from ..words import Problem
from .inside.processes import children, cpu, descendants, memory, waiting
from .workers import Bell, Limits, SandboxWorker

WALLS = ("root", "user")  # ways that keep strangers in
HOME_OF_PACKAGES = ours.HOME.resolve()
# Our packages and files that graded code may read: what it computes with, and what runs it. Everything else (judges,
# answers, lessons, content) does not exist in the sandbox.
SHOWN = (
    "labkit simgpu labkit_diagnose labkit_ranks labkit_classroom/__init__.py labkit_classroom/meeting.py "
    "labkit_classroom/wall/__init__.py labkit_classroom/wall/inside"
).split()
HOME = "/answer"  # of a worker, as :mod:`.inside.sandbox` makes it
_FIRST_ID = 0x6C61_6200  # user ids that no system gives out: two for each judge's process
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_START = 120  # seconds of wall time that torch may take to be imported on a very busy machine
_GROUPS = {  # of the two versions: where groups are made, and the file of the limit
    Path("/sys/fs/cgroup"): "memory.max",
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
}
_TEXTS = texts_beside(__file__)
_OWN_FILES = 256 << 20  # bytes of a worker's own files, which are memory too


def _group(pid: int) -> Path | None:
    """Make a control group of the process ``pid`` and its future children, which limits their memory together with the
    kernel's buffers of their sockets and pipes. Return the file of the limit.

    What the process has already is not counted. None where the system lets us make no group: it does for root on Linux,
    outside of most containers.
    """
    for root, limit in _GROUPS.items():
        with suppress(OSError):
            for left in root.glob("labkit-*"):  # of a grading that was killed
                with suppress(OSError):
                    left.rmdir()
            folder = root / f"labkit-{os.getpid()}-{pid}"
            folder.mkdir()
            if (folder / limit).exists():
                (folder / "cgroup.procs").write_text(str(pid))
                return folder / limit
            folder.rmdir()
    return None


class CannotStart(RuntimeError):
    """Raised where this kind of isolation does not work; the message says why."""


class Template:
    """A sandboxed process with torch imported, from which workers are forked. Close it after use.

    way      one of WALLS: whether it is root who makes the namespaces.
    preload  modules to import beforehand.
    hidden   folders of the teacher's that must not be seen, should they lie in one that must (a course inside a
             virtual environment, say).
    """

    def __init__(self, way: str, preload: Sequence[str] = (), hidden: Sequence[Path] = ()) -> None:
        self._limit: Path | None = None
        self._control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        self._limit = _group(self.process) if way == "root" else None

    def worker(self, limits: Limits, without: Sequence[str] = ()) -> SandboxWorker:
        """Start a worker. ``limits``: those of its first request, which bound all of its requests.

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
        if self._limit and told_by:  # beyond the limit the kernel ends first what the keeper starts
            keeper = _CREDENTIALS.unpack(told_by[0][2])[0]
            with suppress(OSError):
                self._limit.write_text(str(limits.memory + _OWN_FILES))
                Path(f"/proc/{keeper}/oom_score_adj").write_text("1000")
        here.send(b".")
        here.settimeout(10)

        def end() -> None:
            """Let the keeper at the other end kill the worker and all that it started."""
            with suppress(OSError):
                here.shutdown(socket.SHUT_WR)
                while here.recv(4096):
                    pass
            here.close()

        pipes = os.fdopen(requests, "wb", 0), os.fdopen(replies, "rb", 0)
        pipe = os.fstat(bell).st_ino
        return SandboxWorker(
            self.used_resources, *pipes, end, Bell(os.fdopen(bell, "wb", 0), lambda: self.waiting(pipe))
        )

    def used_resources(self) -> tuple[float, int]:
        """Return CPU seconds and private memory of all current workers."""
        seconds, held, below = 0.0, 0, children()
        for pid in descendants(below, *below.get(self.process, ())):
            with suppress(OSError, ValueError, IndexError):
                seconds += cpu(pid)
                held += max(0, memory(pid)[1] - self._private)
        return seconds, held

    def waiting(self, pipe: int) -> tuple[int, bool]:
        """Count the threads of all workers that wait for this bell; return also whether any other thread runs."""
        below, found = children(), []
        workers = [worker for keeper in below.get(self.process, ()) for worker in below.get(keeper, ())]
        for pid in descendants(below, *below.get(self.process, ())):
            if pid not in workers or not below.get(pid):  # else it waits for the process of a part
                with suppress(OSError):
                    found.append(waiting(pid, BELL, pipe))
        return sum(count for count, _ in found), any(is_awake for _, is_awake in found)

    def close(self) -> None:
        self._control.close()  # let it end by itself, so that its CPU time is counted
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        for _ in range(100 if self._limit else 0):  # until its processes have ended
            assert self._limit
            with suppress(OSError):
                self._limit.parent.rmdir()
                break
            time.sleep(0.01)
        self.log.close()


@dataclass
class Bare:
    """Replacement of :class:`Template` without a sandbox: each worker is a new Python process.

    It is slow (each imports torch), and holds back nothing but endless work: for students who are trusted.
    """

    preload: Sequence[str]

    def worker(self, limits: Limits, without: Sequence[str] = ()) -> SandboxWorker:
        process = subprocess.Popen(
            python("student.bare", list(self.preload)),
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

        worker = SandboxWorker(lambda: (0.0, 0), process.stdin, process.stdout, end)  # type: ignore[arg-type]
        worker.request({"do": "take away", "names": list(without)}, replace(limits, wall=_START))
        return worker

    def close(self) -> None:
        """Do nothing: each session closes its own worker."""


def template(way: str, preload: Sequence[str], hidden: Sequence[Path] = ()) -> Template | Bare:
    """Start the source of workers, with the isolation that :func:`best` names."""
    return Bare(preload) if way == "bare" else Template(way, preload, hidden)


def python(function: str, told: object) -> list[str]:
    """Return the command of a Python that knows nothing of the user's and calls a function of :mod:`.inside`."""
    module = function.partition(".")[0]
    start = f"from {__package__}.inside import {module}; {function}(json.loads(sys.argv[2]))"
    code = f"import json, sys; sys.path.insert(0, sys.argv[1]); {start}"
    return [sys.executable, "-I", "-c", code, str(HOME_OF_PACKAGES), json.dumps(told)]


def configuration(way: str, hidden: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the arguments of :func:`.inside.sandbox.enter`; ``hidden`` are folders of the teacher's."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    folders |= {path for path in sys.path if "site-packages" in path or "dist-packages" in path}
    readable = {folder for folder in folders if os.path.isdir(folder)}
    readable |= {os.path.realpath(folder) for folder in readable}
    base = _FIRST_ID + (os.getpid() & 0x1FFFFF) * 2
    return {
        "way": way,
        "readable": sorted(readable | {str(Path(sys.executable).resolve().parent)}),
        "hidden": [
            os.path.realpath(path) for path in [*ours.FOLDERS, *map(str, hidden)] if os.path.exists(path)
        ],
        "shown": [str(HOME_OF_PACKAGES / name) for name in SHOWN if (HOME_OF_PACKAGES / name).exists()],
        "ids": [base, base + 1],
    }


def environment() -> dict[str, str]:
    """Return environment variables for a worker: of the teacher's only the language, no keys, no names, no paths."""
    known = {"PATH": "/usr/bin:/bin", "HOME": HOME, "TMPDIR": HOME, "LANG": "C.UTF-8"}
    known |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    known |= {"PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return known | {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}


@cache
def try_ways() -> dict[str, str]:
    """Try each kind of isolation on this machine; return why it fails ("": it works)."""
    if sys.platform != "linux":
        why = say(en=f"{sys.platform} has no namespaces", zh=f"{sys.platform} 没有命名空间")
        return dict.fromkeys(WALLS, why)
    return {way: _try(way) for way in WALLS}


def best(trust: bool = False) -> str:
    """Return the strongest way that works here; Problem if none does, unless the students are trusted."""
    for way, why in try_ways().items():
        if not why:
            return way
    if trust:
        return "bare"
    raise Problem(
        en="students' code cannot be kept from your files and the network on this computer "
        "(see labkit grade --isolation): grade on Linux, or, if you would run their code anyway, add "
        "--trust-students",
        zh="在这台电脑上无法阻止学生的代码接触你的文件和网络（详见 labkit grade --isolation）："
        "请在 Linux 上批改；如果你本来就愿意直接运行他们的代码，请加上 --trust-students",
    )


def report() -> str:
    """Describe each kind of isolation, and say which ones work on this computer."""
    states = {way: _TEXTS["no",](why=why) if why else _TEXTS["works",]() for way, why in try_ways().items()}
    states["bare"] = _TEXTS["trusted",]()
    lines = [f"{way}: {state}\n    {_TEXTS[way,]()}" for way, state in states.items()]
    return "\n".join(lines if not all(try_ways().values()) else [*lines, _TEXTS["nowhere",]()])


def _try(way: str) -> str:
    if way == "root" and os.geteuid() != 0:
        return say(en="you are not root", zh="你不是 root 用户")
    if way == "user" and os.geteuid() == 0:
        return say(en="you are root, who has a better one", zh="你是 root，有更强的方式")
    done = subprocess.run(
        python("sandbox.probe", configuration(way)),
        capture_output=True,
        text=True,
        env=environment(),
        cwd="/",
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
