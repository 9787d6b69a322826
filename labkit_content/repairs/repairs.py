"""The functions of the lessons that are scored by repairs: a repair is judged, hints are bought, something is tried."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any

import torch

from labkit.base.extras import need
from labkit.base.language import get_language, say, using
from labkit.base.numbers import integer, one_of, plural
from labkit_course.verdict_html import SIGNS, as_html, frame_html

from . import score
from .problem import EVERYWHERE, WORTH, Judgement, Problem, everything, lesson_of, problems


@dataclass(frozen=True)
class Repair:
    """The outcome of an attempt, with a button for hints; ``right`` is None while what is broken was not changed."""

    name: str
    right: bool | None
    text: str
    drawn: Any = None  # the picture beside a symptom

    def __repr__(self) -> str:
        return self._marked.replace("```\n", "").replace("\n```", "")

    def _repr_html_(self) -> str:
        drawn = (self.drawn is not None and self.drawn._repr_svg_()) or ""
        return frame_html(as_html(self._marked) + drawn, self.right)

    @property
    def _marked(self) -> str:
        """The sign and the text, with the marks of a block of code."""
        return f"{SIGNS[self.right]} {self.text}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        shown = {"text/plain": repr(self), "text/html": self._repr_html_()}
        return shown if self.right else {**_with_hints(self), **shown}


@dataclass(frozen=True)
class Hints:
    """The hints taken so far for a problem, the newest last."""

    name: str

    def __repr__(self) -> str:
        lines = [f"{number}  {text}" for number, text in enumerate(_taken(self.name), 1)]
        return "\n".join([*lines, _offer(self.name)]).replace("```\n", "").replace("\n```", "")

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{as_html(text)}</li>" for text in _taken(self.name))
        return f'<div role="status" aria-live="polite"><ol>{items}</ol><div>{as_html(_offer(self.name))}</div></div>'


def repair(name: str, attempt: object) -> Repair:
    """Judge ``attempt``, a class or a function, as the repair of the problem ``name``; what it reaches is noted.

    It is run in cases drawn anew each time, and compared with what is right. While it is still the broken one, its
    symptom is shown, and nothing is noted.
    """
    problem = _found(name)
    if attempt is None or attempt is ... or problem.is_unchanged(attempt):
        text, drawn = problem.symptom(None if attempt is ... else attempt)
        return Repair(name, None, f"{problem.texts['again']}\n```\n{text}\n```", drawn)
    found = problem.judge(attempt, Random(SystemRandom().getrandbits(64)))
    score.reach(name, found.points)
    return Repair(name, found.hint is None, _verdict(problem, found))


def hint(name: str, number: int = 1) -> Hints:
    """Hint ``number`` for the problem ``name``, and those before it.

    1 is the symptom in words, 2 where to look, 3 the cure, 4 the code. They cost 1, 2, 3 and 4 of its
    10 points, each of them once, however often it is shown.
    """
    _found(name)
    score.take(name, integer("number", number, 1, len(score.COSTS)))
    return Hints(name)


def batch(name: str, rows: int = 8) -> tuple[Any, ...]:
    """Inputs as the model ``name`` gets them, on the CPU; other ones in each call (see ``torch.manual_seed``)."""
    rows, problem = integer("rows", rows, 1, 10_000), _found(name, problems("09"))
    inputs: tuple[Any, ...] = problem.batch(
        rows, torch.Generator().manual_seed(int(torch.randint(2**31, (1,))))
    )
    return inputs


def torchrun(name: str, script: object, nproc_per_node: int = 4, nnodes: int = 1) -> Any:
    """Run ``script``, a function for the problem ``name``, on ``nnodes`` × ``nproc_per_node`` ranks, to look at.

    Shows what the ranks print, what each returns, and its calls; or, if they hang, where each stands. The data are
    other ones in each call (see ``torch.manual_seed``), and nothing is judged or noted.
    """
    nodes = integer("nnodes", nnodes, 1, 16)
    ranks = nodes * integer("nproc_per_node", nproc_per_node, 1, 64)
    problem = _found(name, problems("19"))
    return problem.tried(script, ranks, nodes, int(torch.randint(1, 2**20, (1,))))


def _found(name: str, among: dict[str, Any] | None = None) -> Any:
    among = everything() if among is None else among
    return among[one_of("name", name, among)]


def _verdict(problem: Problem, found: Judgement) -> str:
    spent, total = score.cost(problem.name), score.total(lesson_of(problem.name))
    hints = say(en=f" ({WORTH} less {spent} for hints)", zh=f"（提示扣去 {spent} 分）") if spent else ""
    if found.hint is None:
        return say(
            en=f"Repaired: {WORTH - spent} points{hints}. Total: {total} of 100. {problem.texts['why']}",
            zh=f"修好了：得 {WORTH - spent} 分{hints}。总分 {total} / 100。{problem.texts['why']}",
        )
    so_far = (
        str(problem.texts["everywhere" if found.points == EVERYWHERE else "plain"])
        + say(en=" ", zh="")
        + say(en=f"{found.points} of {WORTH} points so far; ", zh=f"目前 {WORTH} 分得 {found.points} 分；")
        if found.points
        else ""
    )
    best = score.reached(problem.name) or 0
    kept = (
        say(en=f" (Your best, {best} of {WORTH}, stays.)", zh=f"（之前最好的 {best} 分仍然保留。）")
        if best > found.points
        else ""
    )
    return f"{so_far}{found.hint}{kept}"


def _taken(name: str) -> list[str]:
    """The texts of the hints that were taken."""
    problem = _found(name)
    return [
        *(str(problem.texts[name]) for name in ("symptom", "where", "cure")),
        f"```\n{problem.source()}\n```",
    ][: score.taken(name)]


def _offer(name: str) -> str:
    """Says the price of the next hint, and how to ask for it."""
    number, left = score.taken(name) + 1, max(WORTH - score.cost(name), 0)
    if number > len(score.COSTS):
        return say(en="That was the last one.", zh="提示到此为止。")
    price = score.COSTS[number - 1]
    return say(
        en=f'{plural(left, "point")} can still be won. The next hint costs {price}: `hint("{name}", {number})`.',
        zh=f'还能得 {left} 分。下一条提示要花 {price} 分：`hint("{name}", {number})`。',
    )


def _with_hints(shown: Repair) -> dict[str, Any]:
    """The verdict as a widget, with a button that takes the next hint."""
    need("ipywidgets")
    import ipywidgets as widgets  # heavy: only a notebook needs it

    language = get_language()
    button, told = widgets.Button(layout={"width": "fit-content"}), widgets.HTML()

    def label() -> None:
        number = score.taken(shown.name) + 1
        button.disabled = number > len(score.COSTS)
        if not button.disabled:
            price = plural(score.COSTS[number - 1], "point")
            button.description = say(
                en=f"Hint {number} of {len(score.COSTS)} ({price})",
                zh=f"提示 {number} / {len(score.COSTS)}（花 {score.COSTS[number - 1]} 分）",
            )

    def clicked(_: object) -> None:
        with using(language):
            told.value = hint(shown.name, score.taken(shown.name) + 1)._repr_html_()
            label()

    label()
    button.on_click(clicked)
    box = widgets.VBox([widgets.HTML(shown._repr_html_()), button, told], layout={"max_width": "860px"})
    box.add_class("labkit-repair")
    return dict(box._repr_mimebundle_() or {})
