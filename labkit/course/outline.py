"""The contents of the course: its lessons, and the ten beliefs about DataParallel that they put right.

They stand in ``content/outline.txt``. The index notebooks and the progress board are made from it, and a test compares
it with the notebooks themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..base.language import say
from ..base.texts import Entry, Text, parse
from ..content import FOLDER
from .glossary import table


@dataclass(frozen=True)
class Lesson:
    """A lesson: its notebook, its question, what it is for, and about how long it takes."""

    name: str
    question: Text
    purpose: Text
    minutes: int

    @property
    def number(self) -> str:
        """``"03"``."""
        return self.name.partition("_")[0]

    @property
    def title(self) -> str:
        """``"03 · Who gets which rows?"``: the heading of the notebook, in the language in use."""
        return f"{self.number} · {self.question}"


@dataclass(frozen=True)
class Belief:
    """Something that learners believe about DataParallel, what is so instead, and the lesson that shows it."""

    belief: Text
    instead: Text
    lesson: str


@cache
def _entries() -> list[Entry]:
    return parse((FOLDER / "outline.txt").read_text("utf-8"))


def lessons() -> tuple[Lesson, ...]:
    """The lessons in order."""
    found = [(entry.words, entry.texts) for entry in _entries() if entry.words[0] != "belief"]
    return tuple(Lesson(name, texts[""], texts["purpose"], int(minutes)) for (name, minutes), texts in found)


def beliefs() -> tuple[Belief, ...]:
    """The ten, in the order in which the lessons meet them."""
    found = [(entry.words, entry.texts) for entry in _entries() if entry.words[0] == "belief"]
    return tuple(Belief(texts[""], texts["instead"], lesson) for (_, lesson), texts in found)


class Outline:
    """The table of the lessons: shows itself as Markdown, with links to the notebooks beside it."""

    def _repr_markdown_(self) -> str:
        head = say(en="Lesson | What it is for | Minutes", zh="课 | 学什么 | 分钟")
        rows = [f"{_link(e.title, e.name)} | {e.purpose} | {e.minutes}" for e in lessons()]
        return table(head, rows)

    def __repr__(self) -> str:
        return "\n".join(lesson.title for lesson in lessons())


class Beliefs:
    """The table of the ten beliefs and the lessons that answer them: shows itself as Markdown."""

    def _repr_markdown_(self) -> str:
        head = say(en="What many believe | What is so | Lesson", zh="很多人以为 | 其实 | 课")
        rows = [f"{b.belief} | {b.instead} | {_link(b.lesson[:2], b.lesson)}" for b in beliefs()]
        return table(head, rows)

    def __repr__(self) -> str:
        return "\n".join(f"{belief.belief} -> {belief.lesson}" for belief in beliefs())


def _link(text: str, name: str) -> str:
    escaped = text.replace("[", "\\[").replace("]", "\\]")
    return f"[{escaped}]({name}.ipynb)"
