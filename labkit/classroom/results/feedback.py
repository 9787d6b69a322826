"""The page that a student gets back: marks, what each part asked, and the hint where points were lost."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ...base.language import say
from ..assignment import Assignment, Question
from ..grade.marks import Mark, PartMark
from ..handout.roster import Student
from ..words import Note
from .page import listed, meter, page, points, prose, share_of, text

_SIGNS = {"good": "✓", "part": "◐", "bad": "✗"}


def feedback_page(
    assignment: Assignment, student: Student, mark: Mark, answers: Mapping[str, str | None]
) -> str:
    """The page, in the language in use."""
    return _page_of(
        assignment,
        student,
        f'<p class="total">{share_of(mark.points, assignment.points)}</p>',
        meter(mark.points / assignment.points if assignment.points else 0),
        listed([str(note) for note in mark.notes]),
        *(_question(one, mark, answers.get(one.id)) for one in assignment.questions),
        f'<p class="soft">{prose(text("how"))}</p>',
    )


def no_submission_page(assignment: Assignment, student: Student, odd: list[tuple[str, Note]]) -> str:
    """For a student from whom something came back that could not be graded: what it was, and what to do."""
    files = [f"{name}: {note}" for name, note in odd]
    return _page_of(assignment, student, f"<p>{text('nothing-graded')}</p>", listed(files))


def _page_of(assignment: Assignment, student: Student, *parts: str) -> str:
    return page(
        f"{assignment.title} · {student.name}",
        f"<h1>{escape(str(assignment.title))}</h1>",
        f'<p class="soft">{escape(student.name)} · {escape(student.id)}</p>',
        *parts,
    )


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
