"""Grade a class's folder, or one file: run students' code in a sandbox, and save each mark at once."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.base.language import series
from labkit.base.units import duration

from .usage import UsageError, announce_loading, at_least, bad_usage
from .wording import Wording

if TYPE_CHECKING:
    from labkit_classroom.grade.marks import StudentMark

WORDING = Wording(
    "grade",
    what={"nargs": "?", "type": Path},
    jobs={"type": at_least(1), "default": os.cpu_count() or 1},
    mark={"nargs": 3},
    again={"nargs": "*"},
)


def run(options: argparse.Namespace) -> int:
    from labkit_classroom.messages import Problem
    from labkit_classroom.sandbox import isolation

    if options.isolation:
        print(isolation.sandbox_report())
        return int(all(isolation.try_sandboxes().values()))
    if options.what is None and options.again:  # `--again FOLDER`
        options.what = Path(options.again.pop())
    if options.what is None:
        raise UsageError(en="name a class's folder or a notebook", zh="请给出班级文件夹或笔记本")
    if not options.what.exists():
        raise UsageError(en=f"{options.what} does not exist", zh=f"{options.what} 不存在")
    if options.mark:
        return _by_hand(options)
    if options.why is not None:
        raise UsageError(en="--why goes with --mark", zh="--why 要和 --mark 一起用")
    with bad_usage(Problem):
        way = isolation.best_sandbox(options.trust_students)
    if way not in isolation.SANDBOXES:
        WORDING.tell("no-sandbox", file=sys.stderr)
    announce_loading()
    if options.what.is_dir():
        return _class(options, way)
    return _file(options, way)


def _class(options: argparse.Namespace, way: str) -> int:
    from labkit_classroom.grade.class_grading import mark_class
    from labkit_classroom.handout.folder import open_class
    from labkit_classroom.intake.collecting import group_files
    from labkit_classroom.messages import Problem
    from labkit_classroom.results.present import present

    shown = itertools.count(1)

    def show(mark: StudentMark, seconds: float, of: int) -> None:
        points = f"{mark.points:g}/{mark.max_points:g}"
        text = f"[{next(shown):{len(str(of))}}/{of}] {mark.student}  {points}  {duration(seconds)}"
        odd = "".join(f"\n    {str(note).splitlines()[0]}" for note in mark.troubles)
        print(text + odd, flush=True)

    with bad_usage(Problem, file=options.what):
        folder = open_class(options.what)
        done = mark_class(folder, way, options.jobs, options.again, show)
        pages = present(folder, done.came, done.answers)
    failed = [mark.student for mark in done.graded if mark.has_failed]
    came, graded, kept = done.came, len(done.graded), len(done.kept)
    unreadable, missing = len(came.unreadable), len(came.missing)
    WORDING.tell(
        "graded", graded=graded, kept=kept, unreadable=unreadable, missing=missing, overview=pages[-1]
    )
    for line in group_files(came.rejected):
        WORDING.tell("not-graded", line=line)
    if came.unreadable:
        whom = ", ".join(folder.students[student].email or student for student in came.unreadable)
        WORDING.tell("write-to", whom=whom)
    if failed:
        WORDING.tell("not-judged", listed=series(failed))
    return 1 if failed else 0


def _by_hand(options: argparse.Namespace) -> int:
    from labkit_classroom.grade.marks import mark_by_hand
    from labkit_classroom.handout.folder import open_class
    from labkit_classroom.messages import Problem
    from labkit_classroom.results.present import present

    with bad_usage(Problem, file=options.what):
        folder = open_class(options.what)
        student, question, points = options.mark
        mark = mark_by_hand(folder, student, question, points, options.why or "")
        pages = present(folder)
    WORDING.tell("by-hand", student=mark.student, points=mark.points, overview=pages[-1])
    return 0


def _file(options: argparse.Namespace, way: str) -> int:
    from labkit_classroom.grade.submission import grade_file

    with bad_usage(ValueError, file=options.what):
        assignment, mark = grade_file(options.what, way, secrets.token_bytes(32))
    if options.json:
        facts = asdict(mark) | {"points": mark.points, "of": mark.max_points}
        print(json.dumps(facts, ensure_ascii=False, indent=1))
    else:
        for asked in assignment.questions:
            question, parts = mark.questions[asked.id], {part.id: part.what for part in asked.parts}
            print(f"{asked.id}  {question.points:g}/{question.of:g}  {asked.title}")
            for part in question.parts:
                if part.en:
                    print(f"    {parts[part.id]}\n      {part}")
        for note in (*mark.notes, *mark.troubles):
            print(f"- {note}")
        WORDING.tell("total", points=mark.points, of=mark.max_points)
    if mark.has_failed:
        return 70
    return 0 if mark.points >= mark.max_points else 1
