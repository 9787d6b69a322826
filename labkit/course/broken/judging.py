"""A repaired model judged by running it against one GPU, on cases drawn anew each time.

Pure: a class and a source of random numbers in, points and a hint out.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...base.language import say
from ...base.numbers import plural
from ...base.tree import tensors
from .running import Case, Failure, Observed, alike, busy_gpus, close, observe

# What the repair of a model is worth, and what of it is reached once the values are right where every piece is full,
# once they are right wherever the rows fall, and once gradients and buffers are right, too.
WORTH = 10
FULL, EVERYWHERE = 5, 8


class Hint(NamedTuple):
    """What is wrong with a repair: the misconception's id, and its words in the language in use."""

    id: str
    words: str


class Judgement(NamedTuple):
    """points   of WORTH that the class reaches, without regard to hints taken.
    hint     what is wrong first; None if nothing is."""

    points: int
    hint: Hint | None


@dataclass(frozen=True)
class Problem:
    """A broken model.

    broken     the class as it is shown; ``repaired`` the same put right: its results are what is right.
    batch      (how many rows, a generator) -> the inputs of one call, on the CPU.
    wrong      the misconceptions: hints for what was seen, the likeliest first.
    ladder     three hints that a learner can buy: the symptom, where to look, the cure.
    why        one line, said when it is repaired.
    """

    name: str
    broken: type[nn.Module]
    repaired: type[nn.Module]
    batch: Callable[[int, torch.Generator], tuple[Any, ...]]
    wrong: Callable[[Seen], Iterator[Hint]]
    ladder: Callable[[], tuple[str, str, str]]
    why: Callable[[], str]


@dataclass(frozen=True)
class Seen:
    """A class of the learner's in one case, for the problem's own hints."""

    problem: Problem
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
        """Whether layers ran on fewer GPUs than have rows."""
        return 0 < len(self.got.busy) < busy_gpus(self.case.rows, self.case.gpus)

    @property
    def result(self) -> Any:
        """The result of that call, or of the first."""
        return self.got.results[self.at or 0] if self.got.results else None

    @property
    def right(self) -> Any:
        """What one GPU gives there."""
        return self.want.results[self.at or 0]

    @property
    def given(self) -> tuple[Any, ...]:
        """The inputs of that call."""
        return self.case.calls[self.at or 0]

    def would_give(self, *inputs: Any) -> Any:
        """What one GPU would give for other inputs of that call, as a model that was not trained."""
        return observe(
            self.problem.repaired, replace(self.case, gpus=1, order=None, calls=(inputs,))
        ).results[0]

    def on(self) -> str:
        """In which case: ``on 3 GPUs, 7 rows``."""
        rows = self.case.rows
        if self.alone:
            return say(
                en=f"on one GPU already, {plural(rows, 'row')}", zh=f"在一块 GPU 上（{rows} 行）就已经如此"
            )
        return say(
            en=f"on {self.case.gpus} GPUs, {plural(rows, 'row')}", zh=f"{self.case.gpus} 块 GPU、{rows} 行"
        )


# (GPUs, rows) where the last piece is short.
_UNEVEN = [(gpus, rows) for gpus in range(2, 6) for rows in range(gpus + 2, 14) if rows % -(-rows // gpus)]


def cases(problem: Problem, draw: Random) -> Iterator[tuple[int, Case]]:
    """(points reached if it is wrong here, case): one GPU, full pieces, short ones, fewer rows than GPUs."""
    state = weights(problem.repaired, torch.Generator().manual_seed(draw.getrandbits(32)))
    many = draw.randint(3, 8)
    yield 0, _case(problem, draw, state, 1, draw.randint(4, 7))
    yield 0, _case(problem, draw, state, 2, 2 * draw.randint(3, 5))
    yield 0, _case(problem, draw, state, many, 2 * many)
    yield FULL, _case(problem, draw, state, *draw.choice(_UNEVEN))
    yield FULL, _case(problem, draw, state, 8, draw.choice((9, 11, 13)))
    few = draw.randint(4, 8)
    yield FULL, _case(problem, draw, state, few, draw.randint(2, few - 1))
    yield FULL, _case(problem, draw, state, few, 1)


def _case(problem: Problem, draw: Random, state: dict[str, Tensor], gpus: int, rows: int) -> Case:
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    calls = tuple(problem.batch(rows, generator) for _ in range(3))
    order = draw.choice((None, tuple(reversed(range(gpus)))))
    return Case(gpus, rows, calls, state, order)


def weights(model: type[nn.Module], generator: torch.Generator) -> dict[str, Tensor]:
    """Fresh ones, larger than a model begins with: what is missing shall show."""
    names = observe(model, Case(1, 0, ())).names
    return {name: torch.randn(shape, generator=generator) * 0.7 for name, shape in names.items()}


def judge(problem: Problem, model: object, draw: Random) -> Judgement:
    """Whether ``model``, a class, is ``problem`` repaired: its results, gradients and buffers are those of one GPU.

    ``draw`` decides the cases: batch sizes, GPUs, inputs, weights and the order of the replicas.
    """
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        return Judgement(0, _no_class(model))
    later: Hint | None = None
    for reached, case in cases(problem, draw):
        want = observe(problem.repaired, replace(case, gpus=1, order=None))
        seen = Seen(problem, case, observe(model, case), want)
        if hint := next(_values(seen), None):
            return Judgement(reached, hint)
        later = later or next(_trained(seen), None)
    return Judgement(EVERYWHERE if later else WORTH, later)


def _no_class(model: object) -> Hint:
    kind = type(model).__name__
    return Hint(
        "no_class",
        say(
            en=f"give the class itself, without calling it (this is an object, {kind}): it is made anew for every run",
            zh=f"这里要的是类本身，不要调用它（现在给的是一个 {kind} 对象）：每次运行都会重新创建模型",
        ),
    )


def _values(seen: Seen) -> Iterator[Hint]:
    """What is wrong with the results, if anything is."""
    if (failure := seen.failure) and failure.step in ("init", "load"):
        yield from _unmade(seen, failure)
    if failure and failure.step != "backward":
        yield from seen.problem.wrong(seen)
        yield _failed(seen, failure)
    if failure is None and seen.at is None and seen.idle:
        yield Hint(
            "one_gpu",
            say(
                en=f"{seen.on()}: layers ran on {_gpus(seen.got.busy)} only. A repair keeps all GPUs at work",
                zh=f"{seen.on()}：网络层只在 {_gpus(seen.got.busy)} 上运行过。修好的模型要让每块 GPU 都有活干",
            ),
        )
    if seen.at is None:
        return
    if not tensors(seen.result, ""):
        yield Hint(
            "nothing",
            say(
                en=f"{seen.on()}: the result is {described(seen.result)}, no tensor. Does the class end in `return`?",
                zh=f"{seen.on()}：结果是 {described(seen.result)}，不是张量。最后写了 `return` 吗？",
            ),
        )
    if _deaf(seen):
        yield Hint(
            "deaf",
            say(
                en=f"{seen.on()}: the result is the same for every batch. Does `forward` use its inputs?",
                zh=f"{seen.on()}：换了批次，结果也不变。`forward` 用到输入了吗？",
            ),
        )
    yield from seen.problem.wrong(seen)
    yield _differs(seen)


def _unmade(seen: Seen, failure: Failure) -> Iterator[Hint]:
    names, wanted = seen.got.names, seen.want.names
    missing, odd = sorted(wanted.keys() - names.keys()), sorted(names.keys() - wanted.keys())
    if failure.step == "init":
        yield _failed(seen, failure)
    yield from seen.problem.wrong(seen)
    if missing:
        yield Hint(
            "names",
            say(
                en=f"a saved model would not load: `state_dict()` has no {_code(missing)}",
                zh=f"存下来的权重加载不了：`state_dict()` 里没有 {_code(missing)}",
            )
            + (say(en=f", but {_code(odd)}", zh=f"，却有 {_code(odd)}") if odd else ""),
        )
    if odd:
        yield Hint(
            "names",
            say(
                en=f"a saved model would not load: `state_dict()` has gained {_code(odd)}",
                zh=f"存下来的权重加载不了：`state_dict()` 里多出了 {_code(odd)}",
            ),
        )
    changed = [name for name in wanted if names.get(name) != wanted[name]]
    if changed and names:
        name = changed[0]
        yield Hint(
            "names",
            say(
                en=f"a saved model would not load: `{name}` is {list(names[name])} now, it was {list(wanted[name])}",
                zh=f"存下来的权重加载不了：`{name}` 现在是 {list(names[name])}，原来是 {list(wanted[name])}",
            ),
        )
    yield _failed(seen, failure)


def _failed(seen: Seen, failure: Failure) -> Hint:
    """The learner's error as theirs: the replica, the device, the line."""
    if failure.replica is not None:
        where = say(
            en=f"replica {failure.replica} on cuda:{failure.replica} of your class",
            zh=f"你的类在 cuda:{failure.replica} 上的副本 {failure.replica}",
        )
    elif failure.step in ("scatter", "gather"):
        where = say(
            en={"scatter": "scatter, given your inputs,", "gather": "gather, given your replicas' outputs,"}[
                failure.step
            ],
            zh={"scatter": "分发你的输入时", "gather": "收集各副本的输出时"}[failure.step],
        )
    else:
        name = {"init": "__init__", "load": "load_state_dict"}.get(failure.step, failure.step)
        where = say(en=f"`{name}` of your class", zh=f"你的类的 `{name}` ")
    line = say(en=f" ({failure.line})", zh=f"（{failure.line}）") if failure.line else ""
    return Hint(
        "failed",
        say(
            en=f"{seen.on()}: {where} raised `{failure.words}`{line}",
            zh=f"{seen.on()}：{where}报错 `{failure.words}`{line}",
        ),
    )


def _deaf(seen: Seen) -> bool:
    """Whether two batches give one result that should give two."""
    if len(seen.got.results) < 2:
        return False
    return alike(*seen.got.results[:2]) and not alike(*seen.want.results[:2])


def _differs(seen: Seen) -> Hint:
    """What came out, beside what should have."""
    got, right = described(seen.result), described(seen.right)
    if got != right:
        return Hint(
            "shape",
            say(
                en=f"{seen.on()}: the result is {got}, one GPU gives {right}",
                zh=f"{seen.on()}：结果是 {got}，一块 GPU 上是 {right}",
            )
            if not seen.alone
            else say(
                en=f"{seen.on()}: the result is {got}, the model as it was gives {right}",
                zh=f"{seen.on()}：结果是 {got}，原来的模型给出 {right}",
            ),
        )
    gap = gap_of(seen.result, seen.right)
    batch = say(
        en=("", " in the second batch", " in the third, in eval mode")[seen.at or 0],
        zh=("", "第二个批次", "第三个批次（eval 模式）")[seen.at or 0],
    )
    return Hint(
        "values",
        say(
            en=f"{seen.on()}: values{batch} are off by up to {gap:.2g} from "
            + ("the model as it was" if seen.alone else "one GPU's"),
            zh=f"{seen.on()}：{batch}数值与"
            + ("原来的模型" if seen.alone else "一块 GPU 的")
            + f"最多相差 {gap:.2g}",
        ),
    )


def _trained(seen: Seen) -> Iterator[Hint]:
    """What is wrong with gradients and buffers, of a model whose results are right."""
    got, want = seen.got, seen.want
    if got.failure or any(not close(got.states[-1][name], want.states[-1][name]) for name in want.states[-1]):
        yield from seen.problem.wrong(seen)
    if got.failure:
        yield _failed(seen, got.failure)
    for name, value in want.states[-1].items():
        if not close(got.states[-1][name], value):
            yield Hint(
                "buffer",
                say(
                    en=f"{seen.on()}: results are right, but `{name}` afterwards is not what one GPU leaves in it",
                    zh=f"{seen.on()}：结果都对，但运行之后 `{name}` 里的值和一块 GPU 留下的不一样",
                ),
            )
    for name, gradient in want.gradients.items():
        found = got.gradients.get(name)
        if gradient is None or (found is not None and close(found, gradient)):
            continue
        yield from seen.problem.wrong(seen)
        if found is None:
            yield Hint(
                "no_gradient",
                say(
                    en=f"{seen.on()}: results are right, but `{name}` gets no gradient: it would never be trained. "
                    "Is a value taken out of the graph (`detach`, `.data`, `.item()`, `deepcopy`)?",
                    zh=f"{seen.on()}：结果都对，但 `{name}` 得不到梯度，永远训练不到。是不是有值离开了计算图"
                    "（`detach`、`.data`、`.item()`、`deepcopy`）？",
                ),
            )
        yield Hint(
            "gradient",
            say(
                en=f"{seen.on()}: results are right, but the gradient of `{name}` is not that of one GPU",
                zh=f"{seen.on()}：结果都对，但 `{name}` 的梯度和一块 GPU 上的不一样",
            ),
        )


def described(result: Any) -> str:
    """The shapes in a result, or what it is if there is no tensor in it: ``[8, 5], [2, 8]``."""
    found = tensors(result, "")
    if not found:
        return f"`{type(result).__name__}`"
    names = [str(list(t.shape)) if t.dim() else say(en="one number", zh="一个数") for t in found.values()]
    return ", ".join(names)


def gap_of(one: Any, other: Any) -> float:
    """The largest difference between two results of the same shapes."""
    pairs = zip(tensors(one, "").values(), tensors(other, "").values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def _code(names: list[str]) -> str:
    shown = say(en=", ", zh="、").join(f"`{name}`" for name in names[:3])
    return shown + (" …" if len(names) > 3 else "")


def _gpus(numbers: set[int]) -> str:
    return ", ".join(f"cuda:{number}" for number in sorted(numbers))


def unchanged(problem: Problem, model: object) -> bool:
    """Whether ``model`` is still the broken class, as its source says (comments and blanks do not count)."""
    try:
        return isinstance(model, type) and _source_of(model) == _source_of(problem.broken)
    except (OSError, TypeError, SyntaxError):  # there is no source to read
        return False


def _source_of(model: type) -> dict[str, str]:
    # Of the methods, one by one: of a class in a notebook Python does not know the source.
    written = {name: value for name, value in vars(model).items() if inspect.isfunction(value)}
    return {
        name: ast.dump(ast.parse(textwrap.dedent(inspect.getsource(one)))) for name, one in written.items()
    }
