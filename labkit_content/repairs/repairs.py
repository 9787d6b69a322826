"""The functions of the lessons that are scored by repairs: judge a repair, buy hints, try a model or a script."""

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
from .problem import EVERYWHERE, WORTH, Judgement, RepairProblem, all_problems, lesson_of, problems


@dataclass(frozen=True)
class Repair:
    """The outcome of an attempt, with a button for hints; ``right`` is None while the broken code is unchanged."""

    name: str
    right: bool | None
    text: str
    picture: Any = None  # beside a symptom

    def __repr__(self) -> str:
        return self._marked_text.replace("```\n", "").replace("\n```", "")

    def _repr_html_(self) -> str:
        drawn = (self.picture is not None and self.picture._repr_svg_()) or ""
        return frame_html(as_html(self._marked_text) + drawn, self.right)

    @property
    def _marked_text(self) -> str:
        """Return the sign and the text, with the Markdown fences of a code block."""
        return f"{SIGNS[self.right]} {self.text}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        shown = {"text/plain": repr(self), "text/html": self._repr_html_()}
        return shown if self.right else {**_with_hints(self), **shown}


@dataclass(frozen=True)
class Hints:
    """The hints taken so far for a problem, the newest last."""

    name: str
    number: int = 0

    @property
    def _texts(self) -> list[str]:
        return _hint_texts(self.name, max(self.number, score.hints_taken(self.name)))

    def __repr__(self) -> str:
        lines = [f"{number}  {text}" for number, text in enumerate(self._texts, 1)]
        return "\n".join([*lines, _offer(self.name)]).replace("```\n", "").replace("\n```", "")

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{as_html(text)}</li>" for text in self._texts)
        return f'<div role="status" aria-live="polite"><ol>{items}</ol><div>{as_html(_offer(self.name))}</div></div>'


def repair(name: str, attempt: object) -> Repair:
    """Judge ``attempt``, a class or a function, as the repair of the problem ``name``, and note the points reached.

    Each call runs new random cases and compares them with the reference. While the attempt is still the broken code,
    show its symptom and note nothing.
    """
    problem = _find_problem(name)
    if attempt is None or attempt is ... or problem.is_unchanged(attempt):
        text, picture = problem.symptom(None if attempt is ... else attempt)
        return Repair(name, None, f"{problem.texts['again']}\n```\n{text}\n```", picture)
    found = problem.judge(attempt, Random(SystemRandom().getrandbits(64)))
    score.note_points(name, found.points)
    return Repair(name, found.points == WORTH, _verdict(problem, found))


def hint(name: str, number: int = 1) -> Hints:
    """Show the hints 1 to ``number`` for the problem ``name``.

    1 is the symptom in words, 2 where to look, 3 the cure, 4 the code. These cost 1, 2, 3 and 4 of the
    10 points, each once, however often it is shown, and nothing once all 10 points are reached.
    """
    _find_problem(name)
    number = integer("number", number, 1, len(score.COSTS))
    if score.best_points(name) != WORTH:
        score.note_hints(name, number)
    return Hints(name, number)


def batch(name: str, rows: int = 8) -> tuple[Any, ...]:
    """Return inputs for the model ``name``, on the CPU, new ones in each call (see ``torch.manual_seed``)."""
    rows, problem = integer("rows", rows, 1, 10_000), _find_problem(name, problems("09"))
    inputs: tuple[Any, ...] = problem.batch(
        rows, torch.Generator().manual_seed(int(torch.randint(2**31, (1,))))
    )
    return inputs


def torchrun(name: str, script: object, nproc_per_node: int = 4, nnodes: int = 1) -> Any:
    """Run ``script``, a function for the problem ``name``, on ``nnodes`` × ``nproc_per_node`` ranks and show the run.

    Shows the output of the ranks, the result of each, and its calls; or, if they hang, where each rank waits. The data
    are new in each call (see ``torch.manual_seed``), and nothing is judged or noted.
    """
    nodes = integer("nnodes", nnodes, 1, 16)
    ranks = nodes * integer("nproc_per_node", nproc_per_node, 1, 64)
    problem = _find_problem(name, problems("19"))
    return problem.run_to_show(script, ranks, nodes, int(torch.randint(1, 2**20, (1,))))


def _find_problem(name: str, among: dict[str, Any] | None = None) -> Any:
    among = all_problems() if among is None else among
    return among[one_of("name", name, among)]


def _verdict(problem: RepairProblem, found: Judgement) -> str:
    spent, total = score.cost(problem.name), score.total(lesson_of(problem.name))
    hints = say(en=f" ({WORTH} less {spent} for hints)", zh=f"（提示扣去 {spent} 分）") if spent else ""
    if found.points == WORTH:
        why, doubt = problem.texts["why"], found.hint or ""
        return say(
            en=f"Repaired: {WORTH - spent} points{hints}. Total: {total} of 100. {why} {doubt}".rstrip(),
            zh=f"修好了：得 {WORTH - spent} 分{hints}。总分 {total} / 100。{why}{doubt}",
        )
    so_far = ""
    if found.points:
        what = problem.texts["everywhere" if found.points == EVERYWHERE else "plain"]
        so_far = say(
            en=f"{found.points} of {WORTH} points so far ({what}); ",
            zh=f"目前 {WORTH} 分得 {found.points} 分（{what}）；",
        )
    best = score.best_points(problem.name) or 0
    kept = (
        say(
            en=f" (Your best repair, {plural(max(best - spent, 0), 'point')}, stays.)",
            zh=f"（之前最好的一次得 {max(best - spent, 0)} 分，仍然保留。）",
        )
        if best > found.points
        else ""
    )
    end = say(en=".", zh="。") if kept and str(found.hint).rstrip(")）")[-1] not in ".?。？`" else ""
    return f"{so_far}{found.hint}{end}{kept}"


def _hint_texts(name: str, most: int) -> list[str]:
    """Return the texts of the first ``most`` hints."""
    problem = _find_problem(name)
    return [
        *(str(problem.texts[name]) for name in ("symptom", "where", "cure")),
        f"```\n{problem.source()}\n```",
    ][:most]


def _offer(name: str) -> str:
    """Return the price of the next hint and the call that buys it, in words."""
    number, left = score.hints_taken(name) + 1, max(WORTH - score.cost(name), 0)
    if score.best_points(name) == WORTH:
        return say(en="With all 10 points reached, hints cost nothing.", zh="已经得过 10 分，提示不再扣分。")
    if number > len(score.COSTS):
        return say(en="That was the last one.", zh="提示到此为止。")
    price = score.COSTS[number - 1]
    return say(
        en=f'{plural(left, "point")} can still be won. The next hint costs {price}: `hint("{name}", {number})`.',
        zh=f'还能得 {left} 分。下一条提示要花 {price} 分：`hint("{name}", {number})`。',
    )


def _with_hints(shown: Repair) -> dict[str, Any]:
    """Return the MIME bundle of a widget: the verdict, with a button that takes the next hint."""
    need("ipywidgets")
    import ipywidgets as widgets  # heavy: only a notebook needs it

    language = get_language()
    button, hints = widgets.Button(layout={"width": "fit-content"}), widgets.HTML()
    free = score.best_points(shown.name) == WORTH
    seen = [score.hints_taken(shown.name)]

    def label() -> None:
        number = seen[0] + 1
        if number > len(score.COSTS):
            button.layout.display = "none"
        else:
            points = 0 if free else score.COSTS[number - 1]
            button.description = say(
                en=f"Hint {number} of {len(score.COSTS)} ({plural(points, 'point')})",
                zh=f"提示 {number} / {len(score.COSTS)}（花 {points} 分）",
            )

    def show_next_hint(_: object) -> None:
        with using(language):
            seen[0] += 1
            hints.value = hint(shown.name, seen[0])._repr_html_()
            label()

    label()
    if seen[0]:
        bought = say(en="Hints that you have taken", zh="看过的提示")
        hints.value = f"<details><summary>{bought}</summary>{Hints(shown.name)._repr_html_()}</details>"
    button.on_click(show_next_hint)
    box = widgets.VBox([widgets.HTML(shown._repr_html_()), button, hints], layout={"max_width": "860px"})
    box.add_class("labkit-repair")
    return dict(box._repr_mimebundle_() or {})
