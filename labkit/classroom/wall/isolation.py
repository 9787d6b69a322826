"""Which walls this computer can put around a student's code: tried, not looked up, and said in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from ...base.language import say
from ..words import Problem
from .workers import PACKAGE, configuration, environment

WALLS = ("root", "user")  # ways that keep strangers in


@dataclass(frozen=True)
class Tried:
    """What came of trying a way: ``why`` it cannot be had, "" if it can."""

    way: str
    why: str


@cache
def tried() -> tuple[Tried, ...]:
    """Each way that puts up a wall, tried on this machine."""
    if sys.platform != "linux":
        why = say(en=f"{sys.platform} has no namespaces", zh=f"{sys.platform} 没有命名空间")
        return tuple(Tried(way, why) for way in WALLS)
    return tuple(Tried(way, _try(way)) for way in WALLS)


def best(trust: bool = False) -> str:
    """The strongest way that works here; :class:`Problem` if none does, unless the students are trusted."""
    for one in tried():
        if not one.why:
            return one.way
    if trust:
        return "limits" if sys.platform == "linux" else "bare"
    raise Problem(
        en="students' code cannot be kept from your files and the network on this computer "
        "(see labkit grade --isolation): grade on Linux, or, if you would run their code anyway, add "
        "--trust-students",
        zh="在这台电脑上无法阻止学生的代码接触你的文件和网络（详见 labkit grade --isolation）："
        "请在 Linux 上批改；如果你本来就愿意直接运行他们的代码，请加上 --trust-students",
    )


def has_wall() -> bool:
    return any(not one.why for one in tried())


def report() -> str:
    """What each way keeps a student's code from, which of them this computer has, and which one is taken."""
    rows = {one.way: one.why for one in tried()}
    lines = []
    for way, (en, zh) in _KEEPS.items():
        if way in rows:
            why = rows[way]
            state = say(en="no: ", zh="不可用：") + why if why else say(en="works here", zh="可用")
        else:
            linux = sys.platform == "linux"
            state = (
                say(en="only with --trust-students", zh="仅在加上 --trust-students 时使用")
                if (way == "limits") == linux
                else say(en="not used on this system", zh="这个系统上不用")
            )
        lines += [f"{way}: {state}", f"    {say(en=en, zh=zh)}"]
    if not has_wall():
        lines.append(
            say(
                en="Strangers' code is not graded here. On Ubuntu, which keeps namespaces from users since 23.10, run "
                "labkit with sudo; on macOS and Windows, in a virtual machine with Linux (WSL 2).",
                zh="这台电脑上不批改陌生人的代码。Ubuntu 从 23.10 起不许普通用户使用命名空间，请用 sudo 运行 labkit；"
                "macOS 和 Windows 请在 Linux 虚拟机（WSL 2）里运行。",
            )
        )
    return "\n".join(lines)


# What each way keeps a student's code from.
_KEEPS = {
    "root": (
        "namespaces and a user id that nobody else has: it sees the system's programs, Python and PyTorch, to be read "
        "only; none of your files, none of labkit's judges and answers, no network, no process but its own; 64 MB of "
        "files, which vanish with it; limits of time, memory, processes; system calls filtered",
        "命名空间，外加谁也没有的用户号：只看得到系统程序、Python 和 PyTorch，而且只读；"
        "看不到你的文件、labkit 的判分程序和答案，没有网络，看不到别的进程；"
        "可写 64 MB，用完即消失；限制时间、内存和进程数；过滤系统调用",
    ),
    "user": (
        "the same, but to the kernel it is still you: one wall (namespaces) where root has two",
        "同上，但在内核看来它仍是你本人：只有命名空间这一道墙，root 方式有两道",
    ),
    "limits": (
        "limits of time, memory and processes, nothing else: the code can read and change what you can, and use "
        "the network",
        "只限制时间、内存和进程数：代码能读写你能读写的一切，也能上网",
    ),
    "bare": (
        "a process of its own and a limit of time, nothing else (macOS, Windows)",
        "只有单独的进程和时间限制（macOS、Windows）",
    ),
}


def _try(way: str) -> str:
    if way == "root" and os.geteuid() != 0:
        return say(en="you are not root", zh="你不是 root 用户")
    if way == "user" and os.geteuid() == 0:
        return say(en="you are root, who has a better one", zh="你是 root，有更强的方式")
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[2])\n"
        "from labkit.classroom.wall.inside import sandbox\n"
        "sandbox.probe(json.loads(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, json.dumps(configuration(way)), str(PACKAGE.parent)],
        capture_output=True,
        text=True,
        env=environment(way),
        cwd="/",
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
