"""The scores of the lessons of ten repairs as the progress board shows them, a line for each problem."""

from __future__ import annotations

from labkit.base.language import say

from . import score
from .problem import LESSONS, problems


def _rows(lesson: str) -> list[tuple[str, str, str, str]]:
    """Return (title, best repair, hints taken, points) for each problem; [] until one is tried."""
    if not score.is_begun(lesson):
        return []
    return [
        (
            problem.title,
            "–" if (best := score.best_points(name)) is None else str(best),
            str(score.hints_taken(name)),
            str(score.points(name)),
        )
        for name, problem in problems(lesson).items()
    ]


def points(lesson: str) -> str:
    """Return the points of all problems of ``lesson`` in words, "" if it is not scored by repairs."""
    if lesson not in LESSONS:
        return ""
    return say(en=f"{score.total(lesson)} of 100 points", zh=f"{score.total(lesson)} / 100 分")


def _title(lesson: str) -> str:
    named = next(iter(problems(lesson).values())).texts["title"]
    return f"{named}{say(en=': ', zh='：')}{points(lesson)}"


def in_text() -> list[str]:
    """Return the lines of each lesson that was begun: its score, then a line for each problem."""
    lines = []
    for lesson in LESSONS:
        found = _rows(lesson)
        wide = max((len(row[0]) for row in found), default=0)
        lines += [_title(lesson)] if found else []
        lines += [
            say(
                en=f"  {name:<{wide}}  best {best:>2}, hints {hints}, points {points:>2}",
                zh=f"  {name:<{wide}}  最好 {best:>2}，提示 {hints}，得分 {points:>2}",
            )
            for name, best, hints, points in found
        ]
    return lines


def table() -> str:
    """Return the scores as HTML; "" until a repair is tried."""
    return "".join(_table(lesson, found) for lesson in LESSONS if (found := _rows(lesson)))


def _table(lesson: str, found: list[tuple[str, str, str, str]]) -> str:
    heads = (
        "",
        say(en="best repair", zh="最好的一次"),
        say(en="hints taken", zh="用过的提示"),
        say(en="points", zh="得分"),
    )
    rows = [heads, *found]
    cells = "".join(
        f'<tr><td style="text-align:left">{row[0]}</td>'
        + "".join(f'<td style="text-align:right;padding-left:1.5em">{text}</td>' for text in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div style="margin-top:1em"><b>{_title(lesson)}</b><table>{cells}</table></div>'
