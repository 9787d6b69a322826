"""The page that a student gets back: marks, what each part asked, and the hint where points were lost."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ...base.language import say
from ..assignment import Assignment, Question
from ..grade.marks import Mark, PartMark, QuestionMark
from ..handout.roster import Student
from ..intake.answers import Note
from .html import meter, notes, page, points, prose, share_of

_SIGNS = {"good": "✓", "part": "◐", "bad": "✗"}


def feedback_page(
    assignment: Assignment, student: Student, mark: Mark, answers: Mapping[str, str | None], odd: list[Note]
) -> str:
    """The page, in the language in use; ``odd``: what was odd about the file."""
    title = str(assignment.title)
    got = mark.points
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(student.name)} · {escape(student.id)}</p>',
        f'<p class="total">{share_of(got, assignment.points)}</p>',
        meter(got / assignment.points if assignment.points else 0),
        notes([str(note) for note in odd]),
    ]
    for question in assignment.questions:
        parts.append(_question(question, mark.questions.get(question.id), answers.get(question.id)))
    parts.append(f'<p class="soft">{prose(_how())}</p>')
    return page(f"{title} · {student.name}", "\n".join(parts))


def no_submission_page(assignment: Assignment, student: Student, odd: list[tuple[str, Note]]) -> str:
    """For a student from whom something came back that could not be graded: what it was, and what to do."""
    told = say(
        en="Nothing was graded for you. What came back under your name:",
        zh="你的作业没有批改。以你的名义交来的是：",
    )
    return page(
        f"{assignment.title} · {student.name}",
        f"<h1>{escape(str(assignment.title))}</h1>\n"
        f'<p class="soft">{escape(student.name)} · {escape(student.id)}</p>\n<p>{told}</p>'
        + notes([f"{name}: {note}" for name, note in odd]),
    )


def _question(question: Question, mark: QuestionMark | None, answer: str | None) -> str:
    got = mark.points if mark else 0
    head = (
        f'<h2>{escape(str(question.title))} <span class="soft">{share_of(got, question.points)}</span></h2>'
    )
    if mark is None or mark.state == "unanswered":
        return head + f'<p class="soft">{say(en="Not answered.", zh="未作答。")}</p>'
    if mark.state == "failed":
        return head + "<p>{}</p>".format(
            say(
                en="This could not be graded, and that is no fault of yours; your teacher has been told.",
                zh="这道题没能批改，不是你的问题；已告知老师。",
            )
        )
    marks = {part.id: part for part in mark.parts}
    rows = [_part(str(part.what), part.points, marks[part.id]) for part in question.parts if part.id in marks]
    code = ""
    if answer:
        code = (
            f"<details><summary>{say(en='Your answer', zh='你的答案')}</summary>"
            f"<pre><code>{escape(answer)}</code></pre></details>"
        )
    return head + f"<table>{''.join(rows)}</table>{code}"


def _part(what: str, most: float, mark: PartMark) -> str:
    kind = "good" if mark.score >= 1 else "part" if mark.score > 0 else "bad"
    words = say(en=mark.en, zh=mark.zh)
    hint = f'<br><span class="{kind}">{prose(words)}</span>' if words and kind != "good" else ""
    return (
        f'<tr><td class="{kind}">{_SIGNS[kind]}</td><td style="width:100%">{prose(what)}{hint}</td>'
        f'<td class="n">{points(most * mark.score)} / {points(most)}</td></tr>'
    )


def _how() -> str:
    return say(
        en="Graded by labkit on cases drawn for you: an answer that only knows the examples of the notebook "
        "does not pass. Warnings, and anything printed, cost nothing. If a mark seems wrong, show this page to your "
        "teacher.",
        zh="由 labkit 批改，用例是专门为你抽取的：只对笔记本里的例子有效的答案得不到分。"
        "警告和打印的内容不影响成绩。如果对得分有疑问，请带上这一页找老师。",
    )
