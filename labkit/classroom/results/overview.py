"""The class at a glance, for the teacher alone: marks, what was difficult, which hint fired how often, what was odd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from statistics import mean, median

from ...base.language import say, series
from ..assignment import Assignment
from ..grade.marks import Mark, PartMark
from ..handout.folder import ClassFolder
from ..intake.collecting import Collection
from .page import listed, meter, page, points, prose, section, share_of, shown, table, text
from .similar import Group


@dataclass(frozen=True)
class Class:
    """All that is known of a class when it has been graded.

    marks     by student; ``before``: the points of the last grading, where they were others.
    """

    folder: ClassFolder
    assignment: Assignment
    marks: Mapping[str, Mark]
    before: Mapping[str, float]
    came: Collection
    similar: list[Group]

    def named(self, student: str) -> str:
        known = self.folder.students.get(student)
        return f"{known.name} ({student})" if known else student


def overview_page(found: Class) -> str:
    """The page, in the language in use."""
    title = text("class", title=found.assignment.title)
    return page(
        title,
        f"<h1>{escape(title)}</h1>",
        _summary(found),
        section("hardest-first", _questions(found)),
        section("hints", _hints(found)),
        section("odd", _odd(found)),
        section("similar", _similar(found)),
        section("students", _students(found)),
        f'<p class="soft">{text("for-teachers")}</p>',
    )


def _summary(found: Class) -> str:
    totals = [mark.points for mark in found.marks.values()]
    late = sum(any(note.kind == "late" for note in mark.notes) for mark in found.marks.values())
    size, missing = len(found.folder.students), len(found.came.missing)
    told = text("counts", graded=len(found.marks), size=size, missing=missing, late=late)
    if totals:
        middle, half, most = map(points, (mean(totals), median(totals), found.assignment.points))
        told += say(en=" ", zh="") + text("middle", mean=middle, median=half, most=most)
    return f"<p>{told}</p>"


def _questions(found: Class) -> str:
    """Ordered by difficulty, the hardest first."""
    rows: list[tuple[float, list[str]]] = []
    for question in found.assignment.questions if found.marks else ():
        marks = list(filter(None, (mark.questions.get(question.id) for mark in found.marks.values())))
        counted = [mark.counted[question.id] for mark in found.marks.values() if question.id in mark.counted]
        share = mean(counted) / question.points if counted and question.points else 0
        full = sum(given >= question.points for given in counted)
        unanswered = sum(mark.state == "unanswered" for mark in marks)
        head = f"{escape(str(question.title))}{meter(share)}"
        rows.append((share, [head, f"{share:.0%}", str(full), str(unanswered)]))
    rows.sort(key=lambda row: row[0])
    heads = [text(key) for key in ("question-title", "mean-share", "full-marks", "unanswered")]
    return table(heads, [row for _, row in rows], {1, 2, 3})


def _hints(found: Class) -> str:
    """Counts for how many students each hint fired: the first are worth ten minutes of the next lesson."""
    fired: dict[tuple[str, str], dict[str, PartMark]] = {}  # question, hint -> student -> the first part
    for student, mark in found.marks.items():
        for question, answered in mark.questions.items():
            for part in answered.parts:
                if part.hint:
                    fired.setdefault((question, part.hint), {}).setdefault(student, part)
    titles = {question.id: str(question.title) for question in found.assignment.questions}
    rows = []
    for (question, hint), parts in sorted(fired.items(), key=lambda item: (-len(item[1]), item[0])):
        who = escape(series(found.named(student) for student in sorted(parts)))
        one = next(iter(parts.values()))
        rows.append([
            str(len(parts)),
            f"{escape(titles.get(question, question))}<br><span class=soft>{escape(hint)}</span>",
            f"{prose(say(en=one.en, zh=one.zh))}<details><summary>{text('who')}</summary>{who}</details>",
        ])  # fmt: skip
    return table([text("how-many"), text("question"), text("hint")], rows, {0})


def _odd(found: Class) -> str:
    failed, told, troubles = [], [f"{name}: {note}" for name, note in found.came.strangers], []
    for student, mark in found.marks.items():
        who = found.named(student)
        for question, answered in mark.questions.items():
            if answered.state == "failed":
                why = "; ".join(say(en=part.en, zh=part.zh) for part in answered.parts if part.en)
                failed.append(f"{who}: {text('failed', question=question, why=why)}")
        told += [f"{who}: {note}" for note in mark.notes]
        for id, hand in mark.by_hand.items():
            graded = points(mark.questions[id].points) if id in mark.questions else "–"
            given = points(mark.counted[id])
            told.append(f"{who}: {text('hand-odd', question=id, given=given, graded=graded, why=hand.why)}")
            if hand.digest != mark.digest:
                told.append(f"{who}: {text('hand-stale', question=id)}")
        troubles += [f"{who}: {str(note).splitlines()[0]}" for note in mark.troubles]
    return listed([*failed, *told, *troubles])


def _similar(found: Class) -> str:
    rows = []
    for group in found.similar:
        who = escape(series(map(found.named, group.students)))
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
            rows.append([*head, *[""] * len(questions), f'<span class="bad">{text("nothing")}</span>'])
            continue
        head[0] = f'<a href="../feedback/{escape(student.id)}.html">{head[0]}</a>'
        cells = []
        for question in questions:
            hand = "*" * (question.id in mark.by_hand)
            cells.append(shown(mark, question.id) + hand or '<span class="soft">–</span>')
        total = share_of(mark.points, found.assignment.points)
        if student.id in found.before:
            total += f' <span class="part">({text("was", points=points(found.before[student.id]))})</span>'
        rows.append([*head, *cells, total])
    titles = [f'<span title="{escape(str(one.title))}">{escape(one.id)}</span>' for one in questions]
    heads = [text("id"), text("name"), *titles, text("total")]
    return table(heads, rows, set(range(2, len(heads))))
