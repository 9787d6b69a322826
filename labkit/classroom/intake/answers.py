"""The answers in what a student hands in, by our own ids, whatever has happened to the cells.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...base.language import say
from ..draw import Numbers
from ..handout.edition import answer_id
from .document import Cell, Document

MOST_SOURCE = 200_000  # letters of one answer: a long one has a thousand
_LINE = re.compile(r"^[ \t]*#+[ \t]*labkit[ \t]*[:：][ \t]*(?P<rest>.*?)[ \t]*$", re.IGNORECASE)
_WHOSE = re.compile(r"(?P<assignment>[\w-]+)[ \t]+student=(?P<student>\S+)[ \t]+edition=(?P<edition>\w+)")
_WHICH = re.compile(r"(?P<assignment>[\w-]+)(?:[.．。](?P<question>[\w-]+))?(?:[ \t]+(?P<role>\w+))?")
_MAGIC = re.compile(r"^([ \t]*)([%!].*|\?{1,2}\w[\w.]*|[\w.]+\?{1,2})[ \t]*$", re.MULTILINE)


class Asked(Protocol):
    """What is to be known of a question: of :class:`labkit.classroom.assignment.Question`."""

    @property
    def id(self) -> str: ...
    @property
    def defines(self) -> Sequence[str]: ...
    def unanswered(self, source: str, numbers: Numbers) -> bool: ...


@dataclass(frozen=True)
class Note:
    """Something that the student and the teacher should know; ``kind`` is a word for programs."""

    kind: str
    en: str
    zh: str

    def __str__(self) -> str:
        return say(en=self.en, zh=self.zh)


@dataclass(frozen=True)
class Claim:
    """Whose edition of which assignment a file says it is."""

    assignment: str
    student: str
    edition: str


@dataclass(frozen=True)
class Answers:
    """What a document answers.

    answers   question id -> source, None if it is not answered: the cell was deleted, or is as it was given out.
    notes     what was odd about it.
    claims    whose edition it says it is: one, if nobody has changed anything.
    """

    answers: dict[str, str | None]
    notes: list[Note] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    @property
    def unanswered(self) -> list[str]:
        return [question for question, source in self.answers.items() if source is None]

    @property
    def digest(self) -> str:
        """The same for the same answers, whatever else is in the file."""
        text = json.dumps(self.answers, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class _Piece:
    """Neighbouring lines of a cell that belong together. ``question`` is None for what is the student's own."""

    source: str
    question: str | None
    ours: bool = False  # a check, or what is given: nothing that is graded
    code: bool = True


def claims_of(document: Document) -> list[Claim]:
    """What the file says of whose it is, in its metadata and in its cells."""
    found = []
    told = document.labkit
    if all(isinstance(told.get(name), str) for name in ("assignment", "student", "edition")):
        found.append(Claim(told["assignment"], told["student"], told["edition"]))
    for cell in document.cells:
        for line in cell.source.splitlines() if "labkit" in cell.source else ():
            if (ours := _LINE.match(line)) and (whose := _WHOSE.fullmatch(ours["rest"])):
                found.append(Claim(whose["assignment"], whose["student"], whose["edition"]))
    return list(dict.fromkeys(found))


def assignments_of(document: Document) -> list[str]:
    """The assignments whose cells are in it, the one with the most first."""
    counts: dict[str, int] = {}
    for cell in document.cells:
        named = cell.labkit.get("assignment")
        for line in cell.source.splitlines() if "labkit" in cell.source else ():
            if (ours := _LINE.match(line)) and (which := _WHICH.match(ours["rest"])):
                named = which["assignment"]
                break
        if isinstance(named, str):
            counts[named] = counts.get(named, 0) + 1
    return sorted(counts, key=lambda name: -counts[name])


def read_answers(
    document: Document,
    assignment: str,
    questions: Iterable[Asked],
    numbers: Numbers,
    given: str = "",
) -> Answers:
    """The answers to ``questions`` of the edition with these ``numbers``.

    given   the source of what every answer may use, so that nobody's own variant of it is taken for a helper.
    """
    questions = list(questions)
    pieces = _pieces(document, assignment, {question.id for question in questions})
    notes: list[Note] = []
    answers: dict[str, str | None] = {}
    for question in questions:
        answers[question.id] = _answer(question, numbers, pieces, notes)
    known = _defined(given) | {name for question in questions for name in question.defines}
    own = [piece.source for piece in pieces if piece.question is None and not piece.ours and piece.code]
    defined = _own_definitions(own)
    for name, source in answers.items():
        if source is not None:
            answers[name] = _with_helpers(name, source, defined, known, notes)
    return Answers(answers, notes, claims_of(document))


def _pieces(document: Document, assignment: str, questions: set[str]) -> list[_Piece]:
    found: list[_Piece] = []
    for cell in document.cells:
        question, ours = _told_by_metadata(cell, assignment, questions)
        lines: list[str] = []

        def end(question: str | None, ours: bool, lines: list[str], code: bool = cell.code) -> None:
            source = "\n".join(lines).strip("\n")
            if source.strip() and (code or question):
                found.append(_Piece(source[: MOST_SOURCE + 1], question, ours, code))

        for line in cell.source.split("\n"):
            mark = _LINE.match(line) if "labkit" in line.lower() else None
            which = _WHICH.fullmatch(mark["rest"]) if mark else None
            whose = _WHOSE.fullmatch(mark["rest"]) if mark else None
            if whose or (which and which["assignment"] == assignment):
                end(question, ours, lines)
                lines = []
                question = which["question"] if which and not which["role"] else None
                question = question if question in questions else None
                ours = question is None
            else:
                lines.append(line)
        end(question, ours, lines)
    return found


def _told_by_metadata(cell: Cell, assignment: str, questions: set[str]) -> tuple[str | None, bool]:
    """(question, whether it is a cell of ours that is not graded)."""
    told = cell.labkit
    if told.get("assignment") == assignment:
        question = told.get("question")
        if told.get("role") == "answer" and isinstance(question, str) and question in questions:
            return question, False
        return None, True
    for question in questions:
        if cell.id == answer_id(question):
            return question, False
    return None, False


def _answer(question: Asked, numbers: Numbers, pieces: list[_Piece], notes: list[Note]) -> str | None:
    mine = [piece for piece in pieces if piece.question == question.id]
    sources = []
    for piece in mine:
        source = _without_magics(piece.source)
        if source != piece.source:
            notes.append(_note_magics(question.id))
        if not _is_unanswered(question, source, numbers) and source not in sources:
            sources.append(source)
            if not piece.code:
                notes.append(_note_retyped(question.id))
    if not sources:
        return _elsewhere(question, numbers, pieces, notes, deleted=not mine)
    if len(sources) > 1:
        parsed = [source for source in sources if _parsed(source) is not None]
        if parsed and len(parsed) < len(sources):
            notes.append(_note_broken_copy(question.id))
            sources = parsed
        if len(sources) > 1:
            notes.append(_note_several(question.id, len(sources)))
    source = "\n\n".join(sources)
    if len(source) > MOST_SOURCE:
        notes.append(_note_too_long(question.id))
        return source[:MOST_SOURCE]
    missing = [name for name in question.defines if name not in _defined(source)]
    if missing and _parsed(source) is not None:
        notes.append(_note_undefined(question.id, missing))
    return source


def _is_unanswered(question: Asked, source: str, numbers: Numbers) -> bool:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # something was written
    return not tree.body or question.unanswered(source, numbers)


def _elsewhere(
    question: Asked, numbers: Numbers, pieces: list[_Piece], notes: list[Note], deleted: bool
) -> str | None:
    """An answer in a cell that has lost every sign of being one, or was written into another one."""
    wanted = set(question.defines)
    for piece in reversed(pieces):
        if piece.question is None and piece.code and wanted:
            source = _without_magics(piece.source)
            if wanted <= _defined(source) and not _is_unanswered(question, source, numbers):
                notes.append(_note_elsewhere(question.id))
                return source
    if deleted:
        notes.append(_note_deleted(question.id))
    return None


def _without_magics(source: str) -> str:
    """Without IPython's own lines, where nothing else keeps it from being Python."""
    if _parsed(source) is not None:
        return source
    # %%time and the like take the rest of the cell as Python; %%bash and the like do not, and stay as they are.
    without = _MAGIC.sub(lambda found: f"{found[1]}pass", source)
    return without if _parsed(without) is not None else source


def _parsed(source: str) -> ast.Module | None:
    if len(source) > MOST_SOURCE:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names_bound(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a cell gives a meaning."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return set()


def _defined(source: str) -> set[str]:
    tree = _parsed(source)
    return set().union(*(_names_bound(node) for node in tree.body)) if tree else set()


def _own_definitions(sources: list[str]) -> dict[str, tuple[int, str]]:
    """What the student defines in cells of their own: name -> (its place, its source); the last one counts."""
    found: dict[str, tuple[int, str]] = {}
    place = 0
    for source in sources:
        source = _without_magics(source)
        tree = _parsed(source)
        for node in tree.body if tree else ():
            place += 1
            for name in _names_bound(node):
                found[name] = (place, _lines(source, node))
    return found


def _lines(source: str, node: ast.stmt) -> str:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "\n".join(source.split("\n")[first - 1 : node.end_lineno])


def _with_helpers(
    question: str, source: str, own: dict[str, tuple[int, str]], known: set[str], notes: list[Note]
) -> str:
    """The answer, after those of the student's own definitions in other cells that it cannot do without."""
    taken: dict[int, str] = {}
    helpers: list[str] = []
    todo = [source]
    while todo:
        for name in sorted(_used(todo.pop()) - known):
            if name in own and own[name][0] not in taken:
                taken[own[name][0]] = own[name][1]
                helpers.append(name)
                todo.append(own[name][1])
    if not taken:
        return source
    notes.append(_note_helpers(question, sorted(helpers)))
    return "\n".join(taken[place] for place in sorted(taken)) + "\n\n" + source


def _used(source: str) -> set[str]:
    """The names that ``source`` uses and does not define."""
    tree = _parsed(source)
    if tree is None:
        return set()
    used: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.stmt):
            bound |= _names_bound(node)
    return used - bound


def _note_deleted(question: str) -> Note:
    return Note(
        "deleted",
        f"{question}: its cell is not in the file; it counts as not answered",
        f"{question}：文件里没有这道题的单元格，按未作答处理",
    )


def _note_several(question: str, count: int) -> Note:
    return Note(
        "several",
        f"{question}: {count} cells belong to it; they were taken together, from top to bottom",
        f"{question}：有 {count} 个单元格属于这道题，已按从上到下的顺序合在一起",
    )


def _note_broken_copy(question: str) -> Note:
    return Note(
        "broken-copy",
        f"{question}: of several cells those that are not Python were left out",
        f"{question}：几个单元格中，有语法错误的没有采用",
    )


def _note_retyped(question: str) -> Note:
    return Note(
        "retyped",
        f"{question}: its cell was no code cell any more; its text was taken as code",
        f"{question}：单元格已不是代码类型，其中的文字按代码处理",
    )


def _note_elsewhere(question: str) -> Note:
    return Note(
        "elsewhere",
        f"{question}: the answer stood in a cell without its mark; it was found by what it defines",
        f"{question}：答案所在的单元格没有标记，是根据它定义的名字找到的",
    )


def _note_magics(question: str) -> Note:
    return Note(
        "magics",
        f"{question}: lines that begin with % or ! were left out",
        f"{question}：以 % 或 ! 开头的行没有采用",
    )


def _note_helpers(question: str, names: list[str]) -> Note:
    listed = ", ".join(names)
    return Note(
        "helpers",
        f"{question}: it needs {listed}, which was taken from your other cells",
        f"{question}：用到了 {listed}，已从你的其他单元格中取来",
    )


def _note_undefined(question: str, names: list[str]) -> Note:
    listed = ", ".join(names)
    return Note(
        "undefined",
        f"{question}: the answer does not define {listed}",
        f"{question}：答案里没有定义 {listed}",
    )


def _note_too_long(question: str) -> Note:
    return Note(
        "too-long",
        f"{question}: only the first {MOST_SOURCE:,} letters were taken",
        f"{question}：只取了前 {MOST_SOURCE:,} 个字符",
    )
