"""The cases of a lesson: a few lines that break under DataParallel, and the same lines repaired.

``labkit_content/cases.txt`` declares them. A notebook shows the broken lines, with the finding and the repair folded
below.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from html import escape
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from labkit.base.language import say
from labkit.base.numbers import one_of
from labkit.base.texts import Text, parse
from labkit_diagnose import Diagnosis, Finding, diagnose
from simgpu import simulate

from .content import FOLDER, before_and_after
from .verdict_html import as_html

# Names that the code of a case may use without an import.
_NAMES = {
    "__name__": "model",
    "dataclass": dataclass,
    "random": random,
    "torch": torch,
    "nn": nn,
    "F": functional,
    "pack_padded_sequence": rnn.pack_padded_sequence,
    "pad_packed_sequence": rnn.pad_packed_sequence,
}


@dataclass(frozen=True)
class LessonCase:
    """A mistake in a model and its repair.

    finding         the check-up's name for the fault.
    title           the mistake in words.
    broken, cured   code that assigns ``model``, ``inputs`` and, optionally, ``options`` of the check-up.
    """

    finding: str
    title: Text
    broken: str
    cured: str

    def run_check_ups(self) -> tuple[Finding, Diagnosis]:
        """Return the check-up's finding for the broken lines on two GPUs, and the diagnosis of the cured lines."""
        found = check_up(self.broken)
        return next(one for one in found.findings if one.name == self.finding), check_up(self.cured)


@cache
def cases() -> dict[str, list[LessonCase]]:
    """Return the cases by lesson."""
    found: dict[str, list[LessonCase]] = {}
    for entry in parse((FOLDER / "cases.txt").read_text("utf-8")):
        lesson, finding = entry.words
        case = LessonCase(finding, entry.texts[""], *before_and_after(entry.code))
        found.setdefault(lesson, []).append(case)
    return found


def check_up(code: str) -> Diagnosis:
    """Return the diagnosis of the model assigned by ``code``, on a new machine."""
    names: dict[str, Any] = dict(_NAMES)
    with simulate(gpus=2), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(compile(code, "model.py", "exec"), names)
        return diagnose(names["model"], *names["inputs"], **{"gpus": 2, **names.get("options", {})})


class Cases:
    """The cases of ``lesson``, each checked on construction (a few seconds in all).

    Raises ValueError for a lesson without cases.
    """

    def __init__(self, lesson: str) -> None:
        self._checked = [(case, *case.run_check_ups()) for case in cases()[one_of("lesson", lesson, cases())]]

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{at} {case.title} ({found.name})\n{case.broken}"
            f"  {found.reason}\n  {_do()}{found.fix}\n{_changes(case)}\n  {cured.summary()}"
            for at, (case, found, cured) in enumerate(self._checked, 1)
        )

    def _repr_html_(self) -> str:
        ask = say(en="What happens on two GPUs?", zh="在两块 GPU 上会怎样？")
        cards = [
            f'<p style="margin:18px 0 0"><strong>{at} · {as_html(str(case.title))}</strong></p>{_pre(case.broken)}'
            f'<details><summary style="cursor:pointer">{ask}</summary>'
            f"<p><code>{found.name}</code> {as_html(found.reason)}<br>"
            f"<strong>{_do()}</strong>{as_html(found.fix)}</p>"
            f"{_pre(_changes(case))}<p>✓ {escape(cured.summary())}</p></details>"
            for at, (case, found, cured) in enumerate(self._checked, 1)
        ]
        return f'<div class="labkit-cases">{"".join(cards)}</div>'


def _do() -> str:
    return say(en="Do: ", zh="怎么办：")


# Notebooks show a bare <pre> in the font of the text. The grey fits light and dark themes.
_LINES = "font-family:var(--jp-code-font-family,monospace);font-size:13px;line-height:1.4;padding:6px 10px;"
_LINES += "margin:4px 0;overflow-x:auto;white-space:pre;background:rgba(128,128,128,.12);border-radius:4px"


def _pre(text: str) -> str:
    return f'<pre style="{_LINES}">{escape(text.rstrip(), quote=False)}</pre>'


def _changes(case: LessonCase) -> str:
    """Return the repair as removed and added lines."""
    _, _, *lines = unified_diff(case.broken.splitlines(), case.cured.splitlines(), lineterm="", n=0)
    return "\n".join(f"{line[0]} {line[1:]}" for line in lines if line[0] != "@" and line[1:].strip())
