"""Start workers in a sandbox: the judge's side of the fork server, and the kinds of isolation."""

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

from ..meeting import MEETING_FD
from ..messages import Problem
from .inside.processes import children, count_waiting_threads, cpu_seconds, descendants, read_memory
from .workers import JudgeMeeting, Limits, SandboxWorker

SANDBOXES = ("root", "user")  # the kinds of isolation that are safe for unknown code
HOME_OF_PACKAGES = ours.HOME.resolve()
# Our packages and files that graded code may read. Judges, answers, lessons and content do not exist in the sandbox.
VISIBLE = (
    "labkit simgpu labkit_diagnose labkit_ranks labkit_classroom/__init__.py labkit_classroom/meeting.py "
    "labkit_classroom/sandbox/__init__.py labkit_classroom/sandbox/inside"
).split()
HOME = "/answer"  # a worker's home, made by :mod:`.inside.linux_sandbox`
_FIRST_ID = 0x6C61_6200  # user ids that no system assigns: two for each judge
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_START = 120  # seconds of wall time for importing torch on a very busy machine
_GROUPS = {  # of both versions of control groups: the folder, and the file of the memory limit
    Path("/sys/fs/cgroup"): "memory.max",
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
}
_TEXTS = texts_beside(__file__)
_OWN_FILES = 256 << 20  # bytes of a worker's files, which are held in memory


def _make_control_group(pid: int) -> Path | None:
    """Make a control group of the process ``pid`` and its future children; return the file of the memory limit.

    The limit includes the kernel's buffers of sockets and pipes, but no memory that the process already has. Return
    None where the system allows no group: root on Linux may make one, except in most containers.
    """
    for root, limit in _GROUPS.items():
        with suppress(OSError):
            for left in root.glob("labkit-*"):  # groups of a killed grading
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


class SandboxServer:
    """The judge's handle on the fork server, a sandboxed process with torch imported. Close it after use.

    way      one of SANDBOXES.
    preload  modules to import before any fork.
    hidden   folders of the teacher to hide, even inside a readable folder (a course inside a virtual environment).
    """

    def __init__(self, way: str, preload: Sequence[str] = (), hidden: Sequence[Path] = ()) -> None:
        self._memory_limit_file: Path | None = None
        self._control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = configuration(way, hidden) | {"control": there.fileno(), "preload": list(preload)}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            python_command("fork_server.main", config),
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
        # In a sandbox, the started process only waits for its child, the fork server.
        self.process = next(iter(children(self._process.pid)), self._process.pid)
        self._size, self._private = read_memory(self.process)
        self._memory_limit_file = _make_control_group(self.process) if way == "root" else None

    def worker(self, limits: Limits, without: Sequence[str] = ()) -> SandboxWorker:
        """Fork a worker. The memory and process limits of ``limits`` hold for its whole life.

        without   dotted names of functions and modules to remove from it (:mod:`.inside.banned`).
        """
        asked, requests = os.pipe()
        replies, told = os.pipe()
        meeting, ring = os.pipe()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        order = {
            "cpu": 600, "address_space": self._size + limits.memory, "processes": limits.processes,
            "without": list(without),
        }  # fmt: skip
        try:
            socket.send_fds(
                self._control, [json.dumps(order).encode()], [asked, told, meeting, there.fileno()]
            )
        except OSError:
            for fd in requests, replies, ring:
                os.close(fd)
            here.close()
            raise CannotStart("the fork server has ended") from None
        finally:
            for fd in asked, told, meeting:
                os.close(fd)
            there.close()
        _, told_by, _, _ = here.recvmsg(4, socket.CMSG_SPACE(_CREDENTIALS.size))
        if (
            self._memory_limit_file and told_by
        ):  # above the limit, the kernel kills the supervisor's children first
            supervisor = _CREDENTIALS.unpack(told_by[0][2])[0]
            with suppress(OSError):
                self._memory_limit_file.write_text(str(limits.memory + _OWN_FILES))
                Path(f"/proc/{supervisor}/oom_score_adj").write_text("1000")
        here.send(b".")
        here.settimeout(10)

        def end() -> None:
            """Tell the supervisor to kill the worker with all its processes, and wait until it has."""
            with suppress(OSError):
                here.shutdown(socket.SHUT_WR)
                while here.recv(4096):
                    pass
            here.close()

        pipes = os.fdopen(requests, "wb", 0), os.fdopen(replies, "rb", 0)
        pipe = os.fstat(ring).st_ino
        held = JudgeMeeting(os.fdopen(ring, "wb", 0), lambda: self.count_waiting(pipe))
        return SandboxWorker(self.used_resources, *pipes, end, held)

    def used_resources(self) -> tuple[float, int]:
        """Return CPU seconds and private memory of all current workers."""
        seconds, held = 0.0, 0
        for pid in descendants(self.process):
            with suppress(OSError, ValueError, IndexError):
                seconds += cpu_seconds(pid)
                held += max(0, read_memory(pid)[1] - self._private)
        return seconds, held

    def count_waiting(self, pipe: int) -> tuple[int, bool]:
        """Count the threads of all workers that wait at this pipe; return also whether any other thread runs."""
        found, supervisors = [], children(self.process)
        workers = [worker for supervisor in supervisors for worker in children(supervisor)]
        for pid in descendants(self.process):
            # A worker with children only waits for them.
            if pid not in supervisors and not (pid in workers and children(pid)):
                with suppress(OSError):
                    found.append(count_waiting_threads(pid, MEETING_FD, pipe))
        return sum(count for count, _ in found), any(is_awake for _, is_awake in found)

    def close(self) -> None:
        self._control.close()  # the server ends; wait, so that its CPU time is counted
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        if self._memory_limit_file:
            _remove_control_group(self._memory_limit_file.parent)
        self.log.close()


def _remove_control_group(folder: Path) -> None:
    """Remove a control group, which the system refuses while one of its processes is alive."""
    for _ in range(100):
        with suppress(OSError):
            folder.rmdir()
            break
        time.sleep(0.01)


@dataclass
class UnsandboxedServer:
    """A replacement of :class:`SandboxServer` without a sandbox: each worker is a new Python process.

    Each process imports torch, which is slow. Nothing but time is limited: use it for trusted students.
    """

    preload: Sequence[str]

    def worker(self, limits: Limits, without: Sequence[str] = ()) -> SandboxWorker:
        process = subprocess.Popen(
            python_command("worker.serve_on_stdio", list(self.preload)),
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
        worker.request({"do": "ban", "names": list(without)}, replace(limits, wall=_START))
        return worker

    def close(self) -> None:
        """Do nothing: sessions close their workers."""


def start_server(
    way: str, preload: Sequence[str], hidden: Sequence[Path] = ()
) -> SandboxServer | UnsandboxedServer:
    """Start a server of workers with the isolation ``way``, a name that :func:`best_sandbox` returns."""
    return UnsandboxedServer(preload) if way == "bare" else SandboxServer(way, preload, hidden)


def python_command(function: str, argument: object) -> list[str]:
    """Return the command that calls a function of :mod:`.inside` in an isolated Python, without the user's settings."""
    module = function.partition(".")[0]
    start = f"from {__package__}.inside import {module}; {function}(json.loads(sys.argv[2]))"
    code = f"import json, sys; sys.path.insert(0, sys.argv[1]); {start}"
    return [sys.executable, "-I", "-c", code, str(HOME_OF_PACKAGES), json.dumps(argument)]


def configuration(way: str, hidden: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the arguments of :func:`.inside.linux_sandbox.enter`; ``hidden`` are folders of the teacher's."""
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
        "shown": [str(HOME_OF_PACKAGES / name) for name in VISIBLE if (HOME_OF_PACKAGES / name).exists()],
        "ids": [base, base + 1],
    }


def environment() -> dict[str, str]:
    """Return a worker's environment variables: only the language comes from the teacher's, no keys, names or paths."""
    known = {"PATH": "/usr/bin:/bin", "HOME": HOME, "TMPDIR": HOME, "LANG": "C.UTF-8"}
    known |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    known |= {"PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # Huge pages of memory: they halve the time of each fork.
    known["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    return known | {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}


@cache
def try_sandboxes() -> dict[str, str]:
    """Try each kind of isolation; return by kind why it fails here, "" if it works."""
    if sys.platform != "linux":
        why = say(en=f"{sys.platform} has no namespaces", zh=f"{sys.platform} 没有命名空间")
        return dict.fromkeys(SANDBOXES, why)
    return {way: _try_sandbox(way) for way in SANDBOXES}


def best_sandbox(trust: bool = False) -> str:
    """Return the strongest isolation that works here. Without one, return "bare" if ``trust``, else raise Problem."""
    for way, why in try_sandboxes().items():
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


def sandbox_report() -> str:
    """Describe each kind of isolation, and say which ones work here."""
    states = {
        way: _TEXTS["no"](why=why) if why else _TEXTS["works"]() for way, why in try_sandboxes().items()
    }
    states["bare"] = _TEXTS["trusted"]()
    lines = [f"{way}: {state}\n    {_TEXTS[way]()}" for way, state in states.items()]
    return "\n".join(lines if not all(try_sandboxes().values()) else [*lines, _TEXTS["nowhere"]()])


def _try_sandbox(way: str) -> str:
    if way == "root" and os.geteuid() != 0:
        return say(en="you are not root", zh="你不是 root 用户")
    if way == "user" and os.geteuid() == 0:
        return say(en="you are root, who has a better one", zh="你是 root，有更强的方式")
    done = subprocess.run(
        python_command("linux_sandbox.probe", configuration(way)),
        capture_output=True,
        text=True,
        env=environment(),
        cwd="/",
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
