"""A watch over ranks that take turns: it tells of one that stands in a call of C, which others wait for in vain."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence
from typing import TextIO

from labkit import turns
from labkit.base.ours import frames_of_threads, is_our_module
from labkit.base.texts import texts_beside

from ..rank.rank import Rank

_TEXTS = texts_beside(__file__)
# Seconds between two looks, and how many of them see the same before it is told; and of this time, what is computing.
_BEAT, _LOOKS, _COMPUTES = 0.5, 8, 0.05
# Modules that wait for the user, or for a child process: both answer without a rank.
_ANSWERED = ("pdb", "bdb", "ipykernel.kernelbase", "multiprocessing.", "torch.utils.data")


class StallDetector:
    """Watches ``ranks``, who share ``baton``, in a thread of its own until :meth:`end`, and tells ``stream``."""

    def __init__(self, ranks: Sequence[Rank], task_group: turns.TaskGroup, stream: TextIO) -> None:
        self._ranks, self._scheduler, self._stream = ranks, task_group.scheduler, stream
        self._over = threading.Event()
        # Named so that nobody takes it for one who could end a deadlock (turns/deadlock.py).
        self._thread = threading.Thread(target=self._work, name="labkit watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(1)

    def _work(self) -> None:
        same, before, given, used = 0, None, -1, 0.0
        while not self._over.wait(_BEAT):
            turn, spent = self._scheduler.switches, time.process_time()
            idle = turn == given and spent - used <= _COMPUTES * _BEAT
            given, used = turn, spent
            # Who looks at a frame holds all that it holds: a rank that runs may be measuring its memory.
            looks = idle and [(one.name, _stack(one)) for one in self._ranks if self._stands(one)]
            stacks = {name: stack for name, stack in looks or () if stack}
            same = same + 1 if stacks and stacks == before else 0
            before = stacks
            if same == _LOOKS:
                self._tell(stacks)

    def _stands(self, rank: Rank) -> bool:
        """Whether it has the turn, or has let it go in a call of C's and nobody takes it; and somebody waits."""
        running, live = self._scheduler.running, self._scheduler.live
        stands = rank.task is running or running is None and rank.waits_in_c
        return len(live) > 1 and rank.task in live and stands

    def _tell(self, stacks: dict[str, list[traceback.FrameSummary]]) -> None:
        for name, stack in stacks.items():
            stands = _TEXTS["stands",](name=name, seconds=_LOOKS * _BEAT)
            where = "".join(traceback.format_list(stack[-4:]))
            print(f"{stands}\n{where}{_TEXTS['why',]}", file=self._stream, flush=True)


def _stack(rank: Rank) -> list[traceback.FrameSummary]:
    """Where it is now, without what is labkit's, outermost first; nothing where a user or a child is to answer."""
    found: list[traceback.FrameSummary] = []
    frame = frames_of_threads().get(0 if rank.task is None else rank.task.thread)
    while frame is not None:
        name, code = str(frame.f_globals.get("__name__")), frame.f_code
        asks = not found and "input" in code.co_names  # which has no frame
        if asks or name.startswith(_ANSWERED):
            return []
        if name != "threading" and not is_our_module(name):
            found.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return found[::-1]
