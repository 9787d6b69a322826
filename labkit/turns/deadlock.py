"""A deadlock: whether a thread outside could still end it, and its text."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from ..base.language import say
from ..base.ours import PACKAGES, frames_of_threads

# Packages whose threads serve a kernel, a debugger or a test runner, and never give replicas what they wait for.
SERVANTS = frozenset(
    "IPython ipykernel jupyter_client jupyter_core nbclient zmq tornado anyio decorator debugpy _pydevd_bundle "
    "tqdm execnet".split()
)


class Deadlock(RuntimeError):
    """Every participant waits, and nobody is left who could end that."""


def could_help(ours: set[int]) -> bool:
    """Whether there is a thread besides ``ours`` that could do something for those who wait."""
    # asyncio's own helpers (``waitpid-0`` waits for a child process) do what their loop asks for, and the loop's thread
    # is looked at by itself; labkit's carry messages of ranks. They are told by their names; threading.enumerate()
    # would take a lock that a participant may hold.
    named = threading._active.copy()  # type: ignore[attr-defined]  # Python's own, in no stub
    ours = ours | {
        thread for thread, one in named.items() if one.name.startswith(("asyncio", "waitpid-", "labkit "))
    }
    return any(not _serves(frame) for thread, frame in frames_of_threads().items() if thread not in ours)


def _serves(frame: FrameType | None) -> bool:
    """Whether a thread runs nothing but a servant's code and Python's own."""
    packages = set()
    while frame is not None:
        packages.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back
    return bool(packages & SERVANTS) and packages <= SERVANTS | sys.stdlib_module_names | set(PACKAGES)


def deadlock_text(waits: str) -> str:
    """The error's text, given who waits for what in lines."""
    return say(
        en="each of these waits for another, and nobody is left who could go on (on real GPUs the call "
        f"would hang without a word):\n{waits}\n"
        "Take locks in the same order everywhere, send each message that somebody waits for, and make a barrier "
        "for as many as really come to it.",
        zh="死锁：它们都在互相等待，谁也走不下去了（在真实的 GPU 上，这次调用会一声不响地卡住）：\n"
        f"{waits}\n请在各处按同一顺序加锁；有人等的消息，就要有人发；屏障（Barrier）的人数要与真正会到的人数一致。",
    )
