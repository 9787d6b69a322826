"""The teacher's commands: ``labkit assignment list``, ``try``, ``release`` and ``export``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.base.language import get_language, series

from .usage import UsageError, add_language, add_options, bad_usage
from .wording import Wording


def _parse_with(name: str) -> Callable[[str], Any]:
    """Return a type for argparse that calls the function ``name`` of the class folder's module."""

    def parse(text: str) -> Any:
        from labkit_classroom.handout import folder

        try:
            return getattr(folder, name)(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


_PATH = {"type": Path}
WORDING = Wording(
    "assignment",
    students=_PATH,
    nbgrader=_PATH,
    to=_PATH,
    folder=_PATH,
    deadline={"type": _parse_with("parse_deadline")},
    late={"type": _parse_with("parse_late_rule")},
    form={"choices": ("spreadsheet", "canvas", "moodle"), "default": "spreadsheet"},
    title={"default": ""},
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)

    def action(name: str, act: Callable[[argparse.Namespace], int], *groups: str) -> None:
        made = actions.add_parser(name, help=str(WORDING[f"action {name}"]))
        made.set_defaults(act=act)
        for group in groups:
            one_of = made.add_mutually_exclusive_group(required=True) if group == "to-whom" else made
            add_options(one_of, WORDING, group)
        add_language(made)

    action("list", _list)
    action("release", _release, "assignment", "to-whom", "release")
    action("try", _try, "assignment", "try")
    action("export", _export, "export")


def run(options: argparse.Namespace) -> int:
    from labkit_classroom.messages import Problem

    with bad_usage(Problem, file=Path()):
        code: int = options.act(options)
    return code


def _column(text: str) -> tuple[str, str]:
    kind, equals, title = text.partition("=")
    if not equals:
        raise UsageError(
            en=f"--columns is written id=TITLE,name=TITLE, got {text!r}",
            zh=f"--columns 的写法是 id=列名,name=列名，现在是 {text!r}",
        )
    return kind.strip(), title.strip()


def _list(options: argparse.Namespace) -> int:
    from labkit_classroom.assignment import load
    from labkit_classroom.folders import names

    for name in names():
        found = load(name)
        count = len(found.questions)
        WORDING.tell("title", name=f"{name:<12}", title=found.title, count=count, points=found.points)
        for question in found.questions:
            print(f"{'':<12}   {question.title} ({question.points})")
    return 0


def _release(options: argparse.Namespace) -> int:
    from labkit_classroom.assignment import load
    from labkit_classroom.handout.folder import release
    from labkit_classroom.handout.roster import read_roster
    from labkit_classroom.messages import Problem
    from labkit_classroom.nbgrader import write_course

    odd: list[Problem] = []
    called = dict(_column(text) for text in options.columns.split(",")) if options.columns else {}
    students = read_roster(options.students, called, odd) if options.students else []
    for problem in odd:
        print(problem, file=sys.stderr)
    with bad_usage(ValueError):
        assignment = load(options.assignment)
    if options.nbgrader:
        for path in write_course(assignment, options.nbgrader, get_language(), options.force):
            print(path)
        WORDING.tell("nbgrader", course=options.nbgrader, assignment=assignment.name)
        return 0
    to = options.to or Path(assignment.name)
    made = release(assignment, to, students, get_language(), options.deadline, options.force, options.late)
    folder = made.folder
    WORDING.tell("written", count=len(made.written), students=len(students), folder=folder.handout)
    if made.kept:
        WORDING.tell("kept", count=len(made.kept))
    if made.gone:
        WORDING.tell("gone", listed=series(student.id for student in made.gone))
    if folder.deadline:
        print(folder.late_rule())
        if folder.deadline < datetime.now().astimezone():
            WORDING.tell("past", file=sys.stderr)
    elif folder.late_rate:
        WORDING.tell("no-deadline", file=sys.stderr)
    WORDING.tell("then", teacher=folder.teacher, submitted=folder.submitted, folder=folder.path)
    return 0


def _try(options: argparse.Namespace) -> int:
    from labkit_classroom.assignment import load
    from labkit_classroom.grade.trial import find_odd_numbers, try_answers
    from labkit_classroom.sandbox.isolation import best_sandbox

    with bad_usage(ValueError):
        assignment = load(options.assignment)
        way = best_sandbox(options.trust_students)
    odd = 0
    for words in find_odd_numbers(assignment):
        odd += 1
        print(f"! {words}")
    for found in try_answers(assignment, way):
        least, most = min(found.points), max(found.points)
        points = f"{least:g}" if least == most else f"{least:g}–{most:g}"
        lost = series(found.lost) if found.title not in ("solution", "empty") else ""
        print(f"{found.question:<12} {found.title:<24} {points} / {found.of:g}  {lost}".rstrip(), flush=True)
        if found.odd:
            odd += 1
            print(f"  ! {found.odd}")
    WORDING.tell("tried", count=odd)
    return 1 if odd else 0


def _export(options: argparse.Namespace) -> int:
    from labkit_classroom.handout.folder import open_class
    from labkit_classroom.results.export import export

    path = export(open_class(options.folder), options.form, options.title, options.force)
    print(path)
    if options.form != "spreadsheet":
        WORDING.tell(options.form)
    return 0
