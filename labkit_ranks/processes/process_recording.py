"""Records ranks that are processes: each writes rows to a file, and the launcher joins the files.

A row is one pickled object: first the rank's ``RankInfo``, then events and memory samples, with ``RankTotals``
(:mod:`..rank.run_record`) in between, of which the last counts. A killed rank has left what it had written.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.util import Finalize
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from labkit.base.patches import Patches
from labkit.trace import emitting as trace
from labkit.trace.events import PAIRS, Event
from labkit.trace.memory import MemorySample
from simgpu import machine_in_use

from ..rank.clock import TimedRank
from ..rank.memory_samples import sample_at_modules, sample_memory
from ..rank.rank import pause_clock_in_imports, this_process
from ..rank.run_record import RankInfo, RankTotals, RunRecord, rank_info

# Variables of the launcher: the folder for the files, and the most events and samples to keep.
FOLDER, MOST = "LABKIT_EVENTS", "LABKIT_EVENTS_MOST"

_OFTEN = 1000  # dropped rows after which totals are written


class _File:
    """The file of one rank. A trace calls ``append``."""

    def __init__(self, path: Path, most: int) -> None:
        self._file: IO[bytes] = open(path, "wb", buffering=0)  # noqa: SIM115 (open until the process ends)
        self._left = {Event: most, MemorySample: most}
        self._totals, self._unwritten = RankTotals(), 0

    def append(self, found: Any) -> None:
        self._totals.count(found)
        if self._left[type(found)]:
            self._left[type(found)] -= 1
            self.write(found)
            return
        self._totals.dropped_events += isinstance(found, Event)
        self._unwritten += 1
        if self._unwritten % _OFTEN == 0:
            self.write(self._totals)

    def write(self, row: object) -> None:
        self._file.write(pickle.dumps(row))

    def end(self) -> None:
        self.write(self._totals)
        self._file.close()


def begin_process_rank() -> None:
    """Make the process the rank in the environment, and record the rank if asked.

    A child of this process is another one.
    """
    folder, most = os.environ.pop(FOLDER, None), os.environ.pop(MOST, "0")
    environment, machine = os.environ, machine_in_use()
    if machine is None or not {"RANK", "LOCAL_RANK"} <= environment.keys():
        return
    me = TimedRank(
        int(environment["RANK"]), int(environment["LOCAL_RANK"]), int(environment.get("GROUP_RANK", "0")), machine.gpus
    )  # fmt: skip
    this_process.rank = me
    os.register_at_fork(after_in_child=_forget_rank)
    me.begin_turn()
    if folder is not None:
        _record(me, Path(folder), int(most))


def _forget_rank() -> None:
    this_process.rank = None
    trace.recording = None


def _record(me: TimedRank, folder: Path, most: int) -> None:
    file: Any = _File(folder / f"{me.number}", most)
    file.write(rank_info(me))
    opened = trace.begin()
    opened.events = opened.samples = file
    trace.set_rank_source(lambda: (me.number, me.clock()))
    Patches(pause_clock_in_imports).put_in()
    hooks = sample_at_modules()
    hooks.__enter__()
    sample_memory("begin")

    def end() -> None:
        hooks.__exit__(None, None, None)
        me.report_remaining()
        sample_memory("end")
        trace.recording = None
        file.write(rank_info(me))  # it may have chosen other GPUs
        file.end()

    Finalize(None, end, exitpriority=50)  # after the detector's, which waits for late ranks


def read_recording(folder: Path, kept: RunRecord) -> None:
    """Add the ranks and their rows to ``kept``."""
    parts: dict[int, RankInfo] = {}
    found: list[Any] = []
    totals: dict[int, RankTotals] = {}
    for path in folder.iterdir():
        for row in _read_rows(path):
            if isinstance(row, RankInfo):
                parts[row.rank] = row
            elif isinstance(row, RankTotals):
                totals[int(path.name)] = row
            elif row is not None:  # a rank without a GPU
                found.append(row)
    events = _join_messages([row for row in found if isinstance(row, Event)])
    kept.add(sorted(events, key=attrgetter("start")))
    kept.add(row for row in found if isinstance(row, MemorySample))
    for rank, total in totals.items():
        total.dropped_events += kept.totals[rank].dropped_events
        kept.totals[rank] = total
    kept.ranks = [parts[rank] for rank in sorted(parts)]


def _read_rows(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return  # killed while writing


def _join_messages(events: list[Event]) -> Iterator[Event]:
    """Yield the events, and complete those of messages: a sender does not know the last rank and the end."""
    messages: dict[Any, list[Event]] = {}
    for event in events:
        if event.name in PAIRS:
            messages.setdefault(event.meeting, []).append(event)
    for event in events:
        parts = messages.get(event.meeting)
        if parts is None:
            yield event
        else:
            last, stop = max(parts, key=lambda part: part.start), max(part.stop for part in parts)
            yield replace(event, last=last.rank, seconds=stop - event.start)
