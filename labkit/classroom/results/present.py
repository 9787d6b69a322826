"""Writes a page for each student (marks, what each part asked, a hint where points were lost), and the teacher's."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from ...base.files import write_whole
from ...base.language import say, using
from ..assignment import Assignment, Question
from ..grade.marks import Mark, PartMark, history
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of, numbers_of
from ..intake.answers import Answers
from ..intake.collecting import Collection, strangers_of, take_in
from .overview import Class, overview_page
from .page import listed, meter, page, points, prose, share_of, text
from .similar import Group, similar

_SIGNS = {"good": "✓", "part": "◐", "bad": "✗"}


def present(
    folder: ClassFolder, came: Collection | None = None, answers: Mapping[str, Answers] | None = None
) -> list[Path]:
    """Write ``feedback/<id>.html``, each in its student's language, and ``teacher/overview.html``; gives their paths.

    They are made from the marks anew each time, so they replace those of an earlier grading, whose marks stay in
    ``teacher/marks.jsonl``. OSError if one cannot be written.

    came, answers   what has been taken in already, where a grading has just done so.
    """
    assignment = assignment_of(folder)
    if came is None or answers is None:
        came, answers = take_in(folder, assignment)
    graded = {id: marks for id, marks in history(folder.marks).items() if id in folder.students}
    marks = {student: mine[-1] for student, mine in graded.items()}
    former = {student: mine[-2].points for student, mine in graded.items() if len(mine) > 1}
    before = {student: was for student, was in former.items() if was != marks[student].points}
    strange = strangers_of(came, folder)
    written = []
    for student in folder.students.values():
        with using(folder.language_of(student.id)):
            if student.id in marks:
                mark = marks[student.id]
                # The answers that were graded; a file that came since shows with the next grading.
                mine = answers.get(student.id)
                current = mine.answers if mine and mine.digest == mark.digest else {}
                parts = _feedback(assignment, mark, current)
            elif student.id in strange:  # what came back could not be graded
                files = [f"{name}: {note}" for name, note in strange[student.id]]
                parts = [f"<p>{text('nothing-graded')}</p>", listed(files)]
            else:
                continue
            head = f"<h1>{escape(str(assignment.title))}</h1>"
            whose = f'<p class="soft">{escape(student.name)} · {escape(student.id)}</p>'
            told = page(f"{assignment.title} · {student.name}", head, whose, *parts)
        folder.feedback.mkdir(exist_ok=True)
        written.append(folder.feedback / f"{student.id}.html")
        write_whole(written[-1], told)
    alike = _similar(folder, assignment, answers)
    written.append(folder.teacher / "overview.html")
    write_whole(written[-1], overview_page(Class(folder, assignment, marks, before, came, alike)))
    return written


def _similar(folder: ClassFolder, assignment: Assignment, answers: Mapping[str, Answers]) -> list[Group]:
    """Answers that are alike, or like the solution, apart from what the notebooks gave."""
    numbers = {student: numbers_of(folder, assignment, student) for student in answers}
    stubs = {one.id: list({one.stub(mine) for mine in numbers.values()}) for one in assignment.questions}
    solutions = {
        student: {one.id: one.solution(mine) for one in assignment.questions}
        for student, mine in numbers.items()
    }
    return similar({student: found.answers for student, found in answers.items()}, stubs, solutions)


def _feedback(assignment: Assignment, mark: Mark, answers: Mapping[str, str | None]) -> list[str]:
    """The parts of a student's page, in the language in use."""
    return [
        f'<p class="total">{share_of(mark.points, assignment.points)}</p>',
        meter(mark.points / assignment.points if assignment.points else 0),
        listed([str(note) for note in mark.notes]),
        *(_question(one, mark, answers.get(one.id)) for one in assignment.questions),
        f'<p class="soft">{prose(text("how"))}</p>',
    ]


def _question(question: Question, marks: Mark, answer: str | None) -> str:
    """Shows the parts of an answer, each with its points and its hint."""
    share = share_of(marks.counted.get(question.id, 0), question.points)
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
    words = say(en=mark.en, zh=mark.zh)
    hint = f'<br><span class="{kind}">{prose(words)}</span>' if words and kind != "good" else ""
    return (
        f'<tr><td class="{kind}">{_SIGNS[kind]}</td><td style="width:100%">{prose(what)}{hint}</td>'
        f'<td class="n">{points(most * mark.score)} / {points(most)}</td></tr>'
    )
