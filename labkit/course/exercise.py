"""What an exercise is: the kind of answer it asks for, how one is judged, and its solution; and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

# What a table of hints says of a right answer, and the key under which every answer is that it does not name.
RIGHT = None
ANY_OTHER = object()

Hints = Mapping[Any, str | None]
Judge = Callable[[Any], Hints | Iterator[str]]


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
    """``judge`` is asked about answers that ``kind`` has read; ``solution()`` is the worked answer."""

    kind: Kind
    judge: Judge
    solution: Callable[[], str]

    def hint(self, answer: object) -> str | None:
        """What is wrong with ``answer``, None if it is right; raises Unreadable, or what the learner's code raises."""
        value = self.kind.read(answer)
        found = self.judge(value)
        if isinstance(found, Mapping):
            return found[value if value in found else ANY_OTHER]
        with closing(found) as hints:  # type: ignore[type-var]  # judges are generators: they hold simulated GPUs
            return next(hints, None)


# All exercises of the course by id, in the order of the lessons (filled as .exercises is imported).
EXERCISES: dict[str, Exercise] = {}


def exercise(id: str, kind: Kind, *, solution: Callable[[], str]) -> Callable[[Judge], Judge]:
    """Declare an exercise: the decorated function is its judge, given an answer that ``kind`` has read.

    It gives a table, answer -> hint (RIGHT for right answers, ANY_OTHER for all that are not named), or, where
    more than a comparison is needed, it yields a hint for each thing that is wrong, the first of which is shown.
    """

    def declare(judge: Judge) -> Judge:
        if id in EXERCISES:
            raise ValueError(f"there are two exercises {id!r}")
        EXERCISES[id] = Exercise(kind, judge, solution)
        return judge

    return declare
