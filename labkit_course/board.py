"""The progress board: answered exercises by lesson, updated with every answer.

The board is a widget, shown only by a running notebook. The stored output is one sentence, so that it is the same on
every computer and does not change when a lesson gains an exercise.
"""

from __future__ import annotations

from contextlib import suppress
from html import escape
from typing import Any

from labkit.base.extras import need
from labkit.base.files import reason
from labkit.base.language import get_language, say, using
from labkit.base.texts import texts_beside
from labkit.base.widgets import live

from . import exercise, progress
from .content import module
from .lesson import current_lesson
from .outline import lessons

_TEXTS = texts_beside(__file__)
_FIRST, _LATER, _OPEN = "●", "◐", "○"


class Progress:
    """The answered exercises by lesson; a running notebook updates the board with every answer."""

    def __init__(self) -> None:
        self._language = get_language()
        self._widget: Any = None

    def __repr__(self) -> str:
        progress.write()  # retry notes that could not be saved before, as on a full disk
        done, first = progress.answered_exercises(), progress.at_first_try()
        lines = [f"{title}  {_marks(names, done, first)}" for title, names in _exercises()]
        parts = [score(done, first), *lines, *module("repairs.shown").in_text(), *_footer()]
        return "\n".join(filter(None, parts))

    def refresh(self) -> None:
        """Update the widget."""
        if self._widget is not None:
            with using(self._language):
                self._widget.value = _table(progress.answered_exercises(), progress.at_first_try(), _footer())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        need("ipywidgets")
        import ipywidgets as widgets  # heavy: only a notebook needs it

        progress.write()
        if self._widget is None:
            self._widget = widgets.HTML()
            self._widget.add_class("labkit-progress")
            progress.watchers.add(self)
        self.refresh()
        return {**live(self._widget), "text/plain": _TEXTS["still"]()}


def score(done: set[str], first: set[str]) -> str:
    """Return the score of the current lesson in one line; "" without a lesson, questions or a progress file."""
    name = current_lesson() or "-"
    with suppress(OSError):
        name = name if progress.file() else "-"
    for title, ids in _exercises():
        if title.partition(" ")[0] == name.partition("_")[0]:
            here, right = len(done & set(ids)), len(first & set(ids))
            told = _TEXTS["score"](lesson=title[:2], here=here, all=len(ids), right=right)
            return say(en="; ", zh="；").join(filter(None, [told, _repair_points(title)]))
    return ""


def _exercises() -> list[tuple[str, list[str]]]:
    """Return (title, ids of exercises) for every lesson with exercises."""
    every = exercise.ids()
    found = [(entry.title, [n for n in every if n.startswith(entry.number + ".")]) for entry in lessons()]
    return [(title, ids) for title, ids in found if ids]


def _repair_points(title: str) -> str:
    """Return the points of a lesson scored by repairs, besides its questions, or ""."""
    return str(module("repairs.shown").points(title[:2]))


def _marks(names: list[str], done: set[str], first: set[str]) -> str:
    marks = [_FIRST if name in first else _LATER if name in done else _OPEN for name in names]
    return " ".join(sorted(marks, key=(_FIRST, _LATER, _OPEN).index))


def _footer() -> list[str]:
    try:
        where = progress.file()
    except OSError as error:
        return [progress.trouble() or reason(error)]
    if where is None:
        return [_TEXTS["off"]()]
    return list(filter(None, [progress.trouble(), _TEXTS["signs"](), _TEXTS["kept"](where=where)]))


def _table(done: set[str], first: set[str], footer: list[str]) -> str:
    heads = ("", "", _TEXTS["answered"](), _TEXTS["first-try"]())
    head = '<tr style="white-space:nowrap">'
    head += "".join(f'<th style="text-align:right;padding-left:1.5em">{text}</th>' for text in heads)
    rows, every = [], list[str]()
    for title, names in _exercises():
        whole = escape(" · ".join(filter(None, [title, _repair_points(title)])))
        rows.append(_row(whole, _marks(names, done, first), names, done, first))
        every += names
    rows.append(_row(f"<b>{_TEXTS['everything']()}</b>", "", every, done, first))
    notes = "".join(f"<div>{escape(text)}</div>" for text in footer)
    colon = say(en=": ", zh="：")
    here = score(done, first) or f"{_TEXTS['everything']()}{colon}{len(done & set(every))}/{len(every)}"
    line = f'<summary role="status" style="cursor:pointer"><b>{escape(here)}</b></summary>'
    table, name = module("repairs.shown").table(), current_lesson()
    folded = table if name and not _repair_points(name) else ""  # repairs of another lesson
    board = f"<details>{line}<table>{head}</tr>{''.join(rows)}</table>{folded}{notes}</details>"
    return f"<div>{board}{'' if folded else table}</div>"


def _row(title: str, marks: str, names: list[str], done: set[str], first: set[str]) -> str:
    said = escape(", ".join(names)) if marks else ""
    return (
        f'<tr><td style="text-align:left;padding-right:1.5em">{title}</td>'
        f'<td style="text-align:left;white-space:nowrap;padding-right:1.5em" title="{said}">{marks}</td>'
        f'<td style="text-align:right">{len(done & set(names))}/{len(names)}</td>'
        f'<td style="text-align:right">{len(first & set(names))}</td></tr>'
    )
