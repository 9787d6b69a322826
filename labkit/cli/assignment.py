"""The teacher's commands: ``labkit assignment list``, ``release`` and ``export``."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from ..base.files import reason
from ..base.language import get_language, say
from .console import tell
from .usage import UsageError, add_language, add_options, bad_usage
from .wording import Wording

WORDING = Wording("assignment")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)

    listing = actions.add_parser("list", help=say(en="say which assignments there are", zh="列出有哪些作业"))
    listing.set_defaults(act=_list)

    text = say(en="make an edition for each student", zh="为每个学生生成一份作业")
    releasing = actions.add_parser("release", help=text)
    add_options(releasing, WORDING, "assignment")
    to_whom = releasing.add_mutually_exclusive_group(required=True)
    add_options(to_whom, WORDING, "to-whom", students={"type": Path}, nbgrader={"type": Path})
    add_options(releasing, WORDING, "release", to={"type": Path}, deadline={"type": _moment})
    releasing.set_defaults(act=_release)

    text = say(
        en="write the marks as tables: for WPS and Excel, nbgrader, Canvas, Moodle",
        zh="把成绩导出成表：给 WPS 和 Excel、nbgrader、Canvas、Moodle",
    )
    exporting = actions.add_parser("export", help=text)
    add_options(exporting, WORDING, "export", folder={"type": Path})
    exporting.set_defaults(act=_export)
    for action in (listing, releasing, exporting):
        add_language(action)


def run(options: argparse.Namespace) -> int:
    from ..classroom.words import Problem

    try:
        code: int = options.act(options)
    except Problem as error:
        raise UsageError(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            en=f"{error.filename} cannot be read or written: {reason(error)}",
            zh=f"无法读写 {error.filename}：{reason(error)}",
        ) from None
    return code


def _moment(text: str) -> datetime:
    from ..classroom.handout.folder import moment

    try:
        return moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _list(options: argparse.Namespace) -> int:
    from ..classroom.assignment import load
    from ..classroom.folders import names

    for name in names():
        found = load(name)
        tell(
            en=f"{name:<12} {found.title}: {len(found.questions)} questions, {found.points} points",
            zh=f"{name:<12} {found.title}：{len(found.questions)} 道题，{found.points} 分",
        )
        for question in found.questions:
            print(f"{'':<12}   {question.title} ({question.points})")
    return 0


def _release(options: argparse.Namespace) -> int:
    from ..classroom.assignment import load
    from ..classroom.handout.release import release
    from ..classroom.handout.roster import read_roster
    from ..classroom.nbgrader import write_course

    students = read_roster(options.students) if options.students else []
    with bad_usage(ValueError):
        assignment = load(options.assignment)
    if options.nbgrader:
        for path in write_course(assignment, options.nbgrader, get_language(), options.force):
            print(path)
        tell(
            en=f"Then, in {options.nbgrader}: nbgrader generate_assignment {assignment.name}. nbgrader runs tests "
            "in the student's own kernel: labkit grade does not, and takes the same notebooks.",
            zh=f"然后在 {options.nbgrader} 里运行：nbgrader generate_assignment {assignment.name}。"
            "nbgrader 在学生自己的内核里运行测试；labkit grade 不是这样，而且能批改同样的笔记本。",
        )
        return 0
    made = release(
        assignment,
        options.to or Path(assignment.name),
        students,
        get_language(),
        options.deadline,
        not options.same,
        options.force,
    )
    folder = made.folder
    tell(
        en=f"{len(made.written)} written, for {len(students)} students: {folder.handout}",
        zh=f"为 {len(students)} 名学生写了 {len(made.written)} 份：{folder.handout}",
    )
    if made.kept:
        tell(
            en=f"{len(made.kept)} were there and stayed as they are",
            zh=f"{len(made.kept)} 份先前已有，没有改动",
        )
    if made.gone:
        listed = ", ".join(student.id for student in made.gone)
        tell(
            en=f"no longer on the roster, and still in the class: {listed}",
            zh=f"名单上已没有、班级里仍保留：{listed}",
        )
    if folder.deadline:
        tell(
            en=f"deadline: {folder.deadline:%Y-%m-%d %H:%M %Z}; the word that opens the lessons' solutions "
            f"where class mode is on: {folder.word}",
            zh=f"截止时间：{folder.deadline:%Y-%m-%d %H:%M %Z}；课堂模式下开放课程答案的口令：{folder.word}",
        )
    tell(
        en=f"Keep {folder.teacher} to yourself, and back it up. Put what comes back into {folder.submitted}, then: "
        f"labkit grade {folder.path}",
        zh=f"{folder.teacher} 请自己保管并备份。收回的文件放进 {folder.submitted}，然后运行："
        f"labkit grade {folder.path}",
    )
    return 0


def _export(options: argparse.Namespace) -> int:
    from ..classroom.handout.folder import open_class
    from ..classroom.results.tables import export

    for path in export(open_class(options.folder), options.force):
        print(path)
    return 0
