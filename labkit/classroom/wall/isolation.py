"""Finds out by trying which walls this computer can put around a student's code, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from ...base.language import say
from ...base.texts import texts_beside
from ..words import Problem
from .templates import configuration, environment, python

WALLS = ("root", "user")  # ways that keep strangers in
_TEXTS = texts_beside(__file__)


@cache
def tried() -> dict[str, str]:
    """Tries each way that puts up a wall on this machine, and says why it cannot be had ("": it can)."""
    if sys.platform != "linux":
        why = say(en=f"{sys.platform} has no namespaces", zh=f"{sys.platform} 没有命名空间")
        return dict.fromkeys(WALLS, why)
    return {way: _try(way) for way in WALLS}


def best(trust: bool = False) -> str:
    """Gives the strongest way that works here; Problem if none does, unless the students are trusted."""
    for way, why in tried().items():
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


def has_wall() -> bool:
    return not all(tried().values())


def report() -> str:
    """Says what each way keeps a student's code from, and which of them this computer has."""
    states = {way: _TEXTS["no",](why=why) if why else _TEXTS["works",]() for way, why in tried().items()}
    states["bare"] = _TEXTS["trusted",]()
    lines = [f"{way}: {state}\n    {_TEXTS[way,]()}" for way, state in states.items()]
    return "\n".join(lines if has_wall() else [*lines, _TEXTS["nowhere",]()])


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
