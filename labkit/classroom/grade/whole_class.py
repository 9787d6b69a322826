"""Grades a class: shares out what came back to judges on every core, and writes each mark before the next.

Killed at any moment and started again, it goes on with what has no mark yet: the cases a student is graded on are
drawn from the class's secret, so a submission that was under way is judged as it would have been.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.language import VARIABLE, get_language, say
from ..assignment import Assignment
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of, numbers_of
from ..intake.answers import Answers
from ..intake.collecting import Collection, take_in
from ..wall.templates import PACKAGE
from ..words import Note
from .marks import Mark, QuestionMark, now, read, writing
from .submission import fingerprint

_Plain = dict[str, Any]  # an order or its reply, as JSON
_PATIENCE = 1800.0  # seconds for one submission, after which its judge is taken to hang


@dataclass
class Marking:
    """The outcome of a grading. ``kept``: students whose marks were there, of the same answers."""

    came: Collection
    answers: dict[str, Answers]
    graded: list[Mark] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def mark_class(
    folder: ClassFolder,
    way: str,
    jobs: int,
    again: bool = False,
    tell: Callable[[Mark, float, int], None] = lambda mark, seconds, of: None,
) -> Marking:
    """Grade all that came back and has no mark yet (``again``: all), ``jobs`` submissions at a time.

    tell   is called with each mark, the seconds that it took, and how many there will be.

    Problem or OSError with what to do; a submission that cannot be judged gets a mark that says so, and is tried again
    by the next grading.
    """
    assignment = assignment_of(folder)
    judged_by = fingerprint(assignment)
    with writing(folder.marks) as add:
        marks = read(folder.marks)
        done = Marking(*take_in(folder, assignment))
        orders = []
        for student, found in done.answers.items():
            mark = marks.get(student)
            known = mark and not mark.failed and (mark.digest, mark.graded_with) == (found.digest, judged_by)
            if mark and known and not again:
                if mark.notes != found.notes:  # a deadline was moved, or a file came beside it
                    add(replace(mark, notes=found.notes))
                done.kept.append(student)
                continue
            numbers = numbers_of(folder, assignment, student)
            orders.append({"student": student, "answers": found.answers, "numbers": numbers})
        judges = _Judges(folder, assignment, way, min(jobs, len(orders)))
        for order, reply, seconds in judges.judge(orders):
            student = order["student"]
            found = done.answers[student]
            questions = {id: QuestionMark.read(told) for id, told in reply["questions"].items()}
            troubles = [Note(**note) for note in reply["troubles"]]
            hands = marks[student].by_hand if student in marks else {}
            mark = Mark(student, found.digest, now(), questions, found.notes, troubles, judged_by, hands)
            add(mark)
            done.graded.append(mark)
            tell(mark, seconds, len(orders))
    return done


class _Judges:
    """The judges: a process for each thread that asks one."""

    def __init__(self, folder: ClassFolder, assignment: Assignment, way: str, count: int) -> None:
        self._assignment, self._count = assignment, count
        self._config = {
            "way": way,
            "secret": folder.secret.hex(),
            "assignment": str(assignment.folder),
            "hidden": [str(folder.path.resolve())],
        }
        self._mine = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def judge(self, orders: Sequence[_Plain]) -> Iterator[tuple[_Plain, _Plain, float]]:
        """Yields (order, reply, seconds) as the orders are done."""
        pool = ThreadPoolExecutor(max(1, self._count))
        try:
            for done in as_completed([pool.submit(self._judge, order) for order in orders]):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in self._processes:
                process.kill()
            raise
        finally:
            pool.shutdown()
            for process in self._processes:
                process.communicate()  # its stdin ends, and so does it

    def _judge(self, order: _Plain) -> tuple[_Plain, _Plain, float]:
        since = time.monotonic()
        for _ in 1, 2:
            process: subprocess.Popen[bytes] = getattr(self._mine, "process", None) or self._start()
            self._mine.process = process
            assert process.stdin
            assert process.stdout
            hung = threading.Timer(_PATIENCE, process.kill)
            hung.start()
            with suppress(BrokenPipeError):  # it has ended; its silence says so
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
            hung.cancel()
            if line.endswith(b"\n"):
                return order, json.loads(line), time.monotonic() - since
            process.kill()
            self._mine.process = None
        return order, _not_judged(self._assignment), time.monotonic() - since

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit.classroom.grade.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {VARIABLE: get_language(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._processes.append(process)
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(self._config).encode() + b"\n")
        return process


def _not_judged(assignment: Assignment) -> _Plain:
    nothing = {"points": 0.0, "parts": [], "state": "failed"}
    questions = {question.id: nothing | {"of": question.points} for question in assignment.questions}
    told = say(en="the judge's process ended twice", zh="判分进程两次意外结束")
    return {"questions": questions, "troubles": [{"kind": "judge", "en": told, "zh": told}]}
