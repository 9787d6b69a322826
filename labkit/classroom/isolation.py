"""Which walls this computer can put around a student's code: tried, not looked up, and said in words.

| way     | what it is                                                                             |
| ------- | -------------------------------------------------------------------------------------- |
| root    | Linux, started by root: namespaces, a user id that nobody else has                      |
| user    | Linux, by a user who may make namespaces: the same, but for the user id                 |
| limits  | any Unix: limits of time, memory, files and processes, and no wall                      |
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from ..base.language import say
from .workers import PACKAGE, configuration, environment

WALLS = ("root", "user")  # ways that keep strangers in


class NoWall(RuntimeError):
    """Strangers' code cannot be kept in here; the message says what to do."""


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
    """The strongest way that works here; :class:`NoWall` if none does, unless the students are trusted."""
    for one in tried():
        if not one.why:
            return one.way
    if trust and sys.platform == "linux":
        return "limits"
    raise NoWall(
        say(
            en="students' code cannot be kept from your files and the network on this computer "
            "(see labkit grade --isolation): grade on Linux, or, if you would run their code anyway, add "
            "--trust-students",
            zh="在这台电脑上无法阻止学生的代码接触你的文件和网络（详见 labkit grade --isolation）："
            "请在 Linux 上批改；如果你本来就愿意直接运行他们的代码，请加上 --trust-students",
        )
    )


def has_wall() -> bool:
    return any(not one.why for one in tried())


def report() -> str:
    """What each way can do, and which of them this computer has."""
    lines = []
    for one in tried():
        found = (
            say(en="works here", zh="可用")
            if not one.why
            else say(en="not here", zh="不可用") + f" ({one.why})"
        )
        lines.append(f"{one.way:8} {found}")
    return "\n".join(lines)


def _try(way: str) -> str:
    if way == "root" and os.geteuid() != 0:
        return say(en="you are not root", zh="你不是 root 用户")
    if way == "user" and os.geteuid() == 0:
        return say(en="you are root, who has a better one", zh="你是 root，有更强的方式")
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[2])\n"
        "from labkit.classroom.worker import sandbox\n"
        "sandbox.probe(json.loads(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, json.dumps(configuration(way)), str(PACKAGE.parent)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd="/",
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
