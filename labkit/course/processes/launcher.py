"""Scripts launched in several processes at once, as ``torchrun`` does it, from a notebook cell.

What torchrun leaves to its user is done here: each rank's output kept apart, an end for all processes when one
fails, when time runs out or when the cell is interrupted, and an error that shows the traceback of the rank
that failed first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.language import VARIABLE, get_language, say
from ...base.numbers import amount, whole
from .folder import Folder

_RANK = Path(__file__).with_name("rank.py")
# PyTorch's wheels for Windows are built without libuv, which torchrun asks for: ranks are started without it there.
_HAS_TORCHRUN = sys.platform != "win32"
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
# What a rank's error says when another one has gone.
_LOST = re.compile("closed by peer|reset by peer|Broken pipe|connectFullMesh|Connection refused")
_MOST_SHOWN = 50_000  # letters: a notebook that holds megabytes of output opens slowly, or not at all
_GRACE = 5.0  # seconds that processes get to end by themselves once they are told to


@dataclass(frozen=True)
class Launched:
    """A script that ran to its end in every rank; shows what each printed, rank by rank.

    outputs   the text printed by rank 0, 1, …, all of it; what is shown has a most.
    seconds   from the launch to the end of the last process.
    """

    script: str
    outputs: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        most = _MOST_SHOWN // max(len(self.outputs), 1)
        lines = [
            f"rank {rank}: {line}"
            for rank, output in enumerate(self.outputs)
            for line in _shortened(output, most, f".outputs[{rank}]").splitlines()
        ]
        return "\n".join(lines) or say(en="(nothing was printed)", zh="（没有打印任何东西）")


class RankError(RuntimeError):
    """A rank failed, or time ran out; all processes have been ended.

    rank    the one that failed first, or None.
    whole   the message; what is shown of it has a most.
    """

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(_shortened(text, _MOST_SHOWN, ".whole"))
        self.rank, self.whole = rank, text


def _shortened(text: str, most: int, whole: str) -> str:
    """``text``, or its beginning and its end, at a line's end where there is one, if it has over ``most`` letters;
    ``whole`` names the attribute that has all of it."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 2], text[len(text) - most // 2 :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left = len(text) - len(head) - len(tail)
    between = say(
        en=f"… ({left:,} characters are left out here; `{whole}` has the whole)",
        zh=f"…（此处省略 {left:,} 个字符；全文在 `{whole}` 里）",
    )
    return f"{head.rstrip()}\n{between}\n{tail}"


def launch(
    script: str | os.PathLike[str],
    processes: int,
    *arguments: object,
    timeout: float = 100,
    torchrun: bool = True,
) -> Launched:
    """Run a Python script in ``processes`` processes (1 to 16) that can reach each other on this computer only.

    script      path of the script; its own folder is the current one while it runs.
    arguments   given to the script.
    timeout     seconds; when they are over, all processes are ended and RankError says where each rank was.
    torchrun    True: ``python -m torch.distributed.run`` starts the processes (on Windows, where PyTorch's wheels
                cannot, labkit does). False: labkit starts them, with the same environment variables, a little sooner.

    Raises RankError with the traceback of the rank that failed first; FileNotFoundError, TypeError or ValueError,
    naming the argument, before anything is started. Ends all processes whatever happens, and leaves no file behind.
    """
    processes = whole("processes", processes, 1, 16)
    timeout = amount("timeout", timeout, above=True)
    path = Path(script).resolve()
    if not path.is_file():
        raise FileNotFoundError(say(en=f"script: there is no file {script}", zh=f"script：没有文件 {script}"))
    with Folder() as folder:
        run = _Run(path, processes, [str(argument) for argument in arguments], Path(folder))
        started = time.monotonic()
        try:
            run.start(torchrun and _HAS_TORCHRUN)
            in_time = run.wait(started + timeout)
        finally:
            run.end()
        seconds = time.monotonic() - started
        if in_time and run.succeeded():
            return Launched(path.name, tuple(run.text(rank, "out") for rank in range(processes)), seconds)
        raise run.failure(None if in_time else timeout)


class _Run:
    """The processes of one launch and the folder in which they leave their notes."""

    def __init__(self, script: Path, ranks: int, arguments: list[str], folder: Path) -> None:
        self.script, self.ranks, self.arguments, self.folder = script, ranks, arguments, folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, torchrun: bool) -> None:
        rank = [str(_RANK), str(self.folder), self.script.name, *self.arguments]
        self.torchrun = torchrun
        if torchrun:
            self._start(
                [
                    sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
                    f"--log-dir={self.folder}", f"--nproc-per-node={self.ranks}", *rank,
                ],
                {},
            )  # fmt: skip
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        size = {"WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks)}
        for number in map(str, range(self.ranks)):
            self._start([sys.executable, *rank], {**common, **size, "RANK": number, "LOCAL_RANK": number})

    def _start(self, command: list[str], more: dict[str, str]) -> None:
        settings = {VARIABLE: get_language(), "OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
        if sys.platform in _LOOPBACK:
            settings["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
        if sys.platform == "win32":
            settings["USE_LIBUV"] = "0"
        with open(self.folder / f"{len(self.processes)}.launcher", "wb") as log:
            process = subprocess.Popen(
                command, cwd=self.script.parent, env={**os.environ, **settings, **more},
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)

    def wait(self, until: float) -> bool:
        """Wait until all have ended well or one has not; False if time ran out first."""
        while time.monotonic() < until:
            codes = [process.poll() for process in self.processes]
            if None not in codes or any(codes):
                return True
            time.sleep(0.02)
        return False

    def end(self) -> None:
        """End every process that is left: asked first (their input closes), then made to."""
        self.codes = {at: process.poll() for at, process in enumerate(self.processes)}
        for process in self.processes:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]  # it was started with a pipe
        until = time.monotonic() + _GRACE
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.01))
            if process.poll() is None:
                process.kill()
                process.wait()
        if sys.platform != "win32":
            self._end_groups()

    def _end_groups(self) -> None:
        """End what ranks started, and ranks that torchrun left behind: each rank is a session, numbered as itself."""
        for rank in range(self.ranks):
            if pid := self.note(rank).get("pid"):
                with suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)

    def note(self, rank: int) -> dict[str, Any]:
        """The rank's note about itself; {} if it never began."""
        try:
            written: dict[str, Any] = json.loads((self.folder / f"{rank}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return written

    def text(self, rank: int, kind: str) -> str:
        try:
            return (self.folder / f"{rank}.{kind}").read_text("utf-8", errors="replace")
        except OSError:
            return ""

    def succeeded(self) -> bool:
        return not any(self.codes.values()) and all("ended" in self.note(rank) for rank in range(self.ranks))

    def failure(self, timeout: float | None) -> RankError:
        notes = [self.note(rank) for rank in range(self.ranks)]
        failed = sorted((note["time"], rank) for rank, note in enumerate(notes) if "error" in note)
        vanished = self._vanished(notes)
        # Where a rank vanished, what the others report is that they lost it.
        if vanished is not None and not (failed and not _LOST.search(notes[failed[0][1]]["error"])):
            return self._vanished_error(vanished)
        if failed:
            rank = failed[0][1]
            head = say(
                en=f"rank {rank} of {self.ranks} failed with {notes[rank]['error']} (the other ranks were ended).",
                zh=f"{self.ranks} 个进程中，rank {rank} 出错：{notes[rank]['error']}（其他进程已终止）。",
            )
            # By its name, as elsewhere here: lessons write their scripts to a folder that nobody knows.
            told = notes[rank]["traceback"].rstrip().replace(f'"{self.script}"', f'"{self.script.name}"')
            return RankError(f"{head}\n\n{told}", rank)
        if timeout is not None:
            head = say(
                en=f"{self.script.name} had not ended after {timeout:g} s; all ranks were ended. Where they were:",
                zh=f"{self.script.name} 运行 {timeout:g} 秒还没有结束；所有 rank 都已终止。当时各个 rank 停在：",
            )
            return RankError(
                "\n".join([head, *(f"  rank {rank}: {_place(note)}" for rank, note in enumerate(notes))])
            )
        log = self.text(0, "launcher").strip().splitlines()
        codes = ", ".join(map(str, self.codes.values()))
        head = say(
            en=f"the launcher itself failed (exit codes {codes}):", zh=f"启动器本身出错（退出码 {codes}）："
        )
        return RankError("\n".join([head, *log[-8:]]))

    def _vanished(self, notes: list[dict[str, Any]]) -> int | None:
        """The rank that ended by itself without a word: killed from outside, or by ``os._exit``."""
        codes = self.codes if not self.torchrun else _codes(self.text(0, "launcher"))
        for rank, note in enumerate(notes):
            silent = not {"error", "ended", "stopped"} & note.keys()
            if note and silent and codes.get(rank) not in (None, 0, -signal.SIGTERM):
                return rank
        return None

    def _vanished_error(self, rank: int) -> RankError:
        last = (self.text(rank, "out") + self.text(rank, "err")).strip().splitlines()[-5:]
        head = say(
            en=f"rank {rank} of {self.ranks} ended without a Python error: it was killed (out of memory?), "
            "crashed, or called os._exit (the other ranks were ended). The last that it printed:",
            zh=f"{self.ranks} 个进程中，rank {rank} 没有报 Python 错误就结束了：被系统杀掉（内存不够？）、崩溃，"
            "或者调用了 os._exit（其他进程已终止）。它最后打印的是：",
        )
        return RankError("\n".join([head, *(last or [say(en="(nothing)", zh="（没有）")])]), rank)


def _place(note: dict[str, Any]) -> str:
    if "ended" in note:
        return say(en="had ended", zh="已经结束")
    if "line" in note:
        return say(en=f"line {note['line']}: {note['code']}", zh=f"第 {note['line']} 行：{note['code']}")
    return say(en="not at the script yet, or not in Python", zh="还没开始运行脚本，或者不在 Python 代码里")


def _codes(log: str) -> dict[int, int]:
    """Exit codes by rank, from torchrun's own report of a failure."""
    found = re.findall(r"^  rank +: (\d+) .*\n  exitcode +: (-?\d+)", log, re.MULTILINE)
    return {int(rank): int(code) for rank, code in found}
