"""The outline of the course: lessons, common beliefs, and widely read sentences with code that tests them.

``labkit_content/outline.txt`` declares the outline. The index notebooks and the progress board come from it, and a test
compares it with the notebooks.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from labkit.base.language import say
from labkit.base.texts import Entry, Text, parse

from .content import FOLDER
from .glossary import table
from .verdict_html import as_html


@dataclass(frozen=True)
class Lesson:
    """A lesson: name of the notebook, question, purpose and approximate minutes."""

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
        """``"03 · Who gets which rows?"``: the heading of the notebook, in the current language."""
        return f"{self.number} · {self.question}"


@dataclass(frozen=True)
class Belief:
    """A common belief, the correction, and the lesson to read."""

    belief: Text
    instead: Text
    lesson: str


@cache
def _entries() -> list[Entry]:
    return parse((FOLDER / "outline.txt").read_text("utf-8"))


@dataclass(frozen=True)
class Saying:
    """A widely read sentence, with the kind of text, the verdict, code for a test, and the lesson to read."""

    sentence: Text
    where: Text
    verdict: Text
    code: str
    lesson: str

    def run_code(self) -> str:
        """Run the code and return the value of its last line, or the text of an error."""
        import torch  # slow, and needed only here

        names = {"torch": torch, "nn": torch.nn, "dist": torch.distributed, "labkit": import_module("labkit")}
        *before, last = ast.parse(self.code).body
        try:
            exec(compile(ast.Module(before, []), "said", "exec"), names)
            if isinstance(last, ast.Expr):
                return repr(eval(compile(ast.Expression(last.value), "said", "eval"), names))
            exec(compile(ast.Module([last], []), "said", "exec"), names)
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
        return ""


def sayings() -> tuple[Saying, ...]:
    """Return the widely read sentences of the outline, by lesson."""
    found = [entry for entry in _entries() if entry.words[0] == "said"]
    return tuple(
        Saying(entry.texts[""], entry.texts["where"], entry.texts["verdict"], entry.code, entry.words[1])
        for entry in found
    )


def lessons() -> tuple[Lesson, ...]:
    """Return the lessons in order."""
    found = [(entry.words, entry.texts) for entry in _entries() if entry.words[0][:2].isdigit()]
    return tuple(Lesson(name, texts[""], texts["purpose"], int(minutes)) for (name, minutes), texts in found)


def beliefs() -> tuple[Belief, ...]:
    """Return the common beliefs, in the order of their lessons."""
    found = [(entry.words, entry.texts) for entry in _entries() if entry.words[0] == "belief"]
    return tuple(Belief(texts[""], texts["instead"], lesson) for (_, lesson), texts in found)


class Outline:
    """The tables of lessons in both parts, as Markdown with links to the notebooks."""

    def _repr_markdown_(self) -> str:
        head = say(en="Lesson | What it is for | Minutes", zh="课 | 学什么 | 分&#8288;钟")
        parts = {  # by the first digits of lesson numbers: 0x; 1x and 2x
            "0": say(en="Part one: DataParallel", zh="第一部分：DataParallel"),
            "12": say(en="Part two: everything that torchrun starts", zh="第二部分：torchrun 启动的一切"),
        }
        shown = []
        for first, title in parts.items():
            part = [lesson for lesson in lessons() if lesson.name[0] in first]
            rows = [f"{_link(one.title, one.name)} | {one.purpose} | {one.minutes}" for one in part]
            if rows:
                shown.append(f"**{title}**\n\n{table(head, rows)}")
        return "\n\n".join(shown)

    def __repr__(self) -> str:
        return "\n".join(lesson.title for lesson in lessons())


class Beliefs:
    """The table of common beliefs, folded corrections and lessons, as Markdown."""

    def _repr_markdown_(self) -> str:
        head = say(en="What many believe | What is so | Lesson", zh="很多人以为 | 其实 | 课")
        seen = say(en="Open", zh="打开")
        rows = [
            f"{b.belief} | <details><summary>{seen}</summary>{b.instead}</details> | {_link(b.lesson[:2], b.lesson)}"
            for b in beliefs()
        ]
        return table(head, rows)

    def __repr__(self) -> str:
        return "\n".join(f"{belief.belief} -> {belief.lesson}" for belief in beliefs())


class Sayings:
    """The widely read sentences, each with folded verdict and code, as Markdown."""

    def _repr_markdown_(self) -> str:
        return "\n\n".join(
            f"<details><summary>{as_html(str(said.sentence))} · {said.where}</summary>\n\n"
            f"{said.verdict} {_link(_lesson(said.lesson[:2]), said.lesson)}\n\n"
            f"```python\n{said.code}# {said.run_code()}\n```\n\n</details>"
            for said in sayings()
        )

    def __repr__(self) -> str:
        return "\n".join(str(said.sentence) for said in sayings())


def _lesson(number: str) -> str:
    return say(en=f"Lesson {number}", zh=f"见第 {number} 课")


def _link(text: str, name: str) -> str:
    escaped = text.replace("[", "\\[").replace("]", "\\]")
    return f"[{escaped}]({name}.ipynb)"
