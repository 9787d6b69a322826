"""A repaired model judged by running it against one GPU, on cases drawn anew each time.

Pure: a class and a source of random numbers in, points and a hint out.
"""

from __future__ import annotations

import inspect
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

from ..repairs.comparing import alike, close, described, gap_of
from ..repairs.problem import EVERYWHERE, PLAIN, WORTH, Judgement, Problem, Problems, folder
from .running import Case, Failure, Observed, busy_gpus, observe

PROBLEMS = Problems(folder(__file__))


@dataclass(frozen=True)
class BrokenModel(Problem):
    """A broken model.

    batch      (how many rows, a generator) -> the inputs of one call, on the CPU.
    wrong      the misconceptions: hints for what was seen, the likeliest first.
    """

    batch: Callable[[int, torch.Generator], tuple[Any, ...]]
    wrong: Callable[[Seen], Hints]

    def judge(self, attempt: object, draw: Random) -> Judgement:
        return judge(self, attempt, draw)

    def symptom(self, attempt: Any = None) -> tuple[str, Cut]:
        return symptom(self), cut(self)

    def source(self) -> str:
        """The repaired class below the broken one."""
        name = self.title
        return super().source().replace(f"class {name}(models.{name}):", f"class Repaired({name}):", 1)


def problem(
    name: str,
    broken: type[nn.Module],
    repaired: type[nn.Module],
    batch: Callable[[int, torch.Generator], tuple[Any, ...]],
) -> Callable[[Callable[[Seen], Hints]], Callable[[Seen], Hints]]:
    """Declare a problem: the decorated function gives its hints."""

    def declare(wrong: Callable[[Seen], Hints]) -> Callable[[Seen], Hints]:
        PROBLEMS.declare(name, lambda texts: BrokenModel(name, broken, repaired, texts, batch, wrong))
        return wrong

    return declare


@dataclass(frozen=True)
class Seen:
    """A class of the learner's in one case, for the problem's own hints."""

    problem: BrokenModel
    case: Case
    got: Observed
    want: Observed

    @property
    def failure(self) -> Failure | None:
        return self.got.failure

    @property
    def alone(self) -> bool:
        """On one GPU, without a wrapper."""
        return self.case.gpus == 1

    @cached_property
    def at(self) -> int | None:
        """The first call whose result is not that of one GPU; None if all are, as far as they got."""
        pairs = zip(self.got.results, self.want.results, strict=False)
        return next((number for number, pair in enumerate(pairs) if not alike(*pair)), None)

    @property
    def idle(self) -> bool:
        """True if layers ran on fewer GPUs than have rows."""
        return 0 < len(self.got.busy) < busy_gpus(self.case.rows, self.case.gpus)

    @property
    def result(self) -> Any:
        """The result of that call, or of the first."""
        return self.got.results[self.at or 0] if self.got.results else None

    @property
    def right(self) -> Any:
        """The result of one GPU in that call."""
        return self.want.results[self.at or 0]

    @property
    def given(self) -> tuple[Any, ...]:
        """The inputs of that call."""
        return self.case.calls[self.at or 0]

    def would_give(self, *inputs: Any) -> Any:
        """The result of one GPU for other inputs of that call, as a model that was not trained."""
        return observe(
            self.problem.repaired, replace(self.case, gpus=1, order=None, calls=(inputs,))
        ).results[0]

    def said(self, hint: Named) -> Hint:
        """The hint in words; they may name the case, ``on``, and the ``error``."""
        facts = {
            "on": Named("alone" if self.alone else "on", gpus=self.case.gpus, rows=self.case.rows),
            "error": self.failure.words if self.failure else "",
        }
        return self.problem.said(hint, **facts)


# (GPUs, rows) where the last piece is short.
_UNEVEN = [(gpus, rows) for gpus in range(2, 6) for rows in range(gpus + 2, 14) if rows % -(-rows // gpus)]


def cases(problem: BrokenModel, draw: Random) -> Iterator[tuple[int, Case]]:
    """(points reached if it is wrong here, case): one GPU, full pieces, short ones, fewer rows than GPUs."""
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
    """Fresh ones, larger than a model begins with: what is missing shall show."""
    names = observe(model, Case(1, 0, ())).names
    return {name: torch.randn(shape, generator=generator) * 0.7 for name, shape in names.items()}


def judge(problem: BrokenModel, model: object, draw: Random) -> Judgement:
    """Judges ``model``, a class, as the repair of ``problem``: its results, gradients and buffers must be one GPU's.

    ``draw`` decides the cases: batch sizes, GPUs, inputs, weights and the order of the replicas.
    """
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        words = problem.texts["no_class"].fill({"kind": type(model).__name__})
        return Judgement(0, Hint("no_class", words.en, words.zh))
    later: Hint | None = None
    for reached, case in cases(problem, draw):
        want = observe(problem.repaired, replace(case, gpus=1, order=None))
        seen = Seen(problem, case, observe(model, case), want)
        if hint := next(_values(seen), None):
            return Judgement(reached, seen.said(hint))
        if later is None and (hint := next(_trained(seen), None)):
            later = seen.said(hint)
    return Judgement(EVERYWHERE if later else WORTH, later)


def _values(seen: Seen) -> Iterator[Named]:
    """Hints on the results."""
    if (failure := seen.failure) and failure.step in ("init", "load"):
        yield from _unmade(seen, failure)
    if failure and failure.step != "backward":
        yield from seen.problem.wrong(seen)
        yield _failed(failure)
    if failure is None and seen.at is None and seen.idle:
        yield Named("one_gpu", gpus=_gpus(seen.got.busy))
    if seen.at is None:
        return
    if not tensors(seen.result, ""):
        yield Named("nothing", result=described(seen.result))
    if _deaf(seen):
        yield Named("deaf")
    yield from seen.problem.wrong(seen)
    yield _differs(seen)


def _unmade(seen: Seen, failure: Failure) -> Iterator[Named]:
    names, wanted = seen.got.names, seen.want.names
    missing, odd = sorted(wanted.keys() - names.keys()), sorted(names.keys() - wanted.keys())
    if failure.step == "init":
        yield _failed(failure)
    yield from seen.problem.wrong(seen)
    if missing:
        yield Named("names.renamed" if odd else "names.missing", missing=_code(missing), odd=_code(odd))
    if odd:
        yield Named("names.gained", odd=_code(odd))
    changed = [name for name in wanted if names.get(name) != wanted[name]]
    if changed and names:
        name = changed[0]
        yield Named("names.reshaped", name=name, now=list(names[name]), was=list(wanted[name]))
    yield _failed(failure)


def _failed(failure: Failure) -> Named:
    """The learner's error as theirs: the replica, the device, the line."""
    if failure.replica is not None:
        where: Named | Text = Named("replica", replica=failure.replica)
    elif failure.step in ("scatter", "gather"):
        where = Named(failure.step)
    else:
        name = {"init": "__init__", "load": "load_state_dict"}.get(failure.step, failure.step)
        where = Text(en=f"`{name}` of your class", zh=f"你的类的 `{name}` ")
    return Named("failed.line" if failure.line else "failed", where=where, line=failure.line)


def _deaf(seen: Seen) -> bool:
    """True if two batches give one result that should give two."""
    if len(seen.got.results) < 2:
        return False
    return alike(*seen.got.results[:2]) and not alike(*seen.want.results[:2])


_BATCHES = (
    Text("", ""),
    Text(" in the second batch", "第二个批次"),
    Text(" in the third, in eval mode", "第三个批次（eval 模式）"),
)


def _differs(seen: Seen) -> Named:
    """The hint that shows the result beside the right one."""
    result, right = described(seen.result), described(seen.right)
    alone = ".alone" if seen.alone else ""
    if result != right:
        return Named(f"shape{alone}", result=result, right=right)
    places, wanted = (", ".join(tensors(each, "")) for each in (seen.result, seen.right))
    if places != wanted:
        return Named("places", result=places, right=wanted)
    return Named(f"values{alone}", batch=_BATCHES[seen.at or 0], gap=gap_of(seen.result, seen.right))


def _trained(seen: Seen) -> Iterator[Named]:
    """Hints on gradients and buffers, of a model whose results are right."""
    got, want = seen.got, seen.want
    if got.failure or any(not close(got.states[-1][name], want.states[-1][name]) for name in want.states[-1]):
        yield from seen.problem.wrong(seen)
    if got.failure:
        yield _failed(got.failure)
    for name, value in want.states[-1].items():
        if not close(got.states[-1][name], value):
            yield Named("buffer", name=name)
    for name, gradient in want.gradients.items():
        found = got.gradients.get(name)
        if gradient is None or (found is not None and close(found, gradient)):
            continue
        yield from seen.problem.wrong(seen)
        if found is None:
            yield Named("no_gradient", name=name)
        yield Named("gradient", name=name)


def _code(names: list[str]) -> Text:
    """The first names, as code."""
    shown, more = [f"`{name}`" for name in names[:3]], " …" * (len(names) > 3)
    return Text(", ".join(shown) + more, "、".join(shown) + more)


def _gpus(numbers: set[int]) -> str:
    return series(f"cuda:{number}" for number in sorted(numbers))


def symptom(problem: BrokenModel) -> str:
    """Shows the broken model on 1, 2 and 4 GPUs with 8 rows, a line for each."""
    generator = torch.Generator().manual_seed(5)
    state = weights(problem.broken, generator)
    calls = tuple(problem.batch(8, generator) for _ in range(3))
    seen = {gpus: observe(problem.broken, Case(gpus, 8, calls, state)) for gpus in (1, 2, 4)}
    return "\n".join(_line(gpus, _outcome(found, seen[1])) for gpus, found in seen.items())


def cut(problem: BrokenModel) -> Cut:
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
