"""Check a lesson's questions: hints on the right answer, and missing folds.

:mod:`tools.author.sync` prints these problems with its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from nbformat import NotebookNode

from labkit_course import kinds
from labkit_course.exercise import find
from labkit_course.judging import Unreadable


def predictions(cells: list[NotebookNode]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the cell number, exercise and literal arguments of each prediction."""
    known: dict[str, Any] = {}
    for at, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        source = "\n".join(
            "" if line.lstrip().startswith(("%", "!")) else line for line in cell.source.splitlines()
        )
        try:
            tree = ast.parse(source)
        except SyntaxError:  # an indented magic leaves an empty body
            continue
        if "parameters" in cell.metadata.get("tags", ()):
            known = {node.targets[0].id: ast.literal_eval(node.value) for node in tree.body}  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "predict":
                given = {
                    str(word.arg): known.get(
                        getattr(word.value, "id", ""), getattr(word.value, "value", None)
                    )
                    for word in node.keywords
                }
                yield at, node.args[0].value, {name: n for name, n in given.items() if isinstance(n, int)}  # type: ignore[attr-defined]


def clashes(id: str, given: dict[str, int]) -> list[str]:
    """Return the values of hints of ``id`` that are its right answer for the numbers ``given``."""
    exercise = find(id)
    if exercise.code.judge or exercise.choices():
        return []
    facts = exercise.complete_facts(given)
    facts |= exercise.code.derived(**facts)
    right, wrong = set[Any](), list[tuple[str, Any]]()
    for answer in exercise.answers:
        for text in answer.text.fill(facts).en.split(" or "):
            try:
                value = exercise.kind.read(kinds.parse_typed(text))
            except Unreadable:  # any other answer
                continue
            if answer.hint is None:
                right.add(value)
            else:
                wrong.append((text, value))
    return [text for text, value in wrong if value in right]


def problems(cells: list[NotebookNode]) -> list[str]:
    """Return a line for each problem in the questions of a lesson."""
    found = []
    for at, id, given in predictions(cells):
        numbers = ", ".join(f"{name}={value}" for name, value in given.items())
        found += [
            f"{id}({numbers}): there is a hint for {text}, which is the right answer"
            for text in clashes(id, given)
        ]
        fold = f'class="labkit-{id.replace(".", "-")}"'
        if not any(fold in cell.source for cell in cells[at:] if cell.cell_type == "markdown"):
            found.append(f"{id}: no folded explanation below the question")
    return found
