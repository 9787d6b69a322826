"""Judge a repaired model by comparing its runs with one GPU, on new random cases each time.

Pure: a class and a source of random numbers in, points and a hint out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import say, series
from labkit.base.numbers import plural
from labkit.base.texts import Text
from labkit.base.tree import tensors
from labkit.plans.shapes import Cut
from labkit_course.judging import Hint, Hints, Named

from ..repairs.comparing import gap_of, is_alike, is_close, shapes_of
from ..repairs.problem import (
    EVERYWHERE,
    PLAIN,
    WORTH,
    Judgement,
    Problems,
    RepairProblem,
    folder,
    read_broken_code,
)
from .running import Case, ModelFailure, Observed, busy_gpus, observe

PROBLEMS = Problems(folder(__file__))
models = read_broken_code("09_broken")


@dataclass(frozen=True)
class BrokenModel(RepairProblem):
    """A broken model.

    batch      (how many rows, a generator) -> the inputs of one call, on the CPU.
    wrong      the misconceptions: yields hints on a run, the likeliest first.
    """

    batch: Callable[[int, torch.Generator], tuple[Any, ...]]
    wrong: Callable[[ModelRun], Hints]

    def judge(self, attempt: object, draw: Random) -> Judgement:
        return judge(self, attempt, draw)

    def symptom(self, attempt: Any = None) -> tuple[str, Cut]:
        return symptom(self), input_cut(self)

    def source(self) -> str:
        """Return the source of the repaired class as ``Repaired``, a subclass of the broken one."""
        name = self.title
        code = (
            super().source().replace(f"class Repaired{name}(models.{name}):", f"class Repaired({name}):", 1)
        )
        return f'{code}\n\n# repair("{self.name}", Repaired)'


def problem(
    name: str,
    broken: type[nn.Module],
    repaired: type[nn.Module],
    batch: Callable[[int, torch.Generator], tuple[Any, ...]],
) -> Callable[[Callable[[ModelRun], Hints]], Callable[[ModelRun], Hints]]:
    """Declare a problem: the decorated function gives its hints."""

    def declare(wrong: Callable[[ModelRun], Hints]) -> Callable[[ModelRun], Hints]:
        PROBLEMS.declare(name, lambda texts: BrokenModel(name, broken, repaired, texts, batch, wrong))
        return wrong

    return declare


@dataclass(frozen=True)
class ModelRun:
    """A run of the learner's class in one case, for the problem's own hints."""

    problem: BrokenModel
    case: Case
    got: Observed
    want: Observed

    @property
    def failure(self) -> ModelFailure | None:
        return self.got.failure

    @property
    def alone(self) -> bool:
        """Return whether the case has one GPU, and so no wrapper."""
        return self.case.gpus == 1

    @cached_property
    def first_wrong(self) -> int | None:
        """Return the number of the first call whose result differs from one GPU's; None if no result differs."""
        pairs = zip(self.got.results, self.want.results, strict=False)
        return next((number for number, pair in enumerate(pairs) if not is_alike(*pair)), None)

    @property
    def idle(self) -> bool:
        """Return whether layers ran on fewer GPUs than have rows."""
        return bool(self.got.busy) and all(name in self.idle_layers for name in self.got.busy)

    @property
    def idle_layers(self) -> dict[str, set[int]]:
        """Return the layers that ran on fewer GPUs than have rows, and those GPUs."""
        wanted = busy_gpus(self.case.rows, self.case.gpus)
        return {name: gpus for name, gpus in self.got.busy.items() if len(gpus) < wanted}

    @property
    def result(self) -> Any:
        """Return the result of the first wrong call, or of the first call."""
        return self.got.results[self.first_wrong or 0] if self.got.results else None

    @property
    def right(self) -> Any:
        """Return one GPU's result in the same call."""
        return self.want.results[self.first_wrong or 0]

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Return the inputs of the same call."""
        return self.case.calls[self.first_wrong or 0]

    def would_give(self, *inputs: Any) -> Any:
        """Return one GPU's result for other inputs, with the weights of the case."""
        return observe(
            self.problem.repaired, replace(self.case, gpus=1, order=None, calls=(inputs,))
        ).results[0]

    def render_hint(self, hint: Named) -> Hint:
        """Return the hint's text, which may name the case, ``on``, and the ``error``."""
        facts = {
            "on": Named("alone" if self.alone else "on", gpus=self.case.gpus, rows=self.case.rows),
            "error": self.failure.words if self.failure else "",
        }
        return self.problem.render_hint(hint, **facts)


# (GPUs, rows) with a short last piece.
_UNEVEN = [(gpus, rows) for gpus in range(2, 6) for rows in range(gpus + 2, 14) if rows % -(-rows // gpus)]


def cases(problem: BrokenModel, draw: Random) -> Iterator[tuple[int, Case]]:
    """Yield (points for a repair that fails here, case): one GPU, full pieces, short pieces, few rows."""
    state = weights(problem.repaired, torch.Generator().manual_seed(draw.getrandbits(32)))
    many = draw.randint(3, 8)
    yield 0, _case(problem, draw, state, 1, draw.randint(4, 7))
    yield 0, _case(problem, draw, state, 2, 2 * draw.randint(3, 5))
    yield 0, _case(problem, draw, state, many, 2 * many)
    yield PLAIN, _case(problem, draw, state, *draw.choice(_UNEVEN))
    yield PLAIN, _case(problem, draw, state, 8, draw.choice((9, 11, 13)))
    few = draw.randint(4, 8)
    yield PLAIN, _case(problem, draw, state, few, draw.randint(2, few - 1))
    yield PLAIN, _case(problem, draw, state, few, 1)


def _case(problem: BrokenModel, draw: Random, state: dict[str, Tensor], gpus: int, rows: int) -> Case:
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    calls = tuple(problem.batch(rows, generator) for _ in range(3))
    order = draw.choice((None, tuple(reversed(range(gpus)))))
    return Case(gpus, rows, calls, state, order)


def weights(model: type[nn.Module], generator: torch.Generator) -> dict[str, Tensor]:
    """Return new weights and buffers, larger than initial ones, so that a missing term is visible."""
    names = observe(model, Case(1, 0, ())).names
    return {name: torch.randn(shape, generator=generator) * 0.7 for name, shape in names.items()}


def judge(problem: BrokenModel, model: object, draw: Random) -> Judgement:
    """Judge ``model``, a class, as the repair of ``problem``: its results, gradients and buffers must be one GPU's.

    ``draw`` decides the cases: batch sizes, GPUs, inputs, weights and the order of the replicas.
    """
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        words = problem.texts["no_class"].fill({"kind": type(model).__name__})
        return Judgement(0, Hint("no_class", words.en, words.zh))
    later: Hint | None = None
    doubt: Hint | None = None
    for reached, case in cases(problem, draw):
        want = observe(problem.repaired, replace(case, gpus=1, order=None))
        seen = ModelRun(problem, case, observe(model, case), want)
        if hint := next(_result_hints(seen), None):
            return Judgement(reached, seen.render_hint(hint))
        if later is None and (hint := next(_training_hints(seen), None)):
            later = seen.render_hint(hint)
        if seen.got.overwritten:
            doubt = seen.render_hint(Named("overwritten"))
    return Judgement(EVERYWHERE, later) if later else Judgement(WORTH, doubt)


def _result_hints(seen: ModelRun) -> Iterator[Named]:
    """Yield hints on the results."""
    if (failure := seen.failure) and failure.step in ("init", "load"):
        yield from _creation_hints(seen, failure)
    if failure and failure.step != "backward":
        yield from seen.problem.wrong(seen)
        if not failure.line and re.search("positional argument|unexpected keyword", failure.words):
            hint = "arguments.after" if failure.step == "after" else "arguments"
            yield Named(hint, where=_place(failure))
        yield _describe_failure(failure)
    if failure is None and seen.first_wrong is None and seen.idle:
        yield Named("one_gpu", gpus=_gpus(set().union(*seen.got.busy.values())))
    if seen.first_wrong is None:
        return
    if not tensors(seen.result, ""):
        yield Named("nothing", result=shapes_of(seen.result))
    if _ignores_input(seen):
        yield Named("deaf")
    yield from seen.problem.wrong(seen)
    yield _describe_difference(seen)


def _creation_hints(seen: ModelRun, failure: ModelFailure) -> Iterator[Named]:
    names, wanted = seen.got.names, seen.want.names
    missing, odd = sorted(wanted.keys() - names.keys()), sorted(names.keys() - wanted.keys())
    if failure.step == "init":
        yield _describe_failure(failure)
    yield from seen.problem.wrong(seen)
    if missing:
        yield Named("names.renamed" if odd else "names.missing", missing=_code(missing), odd=_code(odd))
    if odd:
        yield Named("names.gained", odd=_code(odd))
    changed = [name for name in wanted if names.get(name) != wanted[name]]
    if changed and names:
        name = changed[0]
        yield Named("names.reshaped", name=name, now=list(names[name]), was=list(wanted[name]))
    yield _describe_failure(failure)


def _describe_failure(failure: ModelFailure) -> Named:
    return Named("failed.line" if failure.line else "failed", where=_place(failure), line=failure.line)


def _place(failure: ModelFailure) -> Named | Text:
    """Return the place of the learner's error: a replica, scatter or gather, or a method."""
    if failure.replica is not None:
        return Named("replica", replica=failure.replica)
    if failure.step in ("scatter", "gather"):
        return Named(failure.step)
    name = {"init": "__init__", "load": "load_state_dict"}.get(failure.step, failure.step)
    return Text(en=f"`{name}` of your class", zh=f"你的类的 `{name}` ")


def _ignores_input(seen: ModelRun) -> bool:
    """Return whether two batches give the same result although the results should differ."""
    if len(seen.got.results) < 2:
        return False
    return is_alike(*seen.got.results[:2]) and not is_alike(*seen.want.results[:2])


_BATCHES = (
    Text("", ""),
    Text(" in the second batch", "第二个批次"),
    Text(" in the third, in eval mode", "第三个批次（eval 模式）"),
)


def _describe_difference(seen: ModelRun) -> Named:
    """Return the hint that shows the learner's result beside the right result."""
    result, right = shapes_of(seen.result), shapes_of(seen.right)
    alone = ".alone" if seen.alone else ""
    if result != right:
        return Named(f"shape{alone}", result=result, right=right)
    places, wanted = (", ".join(tensors(each, "result")) for each in (seen.result, seen.right))
    if places != wanted:
        return Named("places", result=places, right=wanted)
    return Named(f"values{alone}", batch=_BATCHES[seen.first_wrong or 0], gap=gap_of(seen.result, seen.right))


def _training_hints(seen: ModelRun) -> Iterator[Named]:
    """Hints on gradients and buffers, of a model whose results are right."""
    got, want = seen.got, seen.want
    if got.failure or any(
        not is_close(got.states[-1][name], want.states[-1][name]) for name in want.states[-1]
    ):
        yield from seen.problem.wrong(seen)
    if got.failure:
        yield _describe_failure(got.failure)
    for name, value in want.states[-1].items():
        if not is_close(got.states[-1][name], value):
            yield Named("buffer", name=name)
    if gained := sorted(got.states[-1].keys() - want.states[-1].keys()):
        yield Named("names.gained", odd=_code(gained))
    for name, gradient in want.gradients.items():
        found = got.gradients.get(name)
        if gradient is None or (found is not None and is_close(found, gradient)):
            continue
        yield from seen.problem.wrong(seen)
        if found is None:
            yield Named("no_gradient", name=name)
        yield Named("gradient", name=name)
    for name, gpus in seen.idle_layers.items():
        yield Named("one_layer", name=name, gpus=_gpus(gpus))


def _code(names: list[str]) -> Text:
    """The first names, as code."""
    shown, more = [f"`{name}`" for name in names[:3]], " …" * (len(names) > 3)
    return Text(", ".join(shown) + more, "、".join(shown) + more)


def _gpus(numbers: set[int]) -> str:
    return series(f"cuda:{number}" for number in sorted(numbers))


def symptom(problem: BrokenModel) -> str:
    """Return the symptom: the broken model on 1, 2 and 4 GPUs with 8 rows, a line for each."""
    generator = torch.Generator().manual_seed(5)
    state = weights(problem.broken, generator)
    calls = tuple(problem.batch(8, generator) for _ in range(3))
    seen = {gpus: observe(problem.broken, Case(gpus, 8, calls, state)) for gpus in (1, 2, 4)}
    return "\n".join(_line(gpus, _outcome(found, seen[1])) for gpus, found in seen.items())


def input_cut(problem: BrokenModel) -> Cut:
    """Return how scatter cuts the symptom's inputs over two GPUs, and what the replicas return."""
    generator = torch.Generator().manual_seed(5)
    state = weights(problem.broken, generator)  # as in symptom(), so that the batch is the same
    names = list(inspect.signature(problem.broken.forward).parameters)[1:]
    calls = tuple(problem.batch(8, generator) for _ in range(3))
    found = [pair for name, value in zip(names, calls[0], strict=False) for pair in _tensors(name, value)]
    one, two = (observe(problem.broken, Case(gpus, 8, calls, state)).returned for gpus in (1, 2))
    returned = (_describe_replica(two[gpu], one[0], 4 * gpu) if gpu in two else "" for gpu in (0, 1))
    return Cut(tuple(found), 2, tuple(returned))


def _describe_replica(results: list[Any], right: list[Any], start: int) -> str:
    """Describe a replica's results: the first, and how far the first wrong one is off the rows from ``start``."""
    words = _result(results[0])
    for number, (result, whole) in enumerate(zip(results, right, strict=False), 1):
        if not isinstance(result, Tensor) or not result.dim():
            break
        if result.shape != (rows := whole[start : start + len(result)]).shape:
            break
        if not is_alike(result, rows):
            gap = f"{gap_of(result, rows):.2g}"
            if number == 1:
                return words + say(en=f", off by up to {gap}", zh=f"，最多相差 {gap}")
            return words + say(en=f", batch {number} off by {gap}", zh=f"，第 {number} 批最多相差 {gap}")
    return words


def _tensors(name: str, value: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each tensor in an input, ``images[0]`` for a list's first."""
    if isinstance(value, torch.Tensor):
        yield name, tuple(value.shape)
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from _tensors(f"{name}[{at}]", part)


def _result(result: Any) -> str:
    """Return the value of a single number, or else the shapes of a result."""
    single = isinstance(result, torch.Tensor) and not result.dim()
    return f"{float(result):.4f}" if single else str(shapes_of(result))


def _line(gpus: int, outcome: str) -> str:
    return say(en=f"{plural(gpus, 'GPU'):<7}{outcome}", zh=f"{gpus} 块 GPU  {outcome}")


def _outcome(seen: Observed, one: Observed) -> str:
    """Return one line: the shapes and how far off the values are, or the error and its replica."""
    if failure := seen.failure:
        where = f"cuda:{failure.replica}" if failure.replica is not None else failure.step
        return f"{where}: {failure.words}"
    at = next(
        (n for n, pair in enumerate(zip(seen.results, one.results, strict=False)) if not is_alike(*pair)),
        None,
    )
    result, right = seen.results[at or 0], one.results[at or 0]
    shapes = _result(result)
    if at is None or shapes_of(result) != shapes_of(right):
        return shapes
    number = at + 1
    off = say(
        en=f"off by up to {gap_of(result, right):.2g}"
        + (f" in batch {number}, batch 1 is right" if at else ""),
        zh=f"最多相差 {gap_of(result, right):.2g}"
        + (f"（第 {number} 个批次；第 1 个批次是对的）" if at else ""),
    )
    return f"{shapes}  {off}"
