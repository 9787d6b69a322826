"""Exercises: texts, kinds of answers, judging, and the declarations in the content.

The texts are in ``labkit_content/exercises/NN_lesson.txt``, in the format of :mod:`labkit.base.texts`::

    %% 03.next whole
    en: 8 GPUs: 8 rows give each of them one. What is the next batch that gives all of them the same number of rows?
    zh: …
    solution en: `16`: only multiples of 8 come out even.
    solution zh: …
    %% - 9
    en: with one row more, pieces have 2 rows; how many GPUs do they reach?
    zh: …
    %% + 16

After the id comes the kind of answer, one of :data:`KINDS`. ``%% -`` lists wrong answers, with a hint, and ``%% +``
right answers, as a learner types them, separated by "or". ``…`` is any other answer; of two lines with the same answer
the later counts. Without a kind the answers are choices to click, with a text each and a ``hint``. A text ``wanted``
describes an answer, unless it is the function in the solution's code. An exercise without a question is answered by
``check()`` only, and ``why`` explains a right answer in one sentence. ``%% hint`` and ``%% part`` are texts for code.

Code is in the lesson's Python module: :func:`derive_facts` computes facts for the texts, and :func:`judge` judges
answers if a table cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from random import Random
from typing import Any, TypeVar

from labkit.base.language import say, wrong
from labkit.base.numbers import integer, must
from labkit.base.texts import Entry, Text

from . import kinds
from .content import FOLDER, module
from .judging import Hint, Hints, Kind, Named, Praise, Unreadable, sections, texts_by_name

Fact = tuple[int, int, int]
Fresh = Callable[[Random], Mapping[str, int]]

KINDS = {
    "whole": kinds.A_WHOLE_NUMBER,
    "number": kinds.A_NUMBER,
    "numbers": kinds.SOME_WHOLE_NUMBERS,
    "shape": kinds.A_SHAPE,
    "device": kinds.A_DEVICE,
}
Derive = TypeVar("Derive", bound=Callable[..., Mapping[str, Any]])
Judge = TypeVar("Judge", bound=Callable[..., Hints])
_ANY_OTHER = "…"
_FOLDER = FOLDER / "exercises"


@dataclass(frozen=True)
class Code:
    """The part of an exercise that a lesson's Python module declares.

    facts    the numbers of the question: name -> (default, least, greatest).
    fresh    draws other facts, for a prediction that can be asked again.
    derived  computes further facts for the texts.
    kind     the kind of answer, or its reader if the texts describe an answer.
    judge    takes an answer and the facts, and yields a hint for each mistake.
    """

    facts: Mapping[str, Fact] = field(default_factory=dict)
    fresh: Fresh | None = None
    derived: Callable[..., Mapping[str, Any]] = lambda **facts: {}
    kind: Kind | Callable[[object], Any] | None = None
    judge: Callable[..., Hints] | None = None


# The declared code by exercise id; the content's modules fill it on import.
_declared: dict[str, Code] = {}


def _declare(id: str, known: str, **parts: Any) -> None:
    code = _declared.get(id, Code())
    if getattr(code, known) is not getattr(Code, known):
        raise ValueError(f"there are two exercises {id!r}")
    _declared[id] = replace(code, **{name: part for name, part in parts.items() if part})


def derive_facts(id: str, *, fresh: Fresh | None = None, **facts: Fact) -> Callable[[Derive], Derive]:
    """Declare a function that computes further facts from an exercise's facts, by the names used in the texts."""

    def declare(function: Derive) -> Derive:
        _declare(id, "derived", derived=function, fresh=fresh, facts=facts)
        return function

    return declare


def judge(
    id: str, kind: Kind | Callable[[object], Any], *, fresh: Fresh | None = None, **facts: Fact
) -> Callable[[Judge], Judge]:
    """Declare the judge of an exercise: a function of an answer and the facts that yields hints."""

    def declare(function: Judge) -> Judge:
        _declare(id, "judge", judge=function, kind=kind, fresh=fresh, facts=facts)
        return function

    return declare


@dataclass(frozen=True)
class ListedAnswer:
    """An answer in the texts: a choice to click, or answers to type.

    text    the choice, or the answers separated by "or".
    hint    the explanation of a wrong answer; None for a right one.
    """

    text: Text
    hint: Text | None


@dataclass(frozen=True)
class Exercise:
    """An exercise: texts by name, listed answers, and code.

    kind_name    a key of KINDS; "" for choices to click, or if a judge reads the answer.
    """

    texts: Mapping[str, Text]
    answers: Sequence[ListedAnswer]
    code: Code
    kind_name: str

    @cached_property
    def asks(self) -> bool:
        """Whether this is a prediction: a question to answer before the next cell runs."""
        return "" in self.texts

    @property
    def _is_choice(self) -> bool:
        return not self.code.judge and not self.kind_name

    @property
    def kind(self) -> Kind:
        """The kind of answer: declared by code or by name, or else the number of a choice.

        A kind that is only a reader gets the text ``wanted``.
        """
        kind = self.code.kind or (KINDS[self.kind_name] if self.kind_name else _A_CHOICE)
        if isinstance(kind, Kind):
            return replace(kind, wanted=self.texts.get("wanted", kind.wanted))
        return Kind(kind, self.texts["wanted"])

    def question(self, **facts: int) -> str:
        """Return the question in the current language."""
        return str(self._fill_text("", facts))

    def choices(self) -> list[str]:
        """Return the choices to click in order, or [] if the answer is typed."""
        return [str(answer.text.fill({})) for answer in self.answers] if self._is_choice else []

    def solution(self, **facts: int) -> str:
        """Return the solution in the current language."""
        return str(self._fill_text("solution", facts))

    def explanation(self) -> str:
        """Return a sentence that explains a right answer to an exercise without a question."""
        return str(self.texts["why"])

    def _fill_text(self, name: str, facts: Mapping[str, int], /, **more: Any) -> Text:
        return fill_named(self.texts, name, {**self._with_derived(facts), **more})

    def _with_derived(self, facts: Mapping[str, int]) -> dict[str, Any]:
        return {**facts, **self.code.derived(**facts)}

    def complete_facts(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return all facts, with defaults for those not given. Raises TypeError or ValueError for an unknown fact."""
        for name in given:
            if name not in self.code.facts:
                wanted = ", ".join(self.code.facts) or say(en="none", zh="没有")
                raise wrong(
                    TypeError,
                    en=f"{name}: the numbers of this question are {wanted}",
                    zh=f"{name}：这道题的数有 {wanted}",
                )
        usual = {name: fact[0] for name, fact in self.code.facts.items()}
        return usual | {name: integer(name, given[name], *self.code.facts[name][1:]) for name in given}

    def hint(self, answer: object, **facts: int) -> Hint | None:
        """Return the hint on ``answer``, or None; on a right answer a remark has the full score.

        Raises Unreadable, or an error of the learner's code.
        """
        value = kinds.read_answer(answer, self.kind)
        if self.code.judge is None:
            return self._looked_up(value, facts)
        with closing(self.code.judge(value, **facts)) as hints:  # type: ignore[type-var]  # closes simulated GPUs
            found = next(hints, None)
        if found is None:
            return None
        said = self._fill_text(found.name, facts, **{"answer": value, **found.values})
        return Hint(found.name, said.en, said.zh, float(isinstance(found, Praise)))

    @cached_property
    def _tables(self) -> dict[tuple[int, ...], dict[Any, ListedAnswer]]:
        """The tables of answers built so far, by the facts of the question."""
        return {}

    def _rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[Any, ListedAnswer]]:
        """Yield (value, answer) for every value in the table of answers."""
        if self._is_choice:
            yield from enumerate(self.answers, 1)
            return
        kind = self.kind
        for answer in self.answers:
            for text in answer.text.fill(facts).en.split(" or "):
                yield (text if text == _ANY_OTHER else kind.read(kinds.parse_typed(text))), answer

    def _looked_up(self, value: Any, facts: Mapping[str, int]) -> Hint | None:
        """Return the hint for ``value`` in the table of answers. Raises Unreadable for a value not listed."""
        asked = tuple(facts.values())
        if asked not in self._tables:
            self._tables[asked] = dict(self._rows(self._with_derived(facts)))
        found = self._tables[asked].get(value, self._tables[asked].get(_ANY_OTHER))
        if found is None:
            raise Unreadable
        if found.hint is None:
            return None
        said = found.hint.fill({**self._with_derived(facts), "answer": value})
        return Hint(found.text.en.strip("{}"), said.en, said.zh)


def fill_named(texts: Mapping[str, Text], name: str, values: Mapping[str, Any]) -> Text:
    """Return the text called ``name``, filled with ``values``, of which those that are Named are texts themselves."""
    named = {name: value for name, value in values.items() if isinstance(value, Named)}
    plain = {name: value for name, value in values.items() if name not in named}
    parts = {name: fill_named(texts, value.name, plain | value.values) for name, value in named.items()}
    return texts[name].fill(plain | parts)


def _number_of_a_choice(answer: object) -> int:
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise Unreadable
    return answer


_A_CHOICE = Kind(_number_of_a_choice, Text("the number of a choice, from 1", "选项的编号，从 1 开始"))


def find(id: str) -> Exercise:
    """Return the exercise ``id``, such as ``"03.idle"``. Raises ValueError, with all ids, for an unknown one."""
    found = _load_lesson(id.partition(".")[0]).get(id) if isinstance(id, str) else None
    if found is None:
        known = ", ".join(ids())
        raise ValueError(must("exercise", id, en=f"one of {known}", zh=f"是 {known} 之一"))
    return found


@cache
def ids() -> tuple[str, ...]:
    """Return the ids of all exercises, sorted."""
    return tuple(sorted(head.words[0] for file in _FOLDER.glob("*.txt") for head, _ in sections(file)))


@cache
def _load_lesson(number: str) -> dict[str, Exercise]:
    """Return the exercises of one lesson by id; other lessons are not loaded."""
    file = next((file for file in _FOLDER.glob("*.txt") if file.stem.partition("_")[0] == number), None)
    if file is None:
        return {}
    name = file.stem.partition("_")[2]
    if (_FOLDER / f"{name}.py").exists():
        module(f"exercises.{name}")
    found: dict[str, Exercise] = {}
    for head, parts in sections(file):
        id, kind = (*head.words, "")[:2]
        answers = [_answer(part, bool(kind)) for part in parts if part.words[0] in "-+"]
        found[id] = Exercise(texts_by_name(head, parts), answers, _declared.get(id, Code()), kind)
    return found


def _answer(entry: Entry, typed: bool) -> ListedAnswer:
    if typed:
        answers = " ".join(entry.words[1:])
        return ListedAnswer(Text(answers, answers), entry.texts.get(""))
    return ListedAnswer(entry.texts[""], entry.texts.get("hint"))
