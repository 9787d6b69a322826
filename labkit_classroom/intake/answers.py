"""Find the answers in a submitted notebook, whatever has happened to its cells.

A cell of an edition has two labels: its metadata, which Colab and converters lose, and a first line ``# labkit:
NAME.QUESTION``, which a student may delete. Without both, the cell's id counts; without the id, the cell that defines
the names of the question. Copied, split or merged cells are joined in the order of the notebook; untouched cells do
not count.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..assignment import answer_id
from ..messages import Remark
from ..source import (
    MOST,
    QuestionFacts,
    first_line,
    is_unanswered,
    names_bound_by,
    names_defined_in,
    parse_source,
)
from .document import Document, FoundCell, note

_LINE = re.compile(r"^[ \t]*#+[ \t]*labkit[ \t]*[:：][ \t]*(?P<rest>.*?)[ \t]*$", re.IGNORECASE)
_WHOSE = re.compile(r"(?P<assignment>[\w-]+)[ \t]+student=(?P<student>\S+)[ \t]+edition=(?P<edition>\w+)")
_WHICH = re.compile(r"(?P<assignment>[\w-]+)(?:[.．。](?P<question>[\w-]+))?(?:[ \t]+(?P<role>\w+))?")
_MAGIC = re.compile(r"^([ \t]*)([%!].*|\?{1,2}\w[\w.]*|[\w.]+\?{1,2})[ \t]*$", re.MULTILINE)

_Place = tuple[int, int]  # of a definition: cell, line


@dataclass(frozen=True)
class Claim:
    """The assignment, student and tag that a file claims."""

    assignment: str
    student: str
    edition: str


@dataclass(frozen=True)
class Answers:
    """The answers in a document.

    answers   question id -> source, None if the cell was deleted or not changed.
    notes     remarks for student and teacher.
    """

    answers: dict[str, str | None]
    notes: list[Remark] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Return a digest of the answers, without the rest of the file."""
        text = json.dumps(self.answers, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class _Piece:
    """Adjacent lines of a cell with one label. ``question`` is None for the student's additions."""

    source: str
    question: str | None
    ours: bool  # a check or a given cell, which is not graded
    magics: bool  # IPython's magics were removed


def claims_of(document: Document) -> list[Claim]:
    """Read the claims from the file's metadata and cells."""
    told: list[Any] = [document.labkit.get(name) for name in ("assignment", "student", "edition")]
    found = [Claim(*told)] if all(word and isinstance(word, str) for word in told) else []
    for cell in document.cells:
        found += [Claim(**whose.groupdict()) for mark in _marks(cell) if (whose := _WHOSE.fullmatch(mark))]
    return list(dict.fromkeys(found))


def assignments_of(document: Document) -> list[str]:
    """Return the assignments of a document's cells, the most frequent one first."""
    counts: Counter[str] = Counter()
    for cell in document.cells:
        marked = [which["assignment"] for mark in _marks(cell) if (which := _WHICH.match(mark))]
        named = marked[0] if marked else cell.labkit.get("assignment")
        counts.update([named] if isinstance(named, str) else [])
    return [name for name, _ in counts.most_common()]


def _marks(cell: FoundCell) -> Iterator[str]:
    """Yield the text of each line ``# labkit: …``."""
    for line in cell.source.splitlines() if "labkit" in cell.source.lower() else ():
        if ours := _LINE.match(line):
            yield ours["rest"]


def read_answers(
    document: Document, assignment: str, questions: Iterable[QuestionFacts], given: str = ""
) -> Answers:
    """Read the answers to ``questions``.

    given   the source of the given cells, whose names no helper may replace.
    """
    questions = list(questions)
    pieces = _pieces(document, assignment, {question.id for question in questions})
    notes: list[Remark] = []
    answers = {question.id: _answer(question, pieces, notes) for question in questions}
    known = {*names_defined_in(given), *(name for question in questions for name in question.defines)}
    own = _own_definitions(pieces)
    for name, source in answers.items():
        if source is not None:
            answers[name] = _with_helpers(name, source, own, known, notes)
    return Answers(answers, notes)


def _pieces(document: Document, assignment: str, questions: set[str]) -> list[_Piece]:
    """Cut the cells at their lines ``# labkit: …``; the code below a line belongs to its question."""
    found: list[_Piece] = []
    for cell in document.cells:
        question, ours = _question_by_metadata(cell, assignment, questions)
        parts: list[tuple[str | None, bool, list[str]]] = [(question, ours, [])]
        for line in cell.source.split("\n"):
            mark = _LINE.match(line) if "labkit" in line.lower() else None
            which = _WHICH.fullmatch(mark["rest"]) if mark else None
            if which and which["assignment"] == assignment:
                question = which["question"] if which["question"] in questions and not which["role"] else None
                parts.append((question, question is None, []))
            elif mark and _WHOSE.fullmatch(mark["rest"]):
                parts.append((None, True, []))
            else:
                parts[-1][2].append(line)
        for question, ours, lines in parts:
            source = "\n".join(lines).strip("\n")
            if source.strip() and cell.code:
                python = _without_magics(source[: MOST + 1])
                found.append(_Piece(python, question, ours, python != source[: MOST + 1]))
    return found


def _question_by_metadata(cell: FoundCell, assignment: str, questions: set[str]) -> tuple[str | None, bool]:
    """Return the cell's question by its metadata, and whether grading ignores the cell."""
    told = cell.labkit
    if told.get("assignment") == assignment:
        question = told.get("question")
        if told.get("role") == "answer" and isinstance(question, str) and question in questions:
            return question, False
        return None, True
    return next((question for question in questions if cell.id == answer_id(question)), None), False


def _answer(question: QuestionFacts, pieces: list[_Piece], notes: list[Remark]) -> str | None:
    def odd(kind: str, **facts: object) -> None:
        notes.append(note(kind, question=question.id, **facts))

    mine = [piece for piece in pieces if piece.question == question.id]
    sources = []
    for piece in mine:
        if piece.magics:
            odd("magics")
        if not is_unanswered(piece.source, question.stub) and piece.source not in sources:
            sources.append(piece.source)
    if not sources:
        # Look in cells without labels, or of another role.
        others = (piece.source for piece in reversed(pieces) if piece.question is None)
        found = next((source for source in others if _defines_all(source, question)), None)
        if found is not None or not mine:
            odd("deleted" if found is None else "elsewhere")
        return found
    whole = [source for source in sources if parse_source(source)]
    if whole and len(whole) < len(sources):
        odd("broken-copy")
        sources = whole
    if len(sources) > 1:
        odd("several", count=len(sources))
    source = "\n\n".join(sources)
    if len(source) > MOST:
        odd("too-long", most=MOST)
        return source[:MOST]
    missing = [name for name in question.defines if name not in names_defined_in(source)]
    if missing and parse_source(source):
        odd("undefined", names=", ".join(missing))
    return source


def _defines_all(source: str, question: QuestionFacts) -> bool:
    names = {*question.defines}
    return bool(names) and names <= {*names_defined_in(source)} and not is_unanswered(source, question.stub)


def _without_magics(source: str) -> str:
    """Remove IPython's magics if the source is valid Python without them."""
    if parse_source(source):
        return source
    # The rest of a cell is Python below %%time, but not below %%bash.
    without = _MAGIC.sub(lambda found: f"{found[1]}pass", source)
    return without if parse_source(without) else source


def _own_definitions(pieces: list[_Piece]) -> dict[str, tuple[_Place, str]]:
    """Return the last definition of each name in the student's additional cells: name -> (place, source)."""
    found: dict[str, tuple[_Place, str]] = {}
    for at, piece in enumerate(pieces):
        tree = None if piece.question or piece.ours else parse_source(piece.source)
        for node in tree.body if tree else ():
            for name in names_bound_by(node):
                lines = piece.source.split("\n")[first_line(node) - 1 : node.end_lineno]
                found[name] = ((at, node.lineno), "\n".join(lines))
    return found


def _with_helpers(
    question: str, source: str, own: dict[str, tuple[_Place, str]], known: set[str], notes: list[Remark]
) -> str:
    """Add definitions from other cells before an answer with these names."""
    taken: dict[_Place, str] = {}
    helpers: list[str] = []
    todo = [source]
    while todo:
        for name in sorted(_find_undefined_names(todo.pop()) - known):
            if name in own and own[name][0] not in taken:
                taken[own[name][0]] = own[name][1]
                helpers.append(name)
                todo.append(own[name][1])
    if not taken:
        return source
    notes.append(note("helpers", question=question, names=", ".join(sorted(helpers))))
    return "\n".join(taken[place] for place in sorted(taken)) + "\n\n" + source


def _find_undefined_names(source: str) -> set[str]:
    """Return the names that ``source`` uses but does not define."""
    tree = parse_source(source)
    used: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.stmt):
            bound |= {*names_bound_by(node)}
    return used - bound
