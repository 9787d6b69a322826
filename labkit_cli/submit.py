"""Create the file to hand in, and show its answers with their points on open examples.

Exit code 0: created. 1: not created, because no question is answered (``--anyway`` creates it). 2: bad usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .usage import UsageError, announce_loading, bad_usage
from .wording import Wording

if TYPE_CHECKING:
    from labkit_classroom.grade.marks import QuestionMark
    from labkit_classroom.intake.handin import HandIn

WORDING = Wording("submit", notebook={"type": Path}, to={"type": Path, "default": Path()})


def run(options: argparse.Namespace) -> int:
    from labkit_classroom.intake.document import WrongFile
    from labkit_classroom.intake.handin import prepare, write
    from labkit_classroom.messages import Problem

    with bad_usage(Problem, file=options.notebook):
        try:
            found = prepare(options.notebook, options.id)
        except WrongFile as wrong:
            raise UsageError(en=f"{options.notebook}: {wrong}", zh=f"{options.notebook}：{wrong}") from None
    answers, claim = found.answers, found.claim
    WORDING.tell("edition", assignment=claim.assignment, student=claim.student)
    if answers is None:
        print(f"  {WORDING['no-metadata']}")
    else:
        marks = {} if options.quick or not any(answers.answers.values()) else _try_answers(found)
        for question, source in answers.answers.items():
            trouble = found.troubles.get(question)
            if source is None:
                state = WORDING["not-answered"]()
            elif trouble:
                state = WORDING["not-python"](trouble=trouble)
            else:
                state = WORDING["answered"](lines=len(source.splitlines()))
            mark = marks.get(question) if source and not trouble else None
            if mark:
                state += WORDING["tried"](points=f"{mark.points:g}", of=f"{mark.of:g}")
            print(f"  {question:<14} {state}")
            hints = [str(part) for part in mark.parts if part.en] if mark else []
            for hint in dict.fromkeys(hints):
                print(f"  {'':<14} - {hint}")
        for note in answers.notes:
            print(f"  ! {note}")
        if not any(answers.answers.values()) and not options.anyway:
            WORDING.tell("nothing-answered", file=sys.stderr)
            return 1
    with bad_usage(file=options.to):
        options.to.mkdir(parents=True, exist_ok=True)
        path = write(found, options.to, datetime.now())
    WORDING.tell("hand-in", path=path, size=max(1, round(path.stat().st_size / 1024)))
    return 0


def _try_answers(found: HandIn) -> Mapping[str, QuestionMark]:
    """Return the marks of the answers on open examples; {} for an assignment that only the teacher has."""
    from labkit_classroom.assignment import load
    from labkit_classroom.draw import OPEN
    from labkit_classroom.folders import names
    from labkit_classroom.grade.submission import grade_alone
    from labkit_classroom.sandbox.isolation import CannotStart, best_sandbox

    claim = found.claim
    if claim.assignment not in names():
        return {}
    announce_loading()
    try:
        assignment = load(claim.assignment)
        return grade_alone(
            found.document, assignment, best_sandbox(trust=True), OPEN, claim.student
        ).questions
    except (CannotStart, ImportError) as error:  # handing in works without PyTorch, too
        WORDING.tell("not-tried", why=error, file=sys.stderr)
        return {}
