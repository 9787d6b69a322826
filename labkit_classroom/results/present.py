"""Write a feedback page for each student, and the teacher's overview of the class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean, median

from labkit.base.files import write_whole
from labkit.base.language import say, series, using

from ..assignment import Assignment, Question
from ..grade.marks import PartMark, StudentMark, history
from ..handout.folder import ClassFolder, assignment_of, numbers_of
from ..intake.answers import Answers
from ..intake.collecting import Collection, group_files, take_in
from .page import (
    bullet_list,
    format_question_points,
    meter,
    page,
    points,
    prose,
    section,
    share_of,
    table,
    text,
)
from .similar import Group, similar

_SIGNS = {"good": "✓", "part": "◐", "bad": "✗"}


def present(
    folder: ClassFolder, came: Collection | None = None, answers: Mapping[str, Answers] | None = None
) -> list[Path]:
    """Write ``feedback/<id>.html``, each in its student's language, and ``teacher/overview.html``; return the paths.

    Pages of an earlier grading are replaced. Raise OSError if a page cannot be written.

    came, answers   the result of :func:`take_in`, if it has just been called.
    """
    assignment = assignment_of(folder)
    if came is None or answers is None:
        came, answers = take_in(folder, assignment)
    graded = {id: marks for id, marks in history(folder.marks).items() if id in folder.students}
    marks = {student: mine[-1] for student, mine in graded.items()}
    former = {student: mine[-2].points for student, mine in graded.items() if len(mine) > 1}
    before = {student: was for student, was in former.items() if was != marks[student].points}
    written = []
    for student in folder.students.values():
        with using(folder.language_of(student.id)):
            if student.id in marks:
                mark = marks[student.id]
                # Show the graded answers only: a newer file may await the next grading.
                mine = answers.get(student.id)
                current = mine.answers if mine and mine.digest == mark.digest else {}
                parts = _feedback(folder, assignment, mark, current)
            elif student.id in came.unreadable:
                files = group_files(came.unreadable[student.id])
                parts = [f"<p>{text('nothing-graded')}</p>", bullet_list(files)]
            else:
                continue
            head = f"<h1>{escape(str(assignment.title))}</h1>"
            whose = f'<p class="soft">{escape(student.name)} · {escape(student.id)}</p>'
            told = page(f"{assignment.title} · {student.name}", head, whose, *parts)
        folder.feedback.mkdir(exist_ok=True)
        written.append(folder.feedback / f"{student.id}.html")
        write_whole(written[-1], told)
    alike = _find_similar(folder, assignment, answers)
    written.append(folder.teacher / "overview.html")
    write_whole(written[-1], overview_page(Class(folder, assignment, marks, before, came, alike)))
    return written


def _find_similar(folder: ClassFolder, assignment: Assignment, answers: Mapping[str, Answers]) -> list[Group]:
    """Return the groups of similar answers, ignoring given code."""
    numbers = {student: numbers_of(folder, assignment, student) for student in answers}
    given = [assignment.prologue(mine) for mine in numbers.values()]
    stubs = {
        one.id: list({*given, *(one.stub(mine) for mine in numbers.values())}) for one in assignment.questions
    }
    defines = {one.id: one.defines for one in assignment.questions}
    usual = assignment.numbers(None)
    solutions = {
        student: {one.id: [one.solution(mine), one.solution(usual)] for one in assignment.questions}
        for student, mine in numbers.items()
    }
    return similar({student: found.answers for student, found in answers.items()}, stubs, solutions, defines)


def _feedback(
    folder: ClassFolder, assignment: Assignment, mark: StudentMark, answers: Mapping[str, str | None]
) -> list[str]:
    """Return the parts of a student's page in the current language."""
    how = f"{folder.late_rule()} {text('how')}".strip()
    return [
        f'<p class="total">{share_of(mark.points, assignment.points)}</p>',
        meter(mark.points / assignment.points if assignment.points else 0),
        bullet_list([str(note) for note in mark.notes]),
        *(_question(one, mark, answers.get(one.id)) for one in assignment.questions),
        f'<p class="soft">{prose(how)}</p>',
    ]


def _question(question: Question, marks: StudentMark, answer: str | None) -> str:
    """Return the parts of an answer as HTML, each with points and hint."""
    share = share_of(marks.counted_points.get(question.id, 0), question.points)
    mark, hand = marks.questions.get(question.id), marks.by_hand.get(question.id)
    head = f'<h2>{escape(str(question.title))} <span class="soft">{share}</span></h2>'
    if hand is not None:
        graded = points(mark.points if mark else 0)
        head += f"<p><b>{text('by-hand', graded=graded)}</b> {escape(hand.why)}</p>"
    if mark is None or mark.state == "unanswered":
        return f'{head}<p class="soft">{text("not-answered")}</p>'
    if mark.state == "failed":
        return f"{head}<p>{text('not-judged')}</p>"
    found = {part.id: part for part in mark.parts}
    rows = [_part(str(part.what), part.points, found[part.id]) for part in question.parts if part.id in found]
    code = f"<summary>{text('your-answer')}</summary><pre><code>{escape(answer or '')}</code></pre>"
    return f"{head}<table>{''.join(rows)}</table>" + (f"<details>{code}</details>" if answer else "")


def _part(what: str, most: float, mark: PartMark) -> str:
    kind = "good" if mark.score >= 1 else "part" if mark.score > 0 else "bad"
    words = prose(str(mark))
    hint = f'<br><span class="{kind}">{words}</span>' if words and kind != "good" else ""
    return (
        f'<tr><td class="{kind}">{_SIGNS[kind]}</td><td style="width:100%">{prose(what)}{hint}</td>'
        f'<td class="n">{points(most * mark.score)} / {points(most)}</td></tr>'
    )


@dataclass(frozen=True)
class Class:
    """A graded class.

    marks     by student; ``before``: points of the previous grading, if different.
    """

    folder: ClassFolder
    assignment: Assignment
    marks: Mapping[str, StudentMark]
    before: Mapping[str, float]
    came: Collection
    similar: list[Group]

    def label_student(self, student: str) -> str:
        known = self.folder.students.get(student)
        return f"{known.name} ({student})" if known else student


def overview_page(found: Class) -> str:
    """Return the teacher's page in the current language."""
    title = text("class", title=found.assignment.title)
    return page(
        title,
        f"<h1>{escape(title)}</h1>",
        _summary(found),
        section("hardest-first", _questions(found)),
        section("hints", _hints(found)),
        section("write-to", _addresses(found)),
        section("odd", _remarks(found)),
        section("similar", _similar(found)),
        section("students", _students(found)),
        f'<p class="soft">{text("for-teachers")}</p>',
    )


def _summary(found: Class) -> str:
    totals = [mark.points for mark in found.marks.values()]
    late = sum(any(note.kind == "late" for note in mark.notes) for mark in found.marks.values())
    size, missing = len(found.folder.students), len(found.came.missing)
    unreadable = len(found.came.unreadable.keys() - found.marks.keys())
    told = text(
        "counts", graded=len(found.marks), size=size, unreadable=unreadable, missing=missing, late=late
    )
    if totals:
        middle, half, most = map(points, (mean(totals), median(totals), found.assignment.points))
        told += say(en=" ", zh="") + text("middle", mean=middle, median=half, most=most)
    return f"<p>{told}</p>"


def _questions(found: Class) -> str:
    """Return the table of questions, the hardest first."""
    rows: list[tuple[float, list[str]]] = []
    for question in found.assignment.questions if found.marks else ():
        marks = list(filter(None, (mark.questions.get(question.id) for mark in found.marks.values())))
        counted = [
            mark.counted_points[question.id]
            for mark in found.marks.values()
            if question.id in mark.counted_points
        ]
        share = mean(counted) / question.points if counted and question.points else 0
        full = sum(given >= question.points for given in counted)
        unanswered = sum(mark.state == "unanswered" for mark in marks)
        head = f"{escape(str(question.title))}{meter(share)}"
        rows.append((share, [head, f"{share:.0%}", str(full), str(unanswered)]))
    rows.sort(key=lambda row: row[0])
    heads = [text(key) for key in ("question-title", "mean-share", "full-marks", "unanswered")]
    return table(heads, [row for _, row in rows], {1, 2, 3})


def _hints(found: Class) -> str:
    """Return the table of hints, the most frequent first."""
    fired: dict[tuple[str, str], dict[str, PartMark]] = {}  # question, hint -> student -> the first part
    for student, mark in found.marks.items():
        for question, answered in mark.questions.items():
            for part in answered.parts:
                if part.hint:
                    fired.setdefault((question, part.hint), {}).setdefault(student, part)
    titles = {question.id: str(question.title) for question in found.assignment.questions}
    rows = []
    for (question, hint), parts in sorted(fired.items(), key=lambda item: (-len(item[1]), item[0])):
        who = escape(series(found.label_student(student) for student in sorted(parts)))
        one = next(iter(parts.values()))
        rows.append([
            str(len(parts)),
            f"{escape(titles.get(question, question))}<br><span class=soft>{escape(hint)}</span>",
            f"{prose(str(one))}<details><summary>{text('who')}</summary>{who}</details>",
        ])  # fmt: skip
    return table([text("how-many"), text("question"), text("hint")], rows, {0})


def _addresses(found: Class) -> str:
    """Return a list of the students whose files cannot be graded, with one line of all addresses to copy."""
    unreadable = found.came.unreadable
    addresses = [found.folder.students[student].email or student for student in unreadable]
    rows = [
        f"{found.label_student(student)} · {'; '.join(group_files(files))}"
        for student, files in unreadable.items()
    ]
    return f"<p><code>{escape(', '.join(addresses))}</code></p>{bullet_list(rows)}" if rows else ""


def _remarks(found: Class) -> str:
    listed = [file for files in found.came.unreadable.values() for file in files]  # in another section
    failed, told, troubles = [], group_files(one for one in found.came.rejected if one not in listed), []
    for student, mark in found.marks.items():
        who = found.label_student(student)
        for question, answered in mark.questions.items():
            if answered.state == "failed":
                why = "; ".join(str(part) for part in answered.parts if part.en)
                failed.append(f"{who}: {text('failed', question=question, why=why)}")
        told += [f"{who}: {note}" for note in mark.notes]
        for id, hand in mark.by_hand.items():
            graded = points(mark.questions[id].points) if id in mark.questions else "–"
            given = points(mark.counted_points[id])
            told.append(f"{who}: {text('hand-odd', question=id, given=given, graded=graded, why=hand.why)}")
            if hand.digest != mark.digest:
                told.append(f"{who}: {text('hand-stale', question=id)}")
        troubles += [f"{who}: {str(note).splitlines()[0]}" for note in mark.troubles]
    return bullet_list([*failed, *told, *troubles])


def _similar(found: Class) -> str:
    rows = []
    for group in found.similar:
        who = escape(series(map(found.label_student, group.students)))
        told = f"<b>{text('as-solution')}</b> " if group.as_solution else ""
        code = f"<pre><code>{escape(chr(10).join(group.lines))}</code></pre>"
        who = f"{told}{who}<details><summary>{text('lines')}</summary>{code}</details>"
        rows.append([str(len(group.students)), who, escape(group.question), f"{group.share:.0%}"])
    if not rows:
        return ""
    heads = [text("how-many"), "", text("question"), text("in-common")]
    return f"<p class=soft>{text('no-proof')}</p>" + table(heads, rows, {0, 3})


def _students(found: Class) -> str:
    questions = found.assignment.questions
    rows = []
    for student in found.folder.students.values():
        mark = found.marks.get(student.id)
        head = [escape(student.id), escape(student.name)]
        if mark is None:
            state = text("unreadable" if student.id in found.came.unreadable else "nothing")
            rows.append([*head, *[""] * len(questions), f'<span class="bad">{state}</span>'])
            continue
        head[0] = f'<a href="../feedback/{escape(student.id)}.html">{head[0]}</a>'
        cells = []
        for question in questions:
            hand = "*" * (question.id in mark.by_hand)
            cells.append(format_question_points(mark, question.id) + hand or '<span class="soft">–</span>')
        total = share_of(mark.points, found.assignment.points)
        if mark.share < 1:
            total += f' <span class="part">({text("late-share", share=f"{mark.share:.0%}")})</span>'
        if student.id in found.before:
            total += f' <span class="part">({text("was", points=points(found.before[student.id]))})</span>'
        rows.append([*head, *cells, total])
    titles = [f'<span title="{escape(str(one.title))}">{escape(one.id)}</span>' for one in questions]
    heads = [text("id"), text("name"), *titles, text("total")]
    return table(heads, rows, set(range(2, len(heads))))
