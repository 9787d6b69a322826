"""How the cases of a lesson show themselves: the lines to guess at, and folded below each what becomes of them."""

from __future__ import annotations

from difflib import unified_diff
from html import escape

from ...base.language import say
from ...base.numbers import one_of
from ..words import as_html
from .batch_dim import BATCH_DIM
from .case import Case
from .devices import DEVICES
from .training import TRAINING

CASES = {"05_devices": DEVICES, "06_batch_dim": BATCH_DIM, "07_training": TRAINING}


class Cases:
    """The cases of ``lesson``, each run and checked here and now (some seconds in all).

    Raises ValueError if the lesson has none.
    """

    def __init__(self, lesson: str) -> None:
        self._checked = [(case, *case.checked()) for case in CASES[one_of("lesson", lesson, CASES)]]

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{at} {case.title()} ({found.name})\n{case.broken}"
            f"  {found.reason}\n  {_do()}{found.fix}\n{_changes(case)}\n  {cured.summary()}"
            for at, (case, found, cured) in enumerate(self._checked, 1)
        )

    def _repr_html_(self) -> str:
        ask = say(en="What happens on two GPUs?", zh="在两块 GPU 上会怎样？")
        cards = [
            f'<p style="margin:18px 0 0"><strong>{at} · {as_html(case.title())}</strong></p>{_pre(case.broken)}'
            f'<details><summary style="cursor:pointer">{ask}</summary>'
            f"<p><code>{found.name}</code> {as_html(found.reason)}<br>"
            f"<strong>{_do()}</strong>{as_html(found.fix)}</p>"
            f"{_pre(_changes(case))}<p>✓ {escape(cured.summary())}</p></details>"
            for at, (case, found, cured) in enumerate(self._checked, 1)
        ]
        return f'<div class="labkit-cases">{"".join(cards)}</div>'


def _do() -> str:
    return say(en="Do: ", zh="怎么办：")


# Notebooks show a bare <pre> in the letters of the text. The grey fits a light and a dark page alike.
_LINES = "font-family:var(--jp-code-font-family,monospace);font-size:13px;line-height:1.4;padding:6px 10px;"
_LINES += "margin:4px 0;overflow-x:auto;white-space:pre;background:rgba(128,128,128,.12);border-radius:4px"


def _pre(text: str) -> str:
    return f'<pre style="{_LINES}">{escape(text.rstrip(), quote=False)}</pre>'


def _changes(case: Case) -> str:
    """The cure as lines taken out and lines put in."""
    _, _, *lines = unified_diff(case.broken.splitlines(), case.cured.splitlines(), lineterm="", n=0)
    return "\n".join(f"{line[0]} {line[1:]}" for line in lines if line[0] != "@" and line[1:].strip())
