"""The class at a glance, for the teacher alone: marks, what was difficult, which hint fired how often, what was odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from statistics import mean, median

from ...base.language import say
from ..assignment import Assignment
from ..grade.marks import Mark
from ..handout.folder import ClassFolder
from ..intake.answers import Note
from .html import meter, notes, page, points, prose, share_of, table
from .similar import Pair

_BINS = 10


@dataclass(frozen=True)
class Class:
    """What is known of a class when it has been graded.

    marks     by student; ``before``: those of the last grading, where they were others.
    notes     what was odd about each student's file.
    missing   ids of those from whom nothing came that could be graded.
    strangers (file, why) of what was graded for nobody.
    """

    folder: ClassFolder
    assignment: Assignment
    marks: Mapping[str, Mark]
    before: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, list[Note]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    strangers: list[tuple[str, Note]] = field(default_factory=list)
    similar: list[Pair] = field(default_factory=list)


def overview_page(found: Class) -> str:
    """The page, in the language in use."""
    title = say(en=f"{found.assignment.title}: the class", zh=f"{found.assignment.title}：班级总览")
    parts = [
        f"<h1>{escape(title)}</h1>",
        _summary(found),
        _distribution(found),
        _questions(found),
        _hints(found),
        _odd(found),
        _similar(found),
        _students(found),
        f'<p class="soft">{_for_teachers()}</p>',
    ]
    return page(title, "\n".join(part for part in parts if part))


def _for_teachers() -> str:
    return say(
        en="This page holds names and marks: it is for the teacher, and stays in the teacher's folder.",
        zh="本页含有姓名和成绩，供教师使用，请留在教师文件夹里。",
    )


def _summary(found: Class) -> str:
    totals = [mark.points for mark in found.marks.values()]
    late = sum(any(note.kind == "late" for note in odd) for odd in found.notes.values())
    size = len(found.folder.students)
    told = say(
        en=f"{len(found.marks)} of {size} students graded, {len(found.missing)} without a submission, {late} late.",
        zh=f"{size} 名学生中批改了 {len(found.marks)} 名，{len(found.missing)} 名没有提交，{late} 名迟交。",
    )
    if totals:
        most = points(found.assignment.points)
        told += say(
            en=f" Mean {points(mean(totals))}, median {points(median(totals))} of {most} points.",
            zh=f"满分 {most} 分，平均 {points(mean(totals))} 分，中位数 {points(median(totals))} 分。",
        )
    return f"<p>{told}</p>"


def _distribution(found: Class) -> str:
    if not found.marks:
        return ""
    most = found.assignment.points or 1
    bins = Counter(min(_BINS - 1, int(mark.points / most * _BINS)) for mark in found.marks.values())
    tallest = max(bins.values())
    width, height, step = 600, 150, 60
    drawn = []
    for at in range(_BINS):
        high = round(bins[at] / tallest * (height - 20))
        left, bottom = at * step, height
        drawn.append(
            f'<rect x="{left + 3}" y="{bottom - high}" width="{step - 6}" height="{high}" fill="var(--bar)"/>'
        )
        if bins[at]:
            drawn.append(f'<text x="{left + step / 2}" y="{bottom - high - 4}">{bins[at]}</text>')
        drawn.append(
            f'<text x="{left + step / 2}" y="{bottom + 16}" opacity=".7">{at * 10}–{at * 10 + 10}</text>'
        )
    label = say(en="students by their share of the points, in percent", zh="按得分率（%）分段的人数")
    return (
        f"<h2>{say(en='Distribution', zh='成绩分布')}</h2>"
        f'<svg viewBox="0 0 {width} {height + 24}" role="img" aria-label="{label}" style="max-width:40rem" '
        f'font-size="12" text-anchor="middle" fill="CanvasText">{"".join(drawn)}</svg>'
        f'<p class="soft">{label}</p>'
    )


def _questions(found: Class) -> str:
    """Ordered by difficulty, the hardest first."""
    if not found.marks:
        return ""
    rows = []
    for question in found.assignment.questions:
        marks = [
            mark.questions[question.id] for mark in found.marks.values() if question.id in mark.questions
        ]
        share = mean([mark.points / question.points for mark in marks]) if marks and question.points else 0
        full = sum(mark.points >= question.points for mark in marks)
        open_ = sum(mark.state == "unanswered" for mark in marks)
        rows.append((share, [
            f"{escape(str(question.title))}{meter(share)}", f"{share:.0%}", str(full), str(open_),
        ]))  # fmt: skip
    rows.sort(key=lambda row: row[0])
    heads = [
        say(en="Question", zh="题目"),
        say(en="mean share", zh="平均得分率"),
        say(en="full marks", zh="满分人数"),
        say(en="not answered", zh="未作答人数"),
    ]
    title = say(en="Questions, the hardest first", zh="各题难度（由难到易）")
    return f"<h2>{title}</h2>" + table(heads, [row for _, row in rows], {1, 2, 3})


def _hints(found: Class) -> str:
    """Which hint fired for how many students: what is worth ten minutes of the next lesson."""
    students: dict[tuple[str, str], set[str]] = {}
    words: dict[tuple[str, str], str] = {}
    for student, mark in found.marks.items():
        for question, answered in mark.questions.items():
            for part in answered.parts:
                if part.hint:
                    students.setdefault((question, part.hint), set()).add(student)
                    words.setdefault((question, part.hint), say(en=part.en, zh=part.zh))
    if not students:
        return ""
    titles = {question.id: str(question.title) for question in found.assignment.questions}
    rows = [
        [
            str(len(students[key])),
            f"{escape(titles.get(key[0], key[0]))}<br><span class=soft>{escape(key[1])}</span>",
            f"{prose(words[key])}<details><summary>{say(en='who', zh='哪些人')}</summary>"
            f"{escape(', '.join(_named(found, student) for student in sorted(students[key])))}</details>",
        ]
        for key in sorted(students, key=lambda key: (-len(students[key]), key))
    ]
    heads = [
        say(en="students", zh="人数"),
        say(en="question", zh="题目"),
        say(en="hint, in the words of one of them", zh="提示（取其中一人的措辞）"),
    ]
    return f"<h2>{say(en='Which hint fired how often', zh='哪些提示出现最多')}</h2>" + table(heads, rows, {0})


def _odd(found: Class) -> str:
    texts = [f"{name}: {note}" for name, note in found.strangers]
    texts += [f"{_named(found, student)}: {note}" for student, odd in found.notes.items() for note in odd]
    failed = [
        f"{_named(found, student)}: "
        + say(en=f"{question} could not be graded: ", zh=f"{question} 没能批改：")
        + "; ".join(say(en=part.en, zh=part.zh) for part in answered.parts if part.en)
        for student, mark in found.marks.items()
        for question, answered in mark.questions.items()
        if answered.state == "failed"
    ]
    texts += [
        f"{_named(found, student)}: {str(note).splitlines()[0]}"
        for student, mark in found.marks.items()
        for note in mark.troubles
    ]
    if not texts and not failed:
        return ""
    return f"<h2>{say(en='What was odd', zh='需要留意')}</h2>" + notes(failed + texts)


def _similar(found: Class) -> str:
    if not found.similar:
        return ""
    rows = [
        [
            escape(_named(found, pair.one)),
            escape(_named(found, pair.other)),
            escape(pair.question),
            f"{pair.share:.0%}",
        ]
        for pair in found.similar[:50]
    ]
    told = say(
        en="Names set aside, and left out what many have in common. It is a hint to look at both answers, no proof of "
        "anything: who sat together may write alike.",
        zh="已忽略变量名，并去掉了多数人共有的写法。这只是提示您对照两份答案，不能证明什么：一起讨论过的人写法也会相近。",
    )
    heads = ["", "", say(en="question", zh="题目"), say(en="in common", zh="相同部分")]
    return f"<h2>{say(en='Similar answers', zh='相似的答案')}</h2><p class=soft>{told}</p>" + table(
        heads, rows, {3}
    )


def _students(found: Class) -> str:
    questions = found.assignment.questions
    rows = []
    for student in found.folder.students.values():
        mark = found.marks.get(student.id)
        head = [escape(student.id), escape(student.name)]
        if mark is None:
            cells = [""] * len(questions) + [f'<span class="bad">{say(en="nothing", zh="未提交")}</span>']
        else:
            cells = [
                points(mark.questions[question.id].points)
                if question.id in mark.questions and mark.questions[question.id].state != "unanswered"
                else '<span class="soft">–</span>'
                for question in questions
            ]
            head[0] = f'<a href="../feedback/{escape(student.id)}.html">{head[0]}</a>'
            total = share_of(mark.points, found.assignment.points)
            if student.id in found.before:
                was = points(found.before[student.id])
                total += f' <span class="part">({say(en=f"was {was}", zh=f"原为 {was}")})</span>'
            cells.append(total)
        rows.append([*head, *cells])
    heads = [
        say(en="id", zh="学号"),
        say(en="name", zh="姓名"),
        *(
            f'<span title="{escape(str(question.title))}">{escape(question.id)}</span>'
            for question in questions
        ),
        say(en="total", zh="总分"),
    ]
    return f"<h2>{say(en='Students', zh='学生')}</h2>" + table(heads, rows, set(range(2, len(heads))))


def _named(found: Class, student: str) -> str:
    known = found.folder.students.get(student)
    return f"{known.name} ({student})" if known else student
