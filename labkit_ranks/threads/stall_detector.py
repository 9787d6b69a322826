"""Reports a rank that keeps its turn in a blocking call of C while others wait."""

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
# Seconds between two checks; the number of equal checks before a report; the share of time that counts as computing.
_BEAT, _LOOKS, _COMPUTES = 0.5, 8, 0.05
# Modules that wait for the user or a child process, which need no rank to answer.
_ANSWERED = ("pdb", "bdb", "ipykernel.kernelbase", "multiprocessing.", "torch.utils.data")


class StallDetector:
    """Watches ``ranks`` in a thread until :meth:`end`, and reports to ``stream``."""

    def __init__(self, ranks: Sequence[Rank], task_group: turns.TaskGroup, stream: TextIO) -> None:
        self._ranks, self._scheduler, self._stream = ranks, task_group.scheduler, stream
        self._over = threading.Event()
        # The name tells turns/deadlock.py to ignore the thread: it cannot end a deadlock.
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
            # Read stacks only when nothing runs: a frame in use here keeps tensors alive while a rank measures memory.
            looks = idle and [(one.name, _stack(one)) for one in self._ranks if self._is_stalled(one)]
            stacks = {name: stack for name, stack in looks or () if stack}
            same = same + 1 if stacks and stacks == before else 0
            before = stacks
            if same == _LOOKS:
                self._tell(stacks)

    def _is_stalled(self, rank: Rank) -> bool:
        """Whether ``rank`` keeps the turn, or waits in C while the turn is free, and another rank waits."""
        running, live = self._scheduler.running, self._scheduler.live
        blocks = rank.task is running or running is None and rank.waits_in_c
        return len(live) > 1 and rank.task in live and blocks

    def _tell(self, stacks: dict[str, list[traceback.FrameSummary]]) -> None:
        for name, stack in stacks.items():
            text = _TEXTS["stands"](name=name, seconds=_LOOKS * _BEAT)
            where = "".join(traceback.format_list(stack[-4:]))
            print(f"{text}\n{where}{_TEXTS['why']}", file=self._stream, flush=True)


def _stack(rank: Rank) -> list[traceback.FrameSummary]:
    """Return the rank's stack without labkit's frames, outermost first; [] if it waits for a user or child process."""
    found: list[traceback.FrameSummary] = []
    frame = frames_of_threads().get(0 if rank.task is None else rank.task.thread)
    while frame is not None:
        name, code = str(frame.f_globals.get("__name__")), frame.f_code
        asks = not found and "input" in code.co_names  # input() has no frame
        if asks or name.startswith(_ANSWERED):
            return []
        if name != "threading" and not is_our_module(name):
            found.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return found[::-1]
