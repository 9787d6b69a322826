"""Judge an answer: a judge calls the student's code through a worker, and yields hints.

Judges run in a process that never runs a student's code::

    @part("split", 2, en="pieces of ceil(rows / GPUs) rows", zh="每个分块 ⌈行数 / GPU 数⌉ 行")
    def rule(ask, draw):
        rows, gpus = draw.integer(9, 99), draw.integer(2, 8)
        got = ask(drivers.split, rows=rows, gpus=gpus)
        if got != reference(rows, gpus):
            yield Hint("rule", en=..., zh=...)

The first hint counts; without a hint the answer gets all points. ``ask`` returns plain data, which an unknown process
may have forged: compare it with :func:`same`, read it with :func:`read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit_course.judging import Kind, Unreadable

from .draw import Draw
from .messages import Words, text_maker
from .verdict import Hint

if TYPE_CHECKING:
    from torch import Tensor

_hint = text_maker(Hint, __file__)


@dataclass(frozen=True)
class Reply:
    """A worker's reply to a question.

    value  plain data (see :mod:`.sandbox.inside.frames`), None with a hint.
    hint   the reason for the student why there is no value.
    ended  why the worker sent no reply: "cpu", "wall", "memory", "died", "garbled"; None if it did.
    met    the numbers given at the meeting, () if it failed.
    """

    value: Any = None
    hint: Hint | None = None
    ended: str | None = None
    met: tuple[int, ...] = ()

    @classmethod
    def from_error(cls, kind: str, message: str, line: int | None = None, met: tuple[int, ...] = ()) -> Reply:
        """Return the reply for an error in the student's code. The worker may have made up all arguments.

        line  of the answer's cell, None if unknown.
        """
        if kind == "Unfit":  # the worker's frame would be too large (:mod:`.sandbox.inside.frames`)
            return cls(hint=_hint("too-large"), met=met)
        message = shorten_message(message)
        told = f"{kind}: {message}" if message else kind
        return cls(hint=_hint("raised", *["line"] * (line is not None), told=told, line=line), met=met)

    @classmethod
    def none(cls, why: str) -> Reply:
        """Return the reply for a worker that sent none."""
        kind = {"cpu": "time", "wall": "time", "memory": "memory"}.get(why, "ended")
        return cls(hint=_hint(kind, why=why), ended=why)


# Calls a driver with its data on the student's code. Third argument: a limit of CPU seconds, None for the usual one.
# Fourth argument: the number of threads that shall meet, 0 for no meeting.
Engine = Callable[[Callable[..., Any], dict[str, Any], float | None, int], Reply]


class NoAnswer(Unreadable):
    """Raised when the reply has no value; ``hint`` says why."""

    def __init__(self, hint: Hint) -> None:
        super().__init__(Words(hint.en, hint.zh))
        self.hint = hint


class Ask:
    """Call the student's code through a driver: ``ask(drivers.split, rows=9)`` returns the driver's result.

    If the code raises, ends or takes too long, the part ends with a hint about it.
    """

    def __init__(self, engine: Engine, cpu: float | None = None) -> None:
        self._engine, self._cpu = engine, cpu

    def __call__(self, driver: Callable[..., Any], /, **data: Any) -> Any:
        return self._answer(driver, data, 0).value

    def meeting(self, count: int, driver: Callable[..., Any], /, **data: Any) -> tuple[Any, list[int]]:
        """Call a driver with an argument ``meet``, a barrier for ``count`` threads that shall run at the same time.

        Each call of ``meet()`` returns a number when all threads have arrived. No process in the worker knows the
        numbers before, so they prove the meeting. Return the driver's result and the numbers in order, [] if it failed.
        """
        answer = self._answer(driver, data, count)
        return answer.value, sorted(answer.met)

    def _answer(self, driver: Callable[..., Any], data: dict[str, Any], meet: int) -> Reply:
        answer = self._engine(driver, data, self._cpu, meet)
        if answer.hint:
            raise NoAnswer(answer.hint)
        return answer

    def with_cpu(self, cpu: float) -> Ask:
        """Return an ``Ask`` with another limit of CPU seconds."""
        return Ask(self._engine, cpu)


Judge = Callable[[Ask, Draw], Iterator[Hint]]


@dataclass(frozen=True)
class RubricPart:
    """A line of the rubric."""

    question: str
    id: str
    points: int
    what: Words
    hints: Judge

    def judge(self, engine: Engine, draw: Draw) -> Hint | None:
        """Return a hint for the first mistake, None for a right answer."""
        try:
            return next(iter(self.hints(Ask(engine), draw)), None)
        except NoAnswer as none:
            return none.hint


def part(question: str, points: int, *, en: str, zh: str) -> Callable[[Judge], RubricPart]:
    """Declare a part of ``question``: the decorated function is its judge, and the function's name is the part's id."""

    def declare(judge: Judge) -> RubricPart:
        return RubricPart(question, judge.__name__, points, Words(en, zh), judge)

    return declare


def share_kept(hint: Hint | None) -> float:
    """Return the share of a part's points, from 0 to 1."""
    return 1.0 if hint is None else min(1.0, max(0.0, float(hint.score)))


def shorten_message(message: str) -> str:
    """Return an error's message in one line; of a replica's traceback, the first line and the last."""
    lines = message.strip().splitlines()
    return " ".join(lines if len(lines) < 4 else [lines[0], "…", lines[-1]])[:400]


def read(kind: Kind, value: Any, *, en: str = "the function", zh: str = "函数") -> Any:
    """Return ``value`` as ``kind`` reads it (:mod:`labkit_course.kinds`). End the part if that fails."""
    from labkit_course.kinds import read_returned

    try:
        return read_returned(value, kind, en=en, zh=zh)
    except Unreadable as unreadable:
        words = unreadable.words
        raise NoAnswer(Hint("kind", words.en if words else "", words.zh if words else "")) from None


def read_tensor(value: Any, name: str) -> Tensor:
    """Return ``value`` if it is a tensor. If ``name`` returned something else, end the part with a hint."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if value is None or value is ...:
        raise NoAnswer(_hint("nothing", name=name))
    raise NoAnswer(_hint("kind", name=name, kind=type(value).__name__))


def same(got: Any, wanted: Any, tolerance: float = 0.0) -> bool:
    """Return whether ``got``, of any type, equals ``wanted`` in type, shape, dtype and values.

    tolerance   the absolute and relative tolerance of floats and tensors; NaN equals nothing.
    """
    import torch

    if isinstance(wanted, torch.Tensor):
        if type(got) is not torch.Tensor or got.shape != wanted.shape or got.dtype != wanted.dtype:
            return False
        if got.is_floating_point():
            return bool(torch.allclose(got.detach(), wanted.detach(), rtol=tolerance, atol=tolerance))
        return bool(torch.equal(got, wanted))
    kind = type(wanted)
    if type(got) is not kind and not (kind in (list, tuple, dict) and isinstance(got, kind)):
        return False
    if isinstance(wanted, float):
        return bool(abs(got - wanted) <= tolerance * (1 + abs(wanted)))
    if isinstance(wanted, (list, tuple)):
        return len(got) == len(wanted) and all(map(lambda a, b: same(a, b, tolerance), got, wanted))
    if isinstance(wanted, dict):
        return list(got) == list(wanted) and all(same(got[key], wanted[key], tolerance) for key in wanted)
    return bool(got == wanted)
