"""Exercises of lesson 23: a judge of two trainings, and two layouts of a training to repair."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial, update_wrapper
from html import escape
from math import sqrt
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from labkit.base.language import say, series
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, read_returned

from . import train
from .on_ranks import RanksRun, on_ranks

_SCRIPT = Path(train.__file__)
# The head of each function that the lesson lets a learner repair, and its body, which would be the answer.
_YOURS = re.compile(r'(def (?:pipeline_step|cut_words|gradient_norm)\(.*\n    """.*\n)(?:    .*\n)+')


class Training:
    """The training of lesson 23 as a function for ``labkit.parity`` or ``labkit.ranks(2).run``.

    functions   take the place of the program's functions of these names, and may use all names of the program.
    """

    __name__ = _SCRIPT.name

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.names: dict[str, Any] = {"__name__": _SCRIPT.stem}
        exec(compile(_SCRIPT.read_text("utf-8"), _SCRIPT, "exec"), self.names)
        for name, one in functions.items():
            if isinstance(one, FunctionType):
                known = {**one.__globals__, **self.names}
                made = FunctionType(one.__code__, known, one.__name__, one.__defaults__, one.__closure__)
                self.names[name] = update_wrapper(made, one)
            else:
                self.names[name] = one

    def __call__(self, given: object = None) -> list[tuple[float, float]]:
        """Train with the arguments ``given``, a text, or those of ``sys.argv``; return losses and gradient norms."""
        history: list[tuple[float, float]] = self.names["main"](
            given.split() if isinstance(given, str) else None
        )
        return history

    def __repr__(self) -> str:
        lines = _SCRIPT.read_text("utf-8").count("\n")
        return say(en=f"{self.__name__}: {lines} lines", zh=f"{self.__name__}：{lines} 行")

    def _repr_html_(self) -> str:
        hidden = say(en="yours, later in this lesson", zh="这一课后面由你来写")
        text = escape(_YOURS.sub(rf"\1    ...  # {hidden}\n", _SCRIPT.read_text("utf-8")))
        return f'<details><summary>{self!r}</summary><pre style="overflow:auto">{text}</pre></details>'


# Whether two trainings are the same.


@judge("23.same", a_function("same"))
def _same(answer: Callable[..., Any]) -> Hints:
    draw = Random()
    for name, want, one, other in _pairs(torch.Generator().manual_seed(draw.randrange(10**6))):
        for pair in ((one, other), (other, one)):
            try:
                returned = answer(*deepcopy(pair))
            except Exception as error:
                if isinstance(error, KeyError) and "dtype" in str(error):
                    yield Named("no_dtype", key=error.args[0])
                if name == "missing":
                    yield Named("lacking", error=type(error).__name__)
                raise
            got = read_returned(returned, en="`same`", zh="`same` ")
            if bool(got) != want:
                yield Named(name)


def _pairs(draw: torch.Generator) -> Iterator[tuple[str, bool, Any, Any]]:
    """Yield (hint, whether they are the same training, one, other)."""
    names = ["head", "layers.1.up", "layers.1.router", "layers.0.up", "words"]
    fall = [3.0 - 0.1 * step for step in range(6)]

    def training(scale: float = 1.0, dtype: torch.dtype = torch.float32, **changed: Any) -> dict[str, Any]:
        sizes = dict.fromkeys(names, scale) | {"layers.1.router": 1e-4 * scale}
        gradients = {
            name: (size * base[name] * changed.get(name, 1)).to(dtype) for name, size in sizes.items()
        }
        return {"losses": list(fall), "gradients": gradients}

    def shaken(one: dict[str, Any], gap: float, **more: Any) -> dict[str, Any]:
        """Return ``one`` with each gradient and loss off by the share ``gap``."""
        found = one["gradients"].items()
        off = {name: g + (gap * g.float().norm() * _unit(g.shape, draw)).to(g.dtype) for name, g in found}
        return {"losses": [loss * (1 + gap / 3) for loss in one["losses"]], "gradients": off} | more

    base = {name: _unit((6, 8), draw) for name in names}
    for matrix in base.values():
        matrix[0, 0] = 0.0  # rounding is as large there as in other entries
    fine = training()
    noise = [{"layers.0.key": 1e-8 * _unit((8,), draw)} for _ in range(2)]  # the true gradient is 0
    half = training(dtype=torch.bfloat16)
    part = {name: g for name, g in fine["gradients"].items() if name != "words"}
    turned = {name: g.flip(0) for name, g in fine["gradients"].items()}
    nan = fine | {"gradients": {name: g * float("nan") for name, g in fine["gradients"].items()}}
    dead = {"losses": [2.995732] * 6, "gradients": {name: torch.zeros(6, 8) for name in names}}
    yield "equal", True, fine, training()
    yield "rounding", True, fine, shaken(fine, 1e-6)
    yield "double", False, fine, shaken(training(2.0), 1e-7, losses=[loss * (1 + 1e-6) for loss in fall])
    yield "absolute", False, training(1e-5), training(2e-5)
    yield "small", False, fine, shaken(training(1.0, torch.float32, **{"layers.1.router": 1.3}), 1e-7)
    yield "turned", False, fine, fine | {"gradients": turned}
    yield "missing", False, fine, fine | {"gradients": part}
    yield "bf16", True, half, shaken(half, 4e-3)
    yield "loose", False, fine, shaken(fine, 4e-3)
    yield "losses", False, fine, fine | {"losses": [3.02, *fall[1:]]}
    one, other = (fine | {"gradients": fine["gradients"] | some} for some in noise)
    yield "nothing", True, one, other
    yield "nan", False, nan, nan
    yield "dead", False, dead, dead


def _unit(shape: Any, draw: torch.Generator) -> Tensor:
    made: Tensor = torch.nn.functional.normalize(torch.randn(shape, generator=draw).flatten(), dim=0)
    return made.view(shape)


# Layouts of the training.


def _train(training: Training, layout: str, seed: int, steps: int = 1) -> RanksRun:
    """Run a few steps of the training in ``layout`` ("--pp 2")."""
    ranks = int(layout.split()[1])
    given = f"{layout} --steps {steps} --seed {seed}"
    return on_ranks(training, ranks, [(given,)] * ranks, initialized=False)


@judge("23.pipeline", a_function("pipeline_step"))
def _pipeline(answer: Callable[..., Any]) -> Hints:
    seed = Random().randrange(1, 1000)
    wanted = _train(Training(), "--dp 1", seed, 2).results[0]
    ran = _train(Training(pipeline_step=answer), "--pp 2", seed, 2)
    count = int((train.batch(1000 * seed)[:, 1:] != 0).sum())
    for (loss, norm), (right, true) in zip(ran.require_success().results[1], wanted, strict=True):
        facts = {
            "ratio": f"{norm / true:.4g}",
            "count": count,
            "loss": f"{loss:.6g}",
            "right": f"{right:.6g}",
        }
        for name, factor in (
            ("sum", count), ("quarter", count / 4), ("parts", 0.25), ("parts", 4), ("twice", 1 / count),
        ):  # fmt: skip
            if abs(norm / true / factor - 1) < 2e-5:  # rounding; micro-batches' own counts come close to 4
                yield Named(name, **facts)
        if abs(norm / true - 1) > 1e-4:
            yield Named("average", **facts)
        if abs(loss / right - 1) > 1e-4:
            yield Named("printed", **facts)


@judge("23.norm", a_function("gradient_norm"))
def _norm(answer: Callable[..., Any]) -> Hints:
    for layout in ("--dp 1", "--ep 2", "--ep 4"):
        training, parts = Training(gradient_norm=answer), list[tuple[float, float, bool]]()
        training.names["gradient_norm"] = partial(_note_squares, parts, training.names["gradient_norm"])
        ran = _train(training, layout, Random().randrange(1, 1000))
        norms, ranks = [history[0][1] for history in ran.require_success().results], len(ran.results)
        same, apart = parts[0][0], sum(own for _, own, _ in parts)
        want = sqrt(same + apart)
        facts = {"ranks": ranks, "want": f"{want:.5g}", "norms": series(f"{norm:.5g}" for norm in norms[:2])}
        known = {
            "root": want**2, "copies": sqrt(ranks * same + apart), "mean": sqrt(same + apart / ranks),
            "roots": sum(sqrt(same + own) for _, own, _ in parts), "shared": sqrt(same), "owned": sqrt(apart),
        }  # fmt: skip
        if max(norms) - min(norms) > 1e-5 * want:
            yield Named("apart", **facts)
        if not abs(norms[0] - want) < 1e-5 * want:
            near = (name for name, one in known.items() if abs(norms[0] - one) <= 1e-4 * one)
            yield Named(next(near, "other"), **facts)
        if any(changed for *_, changed in parts):
            yield Named("changed")


def _note_squares(parts: list[tuple[float, float, bool]], measure: Callable[..., Any], model: Any) -> Any:
    """Append the sums of squares of the gradients that all ranks have alike, and of this rank's own, and whether
    measuring changes a gradient.
    """
    found, before = [0.0, 0.0], [parameter.grad.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        found[train.is_apart(parameter)] += float(parameter.grad.square().sum())
    norm = read_returned(measure(model), en="`gradient_norm`", zh="`gradient_norm` ")
    after = (parameter.grad for parameter in model.parameters())
    parts.append((found[0], found[1], not all(map(torch.equal, before, after))))
    return norm
