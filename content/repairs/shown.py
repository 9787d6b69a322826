"""The score of the ten as the progress board shows it, a line for each model."""

from __future__ import annotations

from labkit.base.language import say

from . import score
from .judging import problems


def _rows() -> list[tuple[str, str, str, str]]:
    """Of lesson 09, for each model: its name, the best repair, the hints taken, the points. [] until one is tried."""
    if not score.begun():
        return []
    return [
        (
            problem.broken.__name__,
            "–" if (best := score.reached(name)) is None else str(best),
            str(score.taken(name)),
            str(score.points(name)),
        )
        for name, problem in problems().items()
    ]


def points() -> str:
    """The points of all models."""
    return say(en=f"{score.total()} of 100 points", zh=f"{score.total()} / 100 分")


def _title() -> str:
    return say(en=f"Ten broken models: {points()}", zh=f"十个出了毛病的模型：{points()}")


def in_text() -> list[str]:
    """A line for each model, below a line with the score; [] until one is tried."""
    found = _rows()
    lines = [
        say(
            en=f"  {name:<9} best {best:>2}, hints {hints}, points {points:>2}",
            zh=f"  {name:<9} 最好 {best:>2}，提示 {hints}，得分 {points:>2}",
        )
        for name, best, hints, points in found
    ]
    return [_title(), *lines] if found else []


def table() -> str:
    """The same as HTML; "" until one is tried."""
    found = _rows()
    if not found:
        return ""
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
    return f'<div style="margin-top:1em"><b>{_title()}</b><table>{cells}</table></div>'
