"""The form of a problem that a learner repairs: a model (lesson 09) or a script for torchrun (lesson 19)."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from labkit.base.texts import Text
from labkit_course.content import FOLDER, module
from labkit_course.exercise import fill_named
from labkit_course.judging import Hint, Named, sections, texts_by_name
from labkit_course.notebooks import copies

# The points of a repair: in full, once the plain cases are right, and once the results of all cases are right.
WORTH = 10
PLAIN, EVERYWHERE = 5, 8


class Judgement(NamedTuple):
    """points   of WORTH that the repair reaches, without regard to hints taken.
    hint     on the first mistake; with all points, on what can go wrong where nothing was found; None if there is
             neither.
    """

    points: int
    hint: Hint | None


@dataclass(frozen=True)
class RepairProblem:
    """A broken class or function.

    broken     as it is shown; ``repaired`` the same put right: its results are what is right.
    texts      three hints that a learner can buy, ``symptom``, ``where`` to look and the ``cure``; ``why``, said when
               it is repaired; the hints on wrong repairs; and those of all problems of the lesson: its ``title``,
               ``again`` (said while nothing is changed), ``plain`` and ``everywhere`` (said at 5 and at 8 points).
    """

    name: str
    broken: Any
    repaired: Any
    texts: Mapping[str, Text]

    @property
    def title(self) -> str:
        """Return the name on the board."""
        return str(self.broken.__name__)

    def judge(self, attempt: object, draw: Random) -> Judgement:
        """Run ``attempt`` in cases that ``draw`` decides, and compare."""
        raise NotImplementedError

    def symptom(self, attempt: Any = None) -> tuple[str, Any]:
        """Return the fault as lines of text, and a picture or None.

        attempt   the learner's copy of the broken code, so that the output can name its lines.
        """
        raise NotImplementedError

    def source(self) -> str:
        """Return the repaired source as a learner would write it."""
        return textwrap.dedent(inspect.getsource(self.repaired)).rstrip()

    def is_unchanged(self, attempt: object) -> bool:
        """Return whether the source of ``attempt`` is still the broken one; comments and blanks do not count."""
        try:
            return type(attempt) is type(self.broken) and _source_of(attempt) == _source_of(self.broken)
        except (OSError, TypeError, SyntaxError):  # there is no source to read
            return False

    def render_hint(self, hint: Named, **facts: Any) -> Hint:
        """Return the hint's text with the facts filled in."""
        words = fill_named(self.texts, hint.name, facts | hint.values)
        return Hint(hint.name.partition(".")[0], words.en, words.zh)


def _source_of(attempt: Any) -> dict[str, str]:
    # Read methods one by one: Python cannot find the source of a class defined in a notebook.
    parts = vars(attempt) if isinstance(attempt, type) else {"": attempt}
    written = {name: value for name, value in parts.items() if inspect.isfunction(value)}
    return {
        name: ast.dump(ast.parse(textwrap.dedent(inspect.getsource(one)))) for name, one in written.items()
    }


def define(source: str, name: str, names: Mapping[str, Any], file: str = "") -> Any:
    """Execute ``source`` beside ``names``, and return the object called ``name``.

    file   a file name for tracebacks and :func:`inspect.getsource`, which then find the source; none is read.
    """
    made = {**names, "__name__": "script"}  # outside labkit, so that errors name lines of the script
    exec(compile(source, file or "<script>", "exec"), made)
    if file:
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    return made[name]


def read_broken_code(notebook: str) -> Any:
    """Return what the cells ``…-class`` of a lesson's notebook define, as attributes: the code that is broken."""
    file = copies.source() / "en" / f"{notebook}.ipynb"
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(file.read_text("utf-8"))["cells"]}
    # The lesson's first code cell imports torch before labkit: broken code needs no more than that.
    imports: dict[str, Any] = {}
    exec(cells["begin"].partition("labkit")[0].rpartition("\n")[0], imports)
    found = SimpleNamespace()
    for id, source in cells.items():
        if id.endswith("-class"):
            name = source.split()[1].partition("(")[0]
            setattr(found, name, define(f"{source}\n", name, imports, f"<{name}>"))
    return found


class Problems:
    """The problems of a lesson: modules of a folder of the content declare them, beside their texts in problems.txt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._declared: dict[str, Callable[[Mapping[str, Text]], RepairProblem]] = {}

    def declare(self, name: str, make: Callable[[Mapping[str, Text]], RepairProblem]) -> None:
        self._declared[name] = make

    def load_all(self) -> dict[str, RepairProblem]:
        """Import the modules of the folder and return the problems by name, in the order of the texts."""
        for file in sorted(self._folder.glob("*.py")):
            module(f"{self._folder.name}.{file.stem}")
        texts = {
            head.words[0]: texts_by_name(head, parts)
            for head, parts in sections(self._folder / "problems.txt")
        }
        common = texts.pop("any")
        return {name: self._declared[name](common | own) for name, own in texts.items()}


# The lessons that are scored by repairs, and the folder of each.
LESSONS = {"09": "broken", "19": "hung"}


@cache
def problems(lesson: str) -> dict[str, RepairProblem]:
    """Return the ten problems of ``lesson`` by name, in the lesson's order."""
    made: dict[str, RepairProblem] = module(f"{LESSONS[lesson]}.judging").PROBLEMS.load_all()
    return made


def all_problems() -> dict[str, RepairProblem]:
    """Return the problems of all lessons by name."""
    return {name: one for lesson in LESSONS for name, one in problems(lesson).items()}


def lesson_of(name: str) -> str:
    """Return the number of the lesson that has the problem ``name``."""
    return next(lesson for lesson in LESSONS if name in problems(lesson))


def folder(module_file: str) -> Path:
    """Return the folder of the content that holds a module."""
    return FOLDER / Path(module_file).parent.name
