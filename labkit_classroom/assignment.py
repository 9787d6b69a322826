"""Load an assignment from a folder: a text in both languages, and modules that call and judge answers.

``assignment.txt``   the notebook in the form of :mod:`.cells`. Tags of its code cells: ``given`` (also run
                     before the answers when they are graded), ``answer`` (its id is the question's), ``check``.
``judges.py``        the parts of each question, declared by :func:`.judging.part`. Optional: ``numbers(draw)`` (the
                     numbers of a student's edition), ``PRELOAD``, and ``WITHOUT``, ``NEEDS``, ``APART`` (see
                     :class:`Question`).
``drivers.py``       functions that call the answers; this module is sent to the worker.
``checks.py``        the student's ``check(...)`` (see :mod:`.checking`); optional.
"""

from __future__ import annotations

import importlib
import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cells import BilingualCell, parse
from .draw import Draw, Numbers
from .folders import BUILT_IN, names, package_of
from .judging import RubricPart
from .messages import Problem, Words
from .source import QuestionFacts, names_defined_in

_TAGS = ("given", "answer", "check", None)


@dataclass(frozen=True)
class EditionCell:
    """A cell of an edition. role: text, setup, given, answer, check, or free (for the student's experiments)."""

    id: str
    role: str
    source: str
    question: str | None = None


@dataclass(frozen=True)
class Question:
    """A question: an answer cell in which the student defines the names in ``defines``.

    needs     ids of earlier questions whose answers this one may call.
    without   dotted names of functions and modules that the student must write, so that the worker removes them.
    apart     isolate each rank of the answer from the others (see :mod:`.sandbox.inside.ranks`).
    """

    id: str
    title: Words
    parts: tuple[RubricPart, ...]
    defines: tuple[str, ...]
    needs: tuple[str, ...]
    without: tuple[str, ...]
    apart: bool
    source: str = field(repr=False)

    @property
    def points(self) -> int:
        return sum(part.points for part in self.parts)

    def stub(self, numbers: Numbers) -> str:
        """Return the answer cell of the student's edition."""
        return fill_numbers(_without_solution(self.source), numbers)

    def solution(self, numbers: Numbers) -> str:
        return fill_numbers(with_solution(self.source), numbers)

    def solution_between(self, begin: str, end: str, numbers: Numbers) -> str:
        """Return the solution, with lines ``begin`` and ``end`` around the part that students do not get."""
        marked = _REGION.sub(lambda found: f"{found[1]}{begin}\n{found[2]}{found[1]}{end}\n", self.source)
        return fill_numbers(marked.rstrip("\n"), numbers)


@dataclass(frozen=True)
class Assignment:
    """An assignment. ``preload``: modules to import before workers are forked."""

    name: str
    title: Words
    folder: Path
    questions: tuple[Question, ...]
    preload: tuple[str, ...]
    _cells: tuple[tuple[BilingualCell, str | None], ...] = field(
        repr=False
    )  # each with the id of its question
    _judges: types.ModuleType = field(repr=False)

    @property
    def points(self) -> int:
        return sum(question.points for question in self.questions)

    @property
    def is_built_in(self) -> bool:
        return self.folder.parent == BUILT_IN

    def numbers(self, draw: Draw | None) -> dict[str, int | str]:
        """Return the numbers of a student's edition, or the default ones without a draw."""
        drawn = getattr(self._judges, "numbers", None)
        return dict(drawn(draw)) if drawn else {}

    def question_facts(self, numbers: Numbers) -> list[QuestionFacts]:
        """Return for each question the names to define and the untouched cell."""
        return [
            QuestionFacts(question.id, question.defines, question.stub(numbers))
            for question in self.questions
        ]

    def prologue(self, numbers: Numbers) -> str:
        """Return the code of the given cells, which runs before the answers."""
        return "\n\n".join(
            fill_numbers(cell.text.en, numbers) for cell, _ in self._cells if cell.role == "given"
        )

    def cells(self, language: str, numbers: Numbers, solution: bool = False) -> list[EditionCell]:
        """Return the cells in ``language`` with a student's ``numbers``, with or without solutions."""
        rubrics = {question.id: _rubric(question, language) for question in self.questions}
        made = []
        for cell, question in self._cells:
            text = cell.text.in_language(language)
            if cell.role == "answer":
                text = with_solution(text) if solution else _without_solution(text)
            elif cell.role == "text":
                text, question = text + rubrics.get(question or "", ""), None
            made.append(EditionCell(cell.id, cell.role, fill_numbers(text, numbers), question))
        at = next((at for at, cell in enumerate(made) if cell.role != "text"), len(made))
        made.insert(at, EditionCell("setup", "setup", self._setup(language, numbers)))
        return made

    def _setup(self, language: str, numbers: Numbers) -> str:
        given = "".join(f", {name}={value!r}" for name, value in numbers.items())
        if not self.is_built_in:  # put its checks into the notebook, so that students need no other file
            paths = (self.folder / f"{name}.py" for name in ("drivers", "checks"))
            carried = {path.stem: path.read_text("utf-8") for path in paths if path.exists()}
            given += f", carried={carried if 'checks' in carried else {}!r}"
        begin = f'begin("{self.name}", language="{language}"{given})'
        return f"from labkit.classroom import begin, check\n\n{begin}"


def load(which: str | Path) -> Assignment:
    """Load an assignment by its name or folder.

    Raise ValueError, with the file and the cell, if it is invalid.
    """
    if isinstance(which, str) and which in names():
        folder = BUILT_IN / which
    elif Path(which).is_dir():
        folder = Path(which).resolve()
    else:
        raise Problem(
            en=f"there is no assignment {str(which)!r}: it is one of {', '.join(names())}, "
            "or a folder with an assignment.txt and a judges.py",
            zh=f"没有作业 {str(which)!r}：可以是 {'、'.join(names())}，"
            "或者一个含有 assignment.txt 和 judges.py 的文件夹",
        )
    for name in ("assignment.txt", "judges.py"):
        if not (folder / name).is_file():
            raise Problem(en=f"{folder}: {name} is missing", zh=f"{folder}：缺少 {name}")
    judges = importlib.import_module(f"{package_of(folder)}.judges")
    try:
        return _build_assignment(folder, parse((folder / "assignment.txt").read_text("utf-8")), judges)
    except Problem as error:
        file = folder / "assignment.txt"
        raise Problem(en=f"{file}: {error.en}", zh=f"{file}: {error.zh}") from None


def _build_assignment(folder: Path, cells: list[BilingualCell], judges: types.ModuleType) -> Assignment:
    for cell in cells:
        if cell.code and cell.tag not in _TAGS:
            raise Problem(
                en=f"cell {cell.id}: its tag is {cell.tag!r}, which must be one of {', '.join(_TAGS[:-1])}",
                zh=f"单元格 {cell.id}：标签是 {cell.tag!r}，必须是 {'、'.join(_TAGS[:-1])} 之一",
            )
    placed = tuple((cell, _question_of(cells, at)) for at, cell in enumerate(cells))
    answers = [cell for cell in cells if cell.role == "answer"]
    if not answers or cells[0].role != "text":
        raise Problem(
            en="it begins with a text cell, the title, and has a code cell tagged `answer` for each question",
            zh="开头应是一个文字单元格（标题），每道题要有一个标签为 `answer` 的代码单元格",
        )
    titles = {id: _first_line(cell.text) for cell, id in placed if cell.role == "text"}
    parts = [value for value in vars(judges).values() if isinstance(value, RubricPart)]
    _check_complete([cell.id for cell in answers], titles, parts)
    needs, without = getattr(judges, "NEEDS", {}), getattr(judges, "WITHOUT", {})
    usual = judges.numbers(None) if hasattr(judges, "numbers") else {}
    questions = tuple(
        Question(
            cell.id,
            titles[cell.id],
            tuple(part for part in parts if part.question == cell.id),
            tuple(names_defined_in(fill_numbers(_without_solution(cell.text.en), usual), imports=False)),
            tuple(needs.get(cell.id, ())),
            tuple(without.get(cell.id, ())),
            cell.id in getattr(judges, "APART", ()),
            cell.text.en,
        )
        for cell in answers
    )
    title, preload = _first_line(cells[0].text), tuple(getattr(judges, "PRELOAD", ()))
    return Assignment(folder.name, title, folder, questions, preload, placed, judges)


def _question_of(cells: list[BilingualCell], at: int) -> str | None:
    """Return the id of a cell's question: the answer cell above a check, or below a heading."""
    cell = cells[at]
    if cell.role == "answer":
        return cell.id
    if cell.role == "check":
        return next((above.id for above in reversed(cells[:at]) if above.role == "answer"), None)
    if cell.role == "text" and re.match("#+ ", cell.text.en) and re.match("#+ ", cell.text.zh):
        below = next((other for other in cells[at + 1 :] if other.role in ("text", "answer")), None)
        return below.id if below and below.role == "answer" else None
    return None


def _first_line(text: Words) -> Words:
    """Return the first line of each text, without heading signs."""
    return Words(*(one.split("\n")[0].lstrip("# ").strip() for one in (text.en, text.zh)))


def _check_complete(answers: list[str], titles: Mapping[str | None, Words], parts: list[RubricPart]) -> None:
    """Raise Problem if an answer cell has no title or no part, or a part has no answer cell."""
    for id in answers:
        if id not in titles:
            raise Problem(
                en=f"cell {id}: the text cell above it must begin with a heading, the question's title",
                zh=f"单元格 {id}：上面的文字单元格必须以标题行开头，作为题目的标题",
            )
        if not any(part.question == id for part in parts):
            raise Problem(
                en=f'cell {id}: judges.py has no part for it, @part("{id}", points, …)',
                zh=f'单元格 {id}：judges.py 里没有它的评分项 @part("{id}", 分数, …)',
            )
    for part in parts:
        if part.question not in answers:
            raise Problem(
                en=f"judges.py: part {part.id} is of a question {part.question!r} that has no answer cell",
                zh=f"judges.py：评分项 {part.id} 属于题目 {part.question!r}，但没有这道题的答题单元格",
            )


def _rubric(question: Question, language: str) -> str:
    head = {"en": "| points | for |", "zh": "| 分值 | 评分项 |"}[language]
    rows = [f"| {part.points} | {part.what.in_language(language)} |" for part in question.parts]
    return "\n".join(["\n", head, "| --- | --- |", *rows])


def fill_numbers(text: str, numbers: Numbers) -> str:
    """Replace each ``{{name}}`` by its number."""
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda found: str(numbers.get(found[1], found[0])), text)


# Lines `# solution` … `# stub` … `# end`: the solution, and the student's text instead (three dots without `# stub`).
_REGION = re.compile(r"^( *)# solution\n(.*?)(?:^ *# stub\n(.*?))?^ *# end$\n?", re.MULTILINE | re.DOTALL)


def _without_solution(source: str) -> str:
    stub = _REGION.sub(lambda found: f"{found[1]}...\n" if found[3] is None else found[3], source)
    return stub.rstrip("\n")


def with_solution(source: str) -> str:
    """Return an answer cell with its solution."""
    return _REGION.sub(lambda found: found[2], source).rstrip("\n")


def notebook(
    name: str,
    cells: Iterable[EditionCell],
    student: str | None = None,
    edition: str | None = None,
    questions: Iterable[QuestionFacts] = (),
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Return a student's notebook as JSON, version 4.5 of the format: the cells with labels for collecting.

    student, edition   the student's id and the edition's tag, for the notebook's metadata and the first line of its
                       first code cell; None for an edition without an owner.
    questions          the facts that ``labkit submit`` needs.
    more               further metadata by the cell's id, such as nbgrader's.
    """
    whose = f"# labkit: {name} student={student} edition={edition}" if student else ""
    made = []
    for cell in cells:
        metadata: dict[str, Any] = {"labkit": {"assignment": name, "role": cell.role}}
        if cell.question:
            metadata["labkit"]["question"] = cell.question
        metadata |= (more or {}).get(cell.id, {})
        source, is_code = cell.source, cell.role != "text"
        if is_code:
            source = _label_source(name, cell)
            if whose:
                source, whose = f"{whose}\n{source}", ""
            if cell.role != "answer":
                metadata["editable"] = False
            metadata["deletable"] = False
        id = answer_id(cell.question) if cell.role == "answer" and cell.question else cell.id
        made.append(cell_as_json(id, is_code, source, metadata))
    ours: dict[str, Any] = {"assignment": name}
    if told := {asked.id: {"defines": list(asked.defines), "stub": asked.stub} for asked in questions}:
        ours["questions"] = told
    if student and edition:
        ours |= {"student": student, "edition": edition}
    return to_json(made, {"labkit": ours})


def to_json(cells: list[dict[str, Any]], metadata: Mapping[str, Any]) -> str:
    """Return the notebook of these cells as text."""
    found = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            **metadata,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def answer_id(question: str) -> str:
    """Return the id of a question's answer cell."""
    return f"{question}-answer"


def _label_source(name: str, cell: EditionCell) -> str:
    """Return the cell's source below a line with its label."""
    which = f"{name}.{cell.question}" if cell.question else name
    role = f" {cell.role}" if cell.question and cell.role != "answer" else ""
    return f"# labkit: {which}{role}\n{cell.source}"


def cell_as_json(id: str, is_code: bool, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notebook cell as JSON."""
    made: dict[str, Any] = {"cell_type": "code" if is_code else "markdown", "id": id}
    if is_code:
        made |= {"execution_count": None, "outputs": []}
    return made | {"metadata": dict(metadata), "source": source.splitlines(keepends=True)}
