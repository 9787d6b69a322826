"""What an exercise is: the kind of answer it asks for, how one is judged, and its solution; and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..base.language import say
from ..base.numbers import whole

# What a table of hints says of a right answer, and the key under which every answer is that it does not name.
RIGHT = None
ANY_OTHER = object()

Hints = Mapping[Any, str | None]
Judge = Callable[..., Hints | Iterator[str]]
Fact = tuple[int, int, int]
Fresh = Callable[[Random], Mapping[str, int]]
# What can be clicked, in order: the words, and what is wrong with them (RIGHT for the one that is right).
Choices = Sequence[tuple[str, str | None]]


class Unreadable(Exception):
    """The answer is not of the kind that the question asks for; ``str()`` says more, if more can be said."""


@dataclass(frozen=True)
class Kind:
    """A kind of answer.

    read(answer)   the answer in the form that judges work with; raises :class:`Unreadable`.
    wanted()       what an answer looks like ("a whole number"), said when one cannot be read.
    """

    read: Callable[[object], Any]
    wanted: Callable[[], str]


@dataclass(frozen=True)
class Exercise:
    """``judge`` is asked about answers that ``kind`` has read; ``solution()`` is the worked answer.

    ask       the question in words, where it is a prediction (see :mod:`.predict`).
    choices   what can be clicked, where a click answers; the answer is then a choice's number, from 1.
    facts     the numbers that question, choices, judge and solution are asked with:
              name -> what it usually is, its least and its greatest.
    fresh     draws other facts, worth another try, where a prediction can be asked again.
    """

    kind: Kind
    judge: Judge
    solution: Callable[..., str]
    ask: Callable[..., str] | None = None
    choices: Callable[..., Choices] | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    fresh: Fresh | None = None

    def checked(self, given: Mapping[str, int]) -> dict[str, int]:
        """All facts, those not given as usual; TypeError or ValueError names the first that is not one of them."""
        for name in given:
            if name not in self.facts:
                wanted = ", ".join(self.facts) or say(en="none", zh="没有")
                raise TypeError(
                    say(
                        en=f"{name}: the numbers of this question are {wanted}",
                        zh=f"{name}：这道题的数有 {wanted}",
                    )
                )
        return {
            name: whole(name, given.get(name, usual), least, most)
            for name, (usual, least, most) in self.facts.items()
        }

    def hint(self, answer: object, **facts: int) -> str | None:
        """What is wrong with ``answer``, None if it is right; raises Unreadable, or what the learner's code raises."""
        value = self.kind.read(answer)
        found = self.judge(value, **facts)
        if isinstance(found, Mapping):
            return found[value if value in found else ANY_OTHER]
        with closing(found) as hints:  # type: ignore[type-var]  # judges are generators: they hold simulated GPUs
            return next(hints, None)


# All exercises of the course by id, in the order of the lessons (filled as .exercises is imported).
EXERCISES: dict[str, Exercise] = {}


def exercise(
    id: str,
    kind: Kind,
    *,
    solution: Callable[..., str],
    ask: Callable[..., str] | None = None,
    facts: Mapping[str, Fact] | None = None,
    fresh: Fresh | None = None,
) -> Callable[[Judge], Judge]:
    """Declare an exercise: the decorated function is its judge, given an answer that ``kind`` has read.

    It gives a table, answer -> hint (RIGHT for right answers, ANY_OTHER for all that are not named), or, where
    more than a comparison is needed, it yields a hint for each thing that is wrong, the first of which is shown.
    """

    def declare(judge: Judge) -> Judge:
        _declare(id, Exercise(kind, judge, solution, ask, None, facts or {}, fresh))
        return judge

    return declare


def choice(
    id: str,
    ask: Callable[..., str],
    choices: Callable[..., Choices],
    *,
    solution: Callable[..., str],
    **facts: Fact,
) -> None:
    """Declare a prediction that a click among ``choices`` answers; each wrong one has a hint for its misconception."""

    def read(answer: object) -> int:
        if isinstance(answer, bool) or not isinstance(answer, int):
            raise Unreadable
        return answer

    def judge(number: int, **given: int) -> Hints:
        hints = dict(enumerate((hint for _, hint in choices(**given)), 1))
        if number not in hints:
            raise Unreadable
        return hints

    kind = Kind(read, lambda: say(en="the number of a choice, from 1", zh="选项的编号，从 1 开始"))
    _declare(id, Exercise(kind, judge, solution, ask, choices, facts))


def _declare(id: str, exercise: Exercise) -> None:
    if id in EXERCISES:
        raise ValueError(f"there are two exercises {id!r}")
    EXERCISES[id] = exercise
