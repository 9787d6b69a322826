"""The functions of lesson 09: a class is judged, hints are bought, a batch is made to try things on."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any

import torch

from labkit.base.extras import need
from labkit.base.language import get_language, say, using
from labkit.base.numbers import one_of, plural, whole
from labkit.course.words import SIGNS, as_html, framed
from labkit.plans.shapes import Cut

from . import score
from .judging import (
    EVERYWHERE,
    WORTH,
    Judgement,
    Problem,
    described,
    gap_of,
    judge,
    problems,
    unchanged,
    weights,
)
from .running import Case, Observed, alike, observe


@dataclass(frozen=True)
class Repair:
    """The outcome of an attempt, with a button for hints; ``right`` is None while the class is still the broken one."""

    name: str
    right: bool | None
    text: str
    cut: Cut | None = None  # how scatter cuts the inputs, beside a symptom

    def __repr__(self) -> str:
        return self._marked.replace("```\n", "").replace("\n```", "")

    def _repr_html_(self) -> str:
        drawn = (self.cut and self.cut._repr_svg_()) or ""
        return framed(as_html(self._marked) + drawn, self.right)

    @property
    def _marked(self) -> str:
        """The sign and the text, with the marks of a block of code."""
        return f"{SIGNS[self.right]} {self.text}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        shown = {"text/plain": repr(self), "text/html": self._repr_html_()}
        return shown if self.right else {**_with_hints(self), **shown}


@dataclass(frozen=True)
class Hints:
    """The hints taken so far for a model, the newest last."""

    name: str

    def __repr__(self) -> str:
        lines = [f"{number}  {text}" for number, text in enumerate(_taken(self.name), 1)]
        return "\n".join([*lines, _offer(self.name)]).replace("```\n", "").replace("\n```", "")

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{as_html(text)}</li>" for text in _taken(self.name))
        return f'<div role="status" aria-live="polite"><ol>{items}</ol><div>{as_html(_offer(self.name))}</div></div>'


def repair(name: str, model: object) -> Repair:
    """Judge ``model``, a class, as the repair of the broken model ``name``; what it reaches is noted.

    It is run on one GPU and on several, with fresh weights and batches drawn anew each time, and compared with
    what one GPU gives. While the class is still the broken one, its symptom is shown, and nothing is noted.
    """
    problem = _found(name)
    if model is None or model is ... or unchanged(problem, model):
        told = say(
            en="Not repaired yet: change the class and run both cells again.",
            zh="还没有修：改好上面的类，再运行这两个单元格。",
        )
        return Repair(name, None, f"{told}\n```\n{symptom(problem)}\n```", _cut(problem))
    found = judge(problem, model, Random(SystemRandom().getrandbits(64)))
    score.reach(name, found.points)
    return Repair(name, found.hint is None, _verdict(problem, found))


def hint(name: str, number: int = 1) -> Hints:
    """Hint ``number`` for the model ``name``, and those before it.

    1 is the symptom in words, 2 where to look, 3 the cure, 4 the code. They cost 1, 2, 3 and 4 of the model's
    10 points, each of them once, however often it is shown.
    """
    _found(name)
    score.take(name, whole("number", number, 1, len(score.COSTS)))
    return Hints(name)


def batch(name: str, rows: int = 8) -> tuple[Any, ...]:
    """Inputs as the model ``name`` gets them, on the CPU; other ones in each call (see ``torch.manual_seed``)."""
    rows = whole("rows", rows, 1, 10_000)
    return _found(name).batch(rows, torch.Generator().manual_seed(int(torch.randint(2**31, (1,)))))


def _found(name: str) -> Problem:
    return problems()[one_of("name", name, problems())]


def _verdict(problem: Problem, found: Judgement) -> str:
    spent, total = score.cost(problem.name), score.total()
    hints = say(en=f", {spent} of them spent on hints", zh=f"，提示扣去 {spent} 分") if spent else ""
    if found.hint is None:
        return say(
            en=f"Repaired: {WORTH} of {WORTH} points{hints}. In all {total} of 100. {problem.texts['why']}",
            zh=f"修好了：{WORTH} 分得 {WORTH} 分{hints}。总分 {total} / 100。{problem.texts['why']}",
        )
    so_far = (
        say(
            en={EVERYWHERE: "Results are right everywhere. "}.get(
                found.points, "Right as long as all pieces are full. "
            ),
            zh={EVERYWHERE: "结果处处都对。"}.get(found.points, "所有分块都装满时是对的。"),
        )
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


def symptom(problem: Problem) -> str:
    """Shows the broken model on 1, 2 and 4 GPUs with 8 rows, a line for each."""
    generator = torch.Generator().manual_seed(5)
    state = weights(problem.broken, generator)
    calls = tuple(problem.batch(8, generator) for _ in range(3))
    seen = {gpus: observe(problem.broken, Case(gpus, 8, calls, state)) for gpus in (1, 2, 4)}
    return "\n".join(_line(gpus, _outcome(found, seen[1])) for gpus, found in seen.items())


def _cut(problem: Problem) -> Cut:
    """How scatter cuts the inputs of the symptom over two GPUs."""
    generator = torch.Generator().manual_seed(5)
    weights(problem.broken, generator)  # as in symptom(), so that the batch is the same
    names = list(inspect.signature(problem.broken.forward).parameters)[1:]
    inputs = problem.batch(8, generator)
    found = [pair for name, value in zip(names, inputs, strict=False) for pair in _tensors(name, value)]
    return Cut(tuple(found), 2)


def _tensors(name: str, value: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes of the tensors in an input; those in a list or a tuple by their number."""
    if isinstance(value, torch.Tensor):
        yield name, tuple(value.shape)
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from _tensors(f"{name}[{at}]", part)


def _line(gpus: int, outcome: str) -> str:
    return say(en=f"{plural(gpus, 'GPU'):<7}{outcome}", zh=f"{gpus} 块 GPU  {outcome}")


def _outcome(seen: Observed, one: Observed) -> str:
    """In one line: the shapes and how far off the values are, or the error and its replica."""
    if failure := seen.failure:
        where = f"cuda:{failure.replica}" if failure.replica is not None else failure.step
        return f"{where}: {failure.words}"
    at = next(
        (n for n, pair in enumerate(zip(seen.results, one.results, strict=False)) if not alike(*pair)), None
    )
    result, right = seen.results[at or 0], one.results[at or 0]
    shapes = (
        f"{float(result):.4f}" if isinstance(result, torch.Tensor) and not result.dim() else described(result)
    )
    if at is None or described(result) != described(right):
        return str(shapes)
    number = at + 1
    off = say(
        en=f"off by up to {gap_of(result, right):.2g}"
        + (f" in batch {number}, batch 1 is right" if at else ""),
        zh=f"最多相差 {gap_of(result, right):.2g}"
        + (f"（第 {number} 个批次；第 1 个批次是对的）" if at else ""),
    )
    return f"{shapes}  {off}"


def _taken(name: str) -> list[str]:
    """The texts of the hints that were taken."""
    problem = _found(name)
    return [
        *(str(problem.texts[name]) for name in ("symptom", "where", "cure")),
        f"```\n{source(problem)}\n```",
    ][: score.taken(name)]


def source(problem: Problem) -> str:
    """The repaired class as a learner would write it, below the broken one."""
    text = textwrap.dedent(inspect.getsource(problem.repaired)).rstrip()
    name = problem.broken.__name__
    return text.replace(f"class {name}(models.{name}):", f"class Repaired({name}):", 1)


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
