"""Finds the answers in what a student hands in, whatever has happened to the cells.

A cell of an edition says whose it is twice: in its metadata, which Colab and converters lose, and in a first line
``# labkit: NAME.QUESTION``, which a student may delete. Either is enough. If both are gone, the cell's own id is, and
if that is gone too, the cell that defines what the question asks for. Cells that were doubled, split or merged are
put together in the order of the notebook, as running all of them would; what was not touched counts for nothing.
Nothing is run here.
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
from ..source import MOST, QuestionFacts, is_unanswered, names_bound_by, names_defined_in, parse_source
from ..words import Remark
from .document import Document, FoundCell, note

_LINE = re.compile(r"^[ \t]*#+[ \t]*labkit[ \t]*[:：][ \t]*(?P<rest>.*?)[ \t]*$", re.IGNORECASE)
_WHOSE = re.compile(r"(?P<assignment>[\w-]+)[ \t]+student=(?P<student>\S+)[ \t]+edition=(?P<edition>\w+)")
_WHICH = re.compile(r"(?P<assignment>[\w-]+)(?:[.．。](?P<question>[\w-]+))?(?:[ \t]+(?P<role>\w+))?")
_MAGIC = re.compile(r"^([ \t]*)([%!].*|\?{1,2}\w[\w.]*|[\w.]+\?{1,2})[ \t]*$", re.MULTILINE)

_Place = tuple[int, int]  # of a definition: cell, line


@dataclass(frozen=True)
class Claim:
    """A file's claim to be a student's edition of an assignment."""

    assignment: str
    student: str
    edition: str


@dataclass(frozen=True)
class Answers:
    """The answers in a document.

    answers   question id -> source, None if it is not answered: the cell was deleted, or is as it was given out.
    notes     what was odd about it.
    """

    answers: dict[str, str | None]
    notes: list[Remark] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """A digest of the answers alone, whatever else is in the file."""
        text = json.dumps(self.answers, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class _Piece:
    """Neighbouring lines of a cell that belong together. ``question`` is None for what is the student's own."""

    source: str
    question: str | None
    ours: bool  # a check or a given cell, which nobody grades
    magics: bool  # IPython's own lines were taken out


def claims_of(document: Document) -> list[Claim]:
    """Read the claims in the file's metadata and in its cells."""
    told: list[Any] = [document.labkit.get(name) for name in ("assignment", "student", "edition")]
    found = [Claim(*told)] if all(word and isinstance(word, str) for word in told) else []
    for cell in document.cells:
        found += [Claim(**whose.groupdict()) for mark in _marks(cell) if (whose := _WHOSE.fullmatch(mark))]
    return list(dict.fromkeys(found))


def assignments_of(document: Document) -> list[str]:
    """Return the assignments whose cells a document holds, the most frequent first."""
    counts: Counter[str] = Counter()
    for cell in document.cells:
        marked = [which["assignment"] for mark in _marks(cell) if (which := _WHICH.match(mark))]
        named = marked[0] if marked else cell.labkit.get("assignment")
        counts.update([named] if isinstance(named, str) else [])
    return [name for name, _ in counts.most_common()]


def _marks(cell: FoundCell) -> Iterator[str]:
    """Yield the text after ``# labkit:`` in each line of ours."""
    for line in cell.source.splitlines() if "labkit" in cell.source.lower() else ():
        if ours := _LINE.match(line):
            yield ours["rest"]


def read_answers(
    document: Document, assignment: str, questions: Iterable[QuestionFacts], given: str = ""
) -> Answers:
    """Read the answers to ``questions``.

    given   the source of what every answer may use, so that nobody's own variant of it is taken for a helper.
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
    """Cuts the cells at the lines of ours; the code below such a line belongs to the question that it names."""
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
    """Return the cell's question, and whether the metadata mark it as a cell that nobody grades."""
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
        # In cells that lost their labels, or in cells of another role.
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
    """Takes out IPython's own lines, if nothing else keeps the source from being Python."""
    if parse_source(source):
        return source
    # %%time and the like run the rest of the cell as Python; %%bash and the like do not, and stay.
    without = _MAGIC.sub(lambda found: f"{found[1]}pass", source)
    return without if parse_source(without) else source


def _own_definitions(pieces: list[_Piece]) -> dict[str, tuple[_Place, str]]:
    """Return the definitions in the student's own cells: name -> (place, source). The last one counts."""
    found: dict[str, tuple[_Place, str]] = {}
    for at, piece in enumerate(pieces):
        tree = None if piece.question or piece.ours else parse_source(piece.source)
        for node in tree.body if tree else ():
            for name in names_bound_by(node):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                lines = piece.source.split("\n")[first - 1 : node.end_lineno]
                found[name] = ((at, node.lineno), "\n".join(lines))
    return found


def _with_helpers(
    question: str, source: str, own: dict[str, tuple[_Place, str]], known: set[str], notes: list[Remark]
) -> str:
    """Put definitions from other cells before the answer that needs them."""
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
    """Return the names that ``source`` uses and does not define."""
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
