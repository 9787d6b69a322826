"""Grade a class: distribute submissions to judges on all cores, and write each mark at once.

A killed grading can be started again: it continues with the submissions without a mark. Cases are drawn from the
class's secret, so that an interrupted submission is judged on the same cases.

A judge is this module run as a program: a process that grades one submission after another with its own fork server.
It runs no student's code, and :mod:`..sandbox.workers` checks each reply of a worker.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.base.language import VARIABLE, get_language, say

from ..assignment import Assignment, load
from ..draw import Numbers
from ..handout.folder import ClassFolder, assignment_of, numbers_of
from ..intake.answers import Answers
from ..intake.collecting import Collection, take_in
from ..messages import Remark
from ..sandbox.isolation import HOME_OF_PACKAGES, start_server
from .marks import QuestionMark, StudentMark, check_student, current_time, read, writing
from .submission import Graded, draws, fingerprint, grade

_Order = tuple[str, dict[str, str | None], Numbers]  # for a judge: student, answers, numbers
_TIMEOUT = 1800.0  # seconds for one submission before its judge is killed


@dataclass
class Marking:
    """The outcome of a grading. ``kept``: students who keep their mark, because nothing has changed."""

    came: Collection
    answers: dict[str, Answers]
    graded: list[StudentMark] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def mark_class(
    folder: ClassFolder,
    way: str,
    jobs: int,
    again: Sequence[str] | None = None,
    tell: Callable[[StudentMark, float, int], None] = lambda mark, seconds, of: None,
) -> Marking:
    """Grade all submissions without a mark, ``jobs`` at a time.

    again  students to grade again, or all with an empty sequence.
    tell   is called with each mark, its seconds, and the number of submissions to grade.

    If a judge fails, the mark says so, and the next grading tries again. Raise Problem or OSError.
    """
    for student in again or ():
        check_student(folder, student)
    assignment = assignment_of(folder)
    judged_by = fingerprint(assignment)
    with writing(folder.marks) as add:
        marks = read(folder.marks)
        done = Marking(*take_in(folder, assignment))
        orders = []
        for student, found in done.answers.items():
            mark, share = marks.get(student), done.came.submissions[student].share
            known = mark and (mark.digest, mark.graded_with) == (found.digest, judged_by)
            chosen = again is not None and (not again or student in again)
            if mark and known and not mark.has_failed and not chosen:
                if (mark.notes, mark.share) != (found.notes, share):  # a moved deadline, or another file
                    add(replace(mark, notes=found.notes, share=share))
                done.kept.append(student)
                continue
            orders.append((student, found.answers, numbers_of(folder, assignment, student)))
        judged = _by_judges(orders, jobs, assignment.folder, folder.secret, way, folder.path.resolve())
        for student, graded, seconds in judged:
            found, graded = done.answers[student], graded or _not_judged(assignment)
            hands = marks[student].by_hand if student in marks else {}
            facts = student, found.digest, current_time(), graded.questions, found.notes, graded.troubles
            mark = StudentMark(*facts, judged_by, hands, done.came.submissions[student].share)
            add(mark)
            done.graded.append(mark)
            tell(mark, seconds, len(orders))
    return done


def _by_judges(
    orders: Sequence[_Order], count: int, *config: object
) -> Iterator[tuple[str, Graded | None, float]]:
    """Yield (student, marks or None after a failure, seconds) for each order, with one judge for each thread."""
    mine = threading.local()
    processes: list[subprocess.Popen[bytes]] = []

    def grade_one(order: _Order) -> tuple[str, Graded | None, float]:
        since, found = time.monotonic(), None
        for _ in 1, 2:
            if getattr(mine, "process", None) is None:
                mine.process = _judge(config)
                processes.append(mine.process)
            hung = threading.Timer(_TIMEOUT, mine.process.kill)
            hung.start()
            _send(mine.process.stdin, order)
            with suppress(EOFError, pickle.UnpicklingError):
                found = pickle.load(mine.process.stdout)
            hung.cancel()
            if found is not None:
                break
            mine.process.kill()
            mine.process = None
        return order[0], found, time.monotonic() - since

    pool = ThreadPoolExecutor(max(1, min(count, len(orders))))
    try:
        for done in as_completed([pool.submit(grade_one, order) for order in orders]):
            yield done.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        raise
    finally:
        pool.shutdown()
        for process in processes:
            process.communicate()  # a judge ends when its stdin is closed


def _judge(config: object) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, [str(HOME_OF_PACKAGES), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {VARIABLE: get_language(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    _send(process.stdin, config)
    return process


def _send(stream: Any, told: object) -> None:
    with suppress(BrokenPipeError):  # the judge has ended; its reply will be missing
        pickle.dump(told, stream)
        stream.flush()


def _not_judged(assignment: Assignment) -> Graded:
    told = say(en="the judge's process ended twice", zh="判分进程两次意外结束")
    questions = {one.id: QuestionMark(0.0, one.points, state="failed") for one in assignment.questions}
    return Graded(questions, [Remark("judge", told, told)])


def serve() -> None:
    """Grade each order from stdin and reply on stdout, until stdin is closed or the fork server ends."""
    import torch

    torch.set_num_threads(1)
    orders, told = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep a judge's prints out of the replies
    folder, secret, way, hidden = pickle.load(orders)
    assignment = load(folder)
    with closing(start_server(way, assignment.preload, [hidden])) as workers, suppress(EOFError):
        while True:
            student, answers, numbers = pickle.load(orders)
            draw = draws(secret, student, assignment.name, answers)
            _send(told, grade(assignment, answers, numbers, draw, workers))


if __name__ == "__main__":
    serve()
