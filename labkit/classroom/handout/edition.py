"""Makes the notebook that a student is given: an assignment's cells, marked so that they can be found again.

It is written as plain JSON, version 4.5 of the notebook format, which JupyterLab, Colab and VS Code open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..source import Asked

if TYPE_CHECKING:
    from ..assignment import Cell


def notebook(
    name: str,
    cells: Iterable[Cell],
    student: str | None = None,
    edition: str | None = None,
    questions: Iterable[Asked] = (),
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The text of an edition of assignment ``name``.

    student, edition   whose it is and its tag, in the notebook's metadata and in the first line of its first code
                       cell; without them it is nobody's, the same for everybody.
    questions          what ``labkit submit`` has to know of each.
    more               further metadata of cells, by their ids: another engine's.
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
            source = _marked(name, cell)
            if whose:
                source, whose = f"{whose}\n{source}", ""
            if cell.role != "answer":
                metadata["editable"] = False
            metadata["deletable"] = False
        id = answer_id(cell.question) if cell.role == "answer" and cell.question else cell.id
        made.append(made_cell(id, is_code, source, metadata))
    ours: dict[str, Any] = {"assignment": name}
    if told := {asked.id: {"defines": list(asked.defines), "stub": asked.stub} for asked in questions}:
        ours["questions"] = told
    if student and edition:
        ours |= {"student": student, "edition": edition}
    return to_json(made, {"labkit": ours})


def to_json(cells: list[dict[str, Any]], metadata: Mapping[str, Any]) -> str:
    """A notebook of these cells, as text."""
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
    """The id of the cell that holds the answer to a question."""
    return f"{question}-answer"


def _marked(name: str, cell: Cell) -> str:
    """Puts a line above the source that says which cell it is."""
    lines = cell.source.split("\n")
    if lines[0].startswith("# labkit:"):
        lines = lines[1:]
    which = f"{name}.{cell.question}" if cell.question else name
    role = f" {cell.role}" if cell.question and cell.role != "answer" else ""
    return "\n".join([f"# labkit: {which}{role}", *lines])


def made_cell(id: str, is_code: bool, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A cell as JSON."""
    made: dict[str, Any] = {"cell_type": "code" if is_code else "markdown", "id": id}
    if is_code:
        made |= {"execution_count": None, "outputs": []}
    return made | {"metadata": dict(metadata), "source": source.splitlines(keepends=True)}
