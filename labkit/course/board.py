"""The progress board: which exercises are answered, lesson by lesson, as it changes.

A notebook's stored output holds one sentence, the same for everybody; the learner's own board is a widget,
which only a running notebook shows. So outputs can be compared whatever a computer's progress is, and do
not change when a lesson gains an exercise.
"""

from __future__ import annotations

from contextlib import suppress
from html import escape
from typing import Any

from ..base.extras import need
from ..base.files import reason
from ..base.language import get_language, say, using
from ..base.widgets import live
from ..content import module
from . import exercise, progress
from .lesson import begun
from .outline import lessons

_FIRST, _LATER, _OPEN = "●", "◐", "○"


class Progress:
    """The exercises answered, lesson by lesson. Follows every answer while the notebook runs."""

    def __init__(self) -> None:
        self._language = get_language()
        self._widget: Any = None

    def __repr__(self) -> str:
        progress.write()  # what could not be written before: the disk has room again, perhaps
        done, first = progress.done(), progress.at_first_try()
        lines = [f"{title}  {_marks(names, done, first)}" for title, names in _exercises()]
        return "\n".join(
            filter(None, [score(done, first), *lines, *module("repairs.shown").in_text(), *_footer()])
        )

    def refresh(self) -> None:
        """Show what is noted now."""
        if self._widget is not None:
            with using(self._language):
                self._widget.value = _table(progress.done(), progress.at_first_try(), _footer())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        need("ipywidgets")
        import ipywidgets as widgets  # heavy: only a notebook needs it

        progress.write()
        if self._widget is None:
            self._widget = widgets.HTML()
            self._widget.add_class("labkit-progress")
            progress.watchers.add(self)
        self.refresh()
        still = say(
            en="Your own progress appears here while the notebook runs.",
            zh="运行笔记本时，这里显示你自己的进度。",
        )
        return {**live(self._widget), "text/plain": still}


def score(done: set[str], first: set[str]) -> str:
    """The score of the lesson that has begun, in one line; "" if none has, it asks nothing, or nobody keeps count."""
    name = begun() or "-"
    with suppress(OSError):
        name = name if progress.file() else "-"
    for title, ids in _exercises():
        if title.partition(" ")[0] == name.partition("_")[0]:
            here, right = len(done & set(ids)), len(first & set(ids))
            told = say(
                en=f"Lesson {title[:2]}: {here} of {len(ids)} questions answered, {right} at the first try",
                zh=f"第 {title[:2]} 课：共 {len(ids)} 题，答对 {here} 题，其中 {right} 题一次答对",
            )
            return say(en="; ", zh="；").join(filter(None, [told, _repaired(title)]))
    return ""


def _exercises() -> list[tuple[str, list[str]]]:
    """(lesson's title, ids of its exercises), for every lesson that has some."""
    found = [
        (entry.title, [n for n in exercise.ids() if n.startswith(entry.number + ".")]) for entry in lessons()
    ]
    return [(title, ids) for title, ids in found if ids]


def _repaired(title: str) -> str:
    """The points of a lesson that is scored by repairs: all its questions answered is not all its points."""
    return str(module("repairs.shown").points(title[:2]))


def _marks(names: list[str], done: set[str], first: set[str]) -> str:
    marks = [_FIRST if name in first else _LATER if name in done else _OPEN for name in names]
    return " ".join(sorted(marks, key=(_FIRST, _LATER, _OPEN).index))  # so that it fills from the left


def _footer() -> list[str]:
    try:
        where = progress.file()
    except OSError as error:
        return [progress.trouble() or reason(error)]
    if where is None:
        return [
            say(
                en="Progress is not kept (LABKIT_PROGRESS is off).",
                zh="不保存进度（LABKIT_PROGRESS 为 off）。",
            )
        ]
    kept = say(
        en=f"Kept in {where}: the file is yours; delete it to start again.",
        zh=f"进度保存在 {where}：这个文件归你，删掉它就从头开始。",
    )
    signs = say(
        en=f"{_FIRST} right at the first try, {_LATER} right later, {_OPEN} still open",
        zh=f"{_FIRST} 第一次就答对，{_LATER} 后来答对，{_OPEN} 还没答对",
    )
    return [text for text in (progress.trouble(), signs, kept) if text]


def _table(done: set[str], first: set[str], footer: list[str]) -> str:
    heads = ("", "", say(en="answered", zh="已答对"), say(en="first try", zh="一次答对"))
    head = "".join(f'<th style="text-align:right;padding-left:1.5em">{text}</th>' for text in heads)
    exercises = _exercises()
    rows = [
        _row(
            escape(" · ".join(filter(None, [title, _repaired(title)]))),
            _marks(names, done, first),
            names,
            done,
            first,
        )
        for title, names in exercises
    ]
    every = [name for _, names in exercises for name in names]
    rows.append(_row(f"<b>{say(en='All questions', zh='全部题目')}</b>", "", every, done, first))
    notes = "".join(f"<div>{escape(text)}</div>" for text in footer)
    here = score(done, first)
    models = module("repairs.shown").table()
    told = f'<div role="status"><b>{escape(here)}</b></div>' if here else ""
    return f"<div>{told}<table><tr>{head}</tr>{''.join(rows)}</table>{models}{notes}</div>"


def _row(title: str, marks: str, names: list[str], done: set[str], first: set[str]) -> str:
    said = escape(", ".join(names)) if marks else ""
    return (
        f'<tr><td style="text-align:left;padding-right:1.5em">{title}</td>'
        f'<td style="text-align:left;padding-right:1.5em" title="{said}">{marks}</td>'
        f'<td style="text-align:right">{len(done & set(names))}/{len(names)}</td>'
        f'<td style="text-align:right">{len(first & set(names))}</td></tr>'
    )
