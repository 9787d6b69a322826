"""Says whose each file under ``submitted/`` is, and which of several is graded.

A file is whose its edition says, if the tag in it is that student's: nobody can make one without the teacher's
secret. Where the tag is lost, it is whose the names of file and folders say (an id, or a name that only one student
has). Where the two disagree, it is graded for nobody and the teacher is told.
"""

from __future__ import annotations

import hmac
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ..assignment import Assignment
from ..draw import Numbers
from ..handout.folder import ClassFolder
from ..handout.release import numbers_of
from ..words import Note
from .answers import Answers, Claim, assignments_of, claims_of, read_answers
from .document import Document, WrongFile, note, read_document
from .files import files_in

_SLACK = timedelta(minutes=1)
_AHEAD = timedelta(days=1)  # a student's clock may be in another zone, or wrong by hours


@dataclass(frozen=True)
class Submission:
    """A file that came back from a student, and what was odd about it.

    when    by its own stamp (``stamped``), which ``labkit submit`` makes with the student's clock; else by the
            file's time, which copying and archives may change, as is a stamp that is still to come.
    named   whether the name of the file, or of a folder, is the student's.
    late    None if there is no deadline.
    """

    name: str
    document: Document = field(repr=False)
    when: datetime
    stamped: bool = False
    named: bool = False
    late: bool | None = None
    notes: list[Note] = field(default_factory=list)


@dataclass(frozen=True)
class Collection:
    """``submissions``: each student's newest, by id; ``strangers``: (file, why) of what is graded for nobody."""

    submissions: dict[str, Submission]
    missing: list[str]
    strangers: list[tuple[str, Note]]


def collect(folder: ClassFolder) -> Collection:
    """Look through ``submitted/``; OSError if it cannot be read."""
    found: dict[str, list[Submission]] = {}
    strangers: list[tuple[str, Note]] = []
    names = _Names(folder)
    for name, content, when in files_in(folder.submitted, strangers):
        try:
            document = read_document(content)
        except WrongFile as wrong:
            # Told with the student's marks where the name says whose it is.
            strangers.append((name, wrong.note))
            continue
        by_name = names.owner(name)
        owner, odd = _owner(document, by_name, folder)
        if owner is not None:
            file = _received(name, document, when, folder.deadline)
            notes = [*filter(None, [odd]), *file.notes]
            found.setdefault(owner, []).append(replace(file, named=by_name == owner, notes=notes))
        elif odd:
            strangers.append((name, odd))
    submissions = {student: _newest(found[student]) for student in folder.students if student in found}
    missing = [student for student in folder.students if student not in found]
    return Collection(submissions, missing, strangers)


def take_in(folder: ClassFolder, assignment: Assignment) -> tuple[Collection, dict[str, Answers]]:
    """Reads all that came back, and each student's answers with everything that was odd about their file."""
    came = collect(folder)
    answers = {}
    for student, found in came.submissions.items():
        read = answers_of(assignment, numbers_of(folder, assignment, student), found.document)
        answers[student] = replace(read, notes=found.notes + read.notes)
    return came, answers


def answers_of(assignment: Assignment, numbers: Numbers, document: Document) -> Answers:
    """Reads the answers in an edition with these numbers."""
    return read_answers(document, assignment.name, assignment.asked(numbers), assignment.prologue(numbers))


def _owner(document: Document, by_name: str | None, folder: ClassFolder) -> tuple[str | None, Note | None]:
    """Gives the file's student and a note if that was odd; or None and a note why it is nobody's."""
    held, claims = assignments_of(document), claims_of(document)
    if held and held[0] != folder.assignment:
        return None, note("other-assignment", held=held[0], wanted=folder.assignment)
    proven = sorted({claim.student for claim in claims if _is_genuine(claim, folder)} & {*folder.students})
    if len(proven) > 1:
        return None, note("another", "several", proven=", ".join(proven))
    if proven and by_name not in (None, proven[0]):
        return None, note("another", proven=proven[0], by_name=by_name)
    if proven:
        return proven[0], None
    if claims:
        return None, note("forged", *["named"] * bool(by_name), claimed=claims[0].student, by_name=by_name)
    return by_name, note("untagged" if by_name else "nobody")


def _is_genuine(claim: Claim, folder: ClassFolder) -> bool:
    tag = folder.tag(claim.student).encode()
    return claim.assignment == folder.assignment and hmac.compare_digest(claim.edition.encode(), tag)


# An id within a name; one that is a small number, as a list's first column has it, is met anywhere, so it has to
# begin the name and to stand apart: "2.ipynb", "2_small.ipynb", "2 (1).ipynb", but not "small 2.ipynb".
_WITHIN, _SHORT = r"(?<![0-9A-Za-z]){}(?![0-9A-Za-z])", r"^0*{}(?=[ _.,，、-]|$)"
# What systems add to the name of a second copy: " (1)", "- Copy (2)", "（1）".
_COPY = re.compile(
    r"([ _-]*(copy|副本))?\s*[(（]\d{1,3}[)）](?=\.|$)|[ _-]+(copy|副本)(?=\.|$)", re.IGNORECASE
)


class _Names:
    """Finds a file's student by the names of the file and its folders, from the inside out."""

    def __init__(self, folder: ClassFolder) -> None:
        self._ids = {}
        for id in folder.students:
            form = _SHORT if id.isdecimal() and len(id) <= 3 else _WITHIN
            self._ids[id] = re.compile(form.format(re.escape(id)), re.IGNORECASE)
        held = Counter(student.name for student in folder.students.values())
        self._names = {one.name: one.id for one in folder.students.values() if held[one.name] == 1}

    def owner(self, name: str) -> str | None:
        for part in reversed(re.split(r"[/\\]", name)):
            part = _COPY.sub("", part)
            folded = part.casefold()
            ids = {id for id, form in self._ids.items() if id.casefold() in folded and form.search(part)}
            if len(ids) == 1:
                return ids.pop()
            named = [name for name in self._names if name in part]
            named = [name for name in named if not any(name != other and name in other for other in named)]
            if len(named) == 1 and not ids:
                return self._names[named[0]]
        return None


def _received(name: str, document: Document, when: datetime, deadline: datetime | None) -> Submission:
    stamped, notes = False, []
    with suppress(KeyError, TypeError, ValueError):
        told = datetime.fromisoformat(document.labkit["submitted"])
        if told.tzinfo is not None and told > _now() + _AHEAD:
            notes.append(note("future", when=told.strftime("%Y-%m-%d %H:%M")))
        elif told.tzinfo is not None:
            when, stamped = told, True
    late = None if deadline is None else when > deadline + _SLACK
    return Submission(name, document, when, stamped, late=late, notes=notes)


def _now() -> datetime:
    return datetime.now().astimezone()


def _newest(files: list[Submission]) -> Submission:
    """The one that is graded: the newest of those that bear the student's name, else the newest.

    A file says by its tag whose edition it is, and whoever has a copy of it can hand one in. So one without a name
    does not take the place of one that bears it: the teacher is told of both.
    """
    *before, file = sorted(files, key=lambda file: (file.named, file.when, _natural(file.name)))
    notes = list(file.notes)
    later = [other for other in before if other.when > file.when]
    if later:
        notes.append(note("nameless", name=file.name, other=", ".join(other.name for other in later)))
    elif before:
        in_time = any(not earlier.late for earlier in before) and bool(file.late)
        notes.append(note("resubmitted", *["late"] * in_time, count=len(files), name=file.name))
    if file.late:
        when = file.when.strftime("%Y-%m-%d %H:%M")
        notes.append(note("late", *["stamped"] * file.stamped, when=when))
    return replace(file, notes=notes)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]


def strangers_of(collection: Collection, folder: ClassFolder) -> Mapping[str, list[tuple[str, Note]]]:
    """Groups the files that are graded for nobody by the student whose name they bear ("": none)."""
    names = _Names(folder)
    found: dict[str, list[tuple[str, Note]]] = {}
    for name, why in collection.strangers:
        found.setdefault(names.owner(name) or "", []).append((name, why))
    return found
