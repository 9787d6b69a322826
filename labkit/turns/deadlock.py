"""The deadlock error: its text, and whether a thread outside could still help."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from ..base.language import say
from ..base.ours import PACKAGES, frames_of_threads

# Packages whose threads serve a kernel, a debugger or a test runner, and never release what replicas wait for.
SERVANTS = frozenset(
    "IPython ipykernel jupyter_client jupyter_core nbclient zmq tornado anyio decorator debugpy _pydevd_bundle "
    "tqdm execnet".split()
)


class Deadlock(RuntimeError):
    """Every task waits, and no thread is left that could help."""


def has_outside_help(ours: set[int]) -> bool:
    """Whether a thread besides ``ours`` could release what tasks wait for."""
    # Leave out asyncio's helpers (``waitpid-0`` waits for a child process), which act for their loop's thread, and
    # labkit's, which carry messages of ranks: their names say so. threading.enumerate() would take a lock that a task
    # may hold.
    named = threading._active.copy()  # type: ignore[attr-defined]  # Python's own, in no stub
    ours = ours | {
        thread for thread, one in named.items() if one.name.startswith(("asyncio", "waitpid-", "labkit "))
    }
    return any(not _is_servant(frame) for thread, frame in frames_of_threads().items() if thread not in ours)


def _is_servant(frame: FrameType | None) -> bool:
    """Whether a thread runs nothing but code of SERVANTS and Python itself."""
    packages = set()
    while frame is not None:
        packages.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back
    return bool(packages & SERVANTS) and packages <= SERVANTS | sys.stdlib_module_names | set(PACKAGES)


def deadlock_text(waits: str) -> str:
    """Return the error's text, given the waits in lines."""
    return say(
        en="deadlock: each of these waits for another, and none can continue (on real GPUs the call would hang "
        f"silently):\n{waits}\n"
        "Take locks in the same order everywhere, send every message that is waited for, and give a barrier the number "
        "of threads that really reach it.",
        zh="死锁：它们都在互相等待，谁也走不下去了（在真实的 GPU 上，这次调用会一声不响地卡住）：\n"
        f"{waits}\n请在各处按同一顺序加锁；有人等的消息，就要有人发；屏障（Barrier）的人数要与真正会到的人数一致。",
    )
