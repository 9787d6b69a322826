"""The files that came back under ``submitted/``: whose each is, and which of several is graded.

Those in archives count too, and in archives within these. Links are not followed. What one archive or one folder of an
archive may unpack to is bounded, so that a bad one costs nobody else their marks.

A file is whose its edition says, if the tag in it is that student's: nobody can make one without the teacher's
secret. Where the tag is lost, it is whose the names of file and folders say (an id, or a name that only one student
has). Where the two disagree, it is graded for nobody and the teacher is told.
"""

from __future__ import annotations

import hmac
import io
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

from labkit.base.files import reason

from ..assignment import Assignment
from ..draw import Numbers
from ..handout.folder import ClassFolder, numbers_of
from ..words import Remark, harmless
from .answers import Answers, Claim, assignments_of, claims_of, read_answers
from .document import MOST_BYTES, Document, WrongFile, note, read_document

_MOST_FILES = 20_000
# Bytes that a top folder of an archive may unpack to, as a learning platform makes one for each student; and all of it.
_MOST_IN_FOLDER, _MOST_IN_ARCHIVE = 100_000_000, 4_000_000_000
# Archives within archives: a class's, a student's, and one that the student's system made of a folder.
_MOST_DEEP = 3
# Files that systems and tools leave in folders.
_IGNORED = re.compile(
    r"(\.(?!\.$).*|__MACOSX|Thumbs\.db|desktop\.ini|__pycache__|README(\..*)?)", re.IGNORECASE
)

_SLACK = timedelta(minutes=1)
_AHEAD = timedelta(days=1)  # a student's clock may be in another zone, or wrong by hours


@dataclass(frozen=True)
class Submission:
    """A file that a student handed in, and remarks on it.

    when    by its own stamp (``stamped``), which ``labkit submit`` makes with the student's clock; else by the
            file's time, which copying and archives may change, as is a stamp that is still to come.
    named   whether the name of the file, or of a folder, is the student's.
    late    None if there is no deadline.
    """

    name: str
    document: Document = field(repr=False)
    when: datetime
    stamped: bool
    named: bool
    late: bool | None
    notes: list[Remark]


@dataclass(frozen=True)
class Collection:
    """Each student's newest submission by id, and ``strangers``: (file, reason) of files that count for nobody."""

    submissions: dict[str, Submission]
    missing: list[str]
    strangers: list[tuple[str, Remark]]


def collect(folder: ClassFolder) -> Collection:
    """Look through ``submitted/``; OSError if it cannot be read."""
    found: dict[str, list[Submission]] = {}
    strangers: list[tuple[str, Remark]] = []
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
            notes = [*filter(None, [odd])]
            stamp = _stamp(document, notes)
            late = None if folder.deadline is None else (stamp or when) > folder.deadline + _SLACK
            file = Submission(name, document, stamp or when, bool(stamp), by_name == owner, late, notes)
            found.setdefault(owner, []).append(file)
        elif odd:
            strangers.append((name, odd))
    submissions = {student: _newest(found[student]) for student in folder.students if student in found}
    missing = [student for student in folder.students if student not in found]
    return Collection(submissions, missing, strangers)


def take_in(folder: ClassFolder, assignment: Assignment) -> tuple[Collection, dict[str, Answers]]:
    """Read every file in the folder; return each student's answers with the remarks on their file."""
    came = collect(folder)
    answers = {}
    for student, found in came.submissions.items():
        read = answers_of(assignment, numbers_of(folder, assignment, student), found.document)
        answers[student] = replace(read, notes=found.notes + read.notes)
    return came, answers


def answers_of(assignment: Assignment, numbers: Numbers, document: Document) -> Answers:
    """Read the answers in an edition with these numbers."""
    return read_answers(
        document, assignment.name, assignment.question_facts(numbers), assignment.prologue(numbers)
    )


def _owner(document: Document, by_name: str | None, folder: ClassFolder) -> tuple[str | None, Remark | None]:
    """Return the file's student and a remark, if any; or None and a remark why nobody owns the file."""
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
        return None, note(
            "forged", *(["named"] if by_name else []), claimed=claims[0].student, by_name=by_name
        )
    return by_name, note("untagged" if by_name else "nobody")


def _is_genuine(claim: Claim, folder: ClassFolder) -> bool:
    tag = folder.tag(claim.student).encode()
    return claim.assignment == folder.assignment and hmac.compare_digest(claim.edition.encode(), tag)


# An id within a name; one that is a small number, as a list's first column has it, is met anywhere, so it has to
# begin the name and to stand apart: "2.ipynb", "2_small.ipynb", "2 (1).ipynb", but not "small 2.ipynb".
_WITHIN, _SHORT = r"(?<![0-9A-Za-z]){}(?![0-9A-Za-z])", r"^0*{}(?=[ _.,，、-]|$)"
# Systems mark a second copy in its name: " (1)", "- Copy (2)", "（1）".
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


def _stamp(document: Document, notes: list[Remark]) -> datetime | None:
    """Return the time of submission that the file states; append odd ones to ``notes``."""
    with suppress(KeyError, TypeError, ValueError):
        told = datetime.fromisoformat(document.labkit["submitted"])
        if told.tzinfo is not None and told <= _current_time() + _AHEAD:
            return told
        if told.tzinfo is not None:
            notes.append(note("future", when=told.strftime("%Y-%m-%d %H:%M")))
    return None


def _current_time() -> datetime:
    return datetime.now().astimezone()


def _newest(files: list[Submission]) -> Submission:
    """Return the file to grade: the newest one with the student's name, else the newest one.

    A file says by its tag whose edition it is, and whoever has a copy of it can hand one in. So one without a name
    does not take the place of one that bears it: the teacher is told of both.
    """
    *before, file = sorted(files, key=lambda file: (file.named, file.when, _natural(file.name)))
    later = [other for other in before if other.when > file.when]
    if later:
        file.notes.append(note("nameless", name=file.name, other=", ".join(other.name for other in later)))
    elif before:
        in_time = any(not earlier.late for earlier in before) and bool(file.late)
        file.notes.append(note("resubmitted", *["late"] * in_time, count=len(files), name=file.name))
    if file.late:
        when = file.when.strftime("%Y-%m-%d %H:%M")
        file.notes.append(note("late", *["stamped"] * file.stamped, when=when))
    return file


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]


def strangers_of(collection: Collection, folder: ClassFolder) -> Mapping[str, list[tuple[str, Remark]]]:
    """Group the files that count for nobody by the student named in them ("": none)."""
    names = _Names(folder)
    found: dict[str, list[tuple[str, Remark]]] = {}
    for name, why in collection.strangers:
        found.setdefault(names.owner(name) or "", []).append((name, why))
    return found


def files_in(folder: Path, strangers: list[tuple[str, Remark]]) -> Iterator[tuple[str, bytes, datetime]]:
    """Yield (name within the folder, content, time) of every file, those in archives too."""
    count = 0
    for path in _paths(folder, strangers):
        name = _decode_name(os.fsencode(path.relative_to(folder).as_posix()))
        if any(_IGNORED.fullmatch(part) for part in name.split("/")):
            continue
        if path.is_symlink() or not path.is_file():
            strangers.append((name, note("link")))
            continue
        count += 1
        if count > _MOST_FILES:
            strangers.append((name, note("too-many")))
            return
        try:
            when = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
            with open(path, "rb") as stream:
                if path.suffix.lower() == ".zip":
                    for member, content, time in _members(stream, name, strangers, Counter()):
                        yield member, content, time or when
                else:
                    yield name, stream.read(MOST_BYTES + 1), when
        except (OSError, ValueError, OverflowError) as error:
            strangers.append((name, note("unreadable", why=_describe_error(error))))


def _describe_error(error: Exception) -> str:
    return harmless(reason(error) if isinstance(error, OSError) else str(error))


def _decode_name(name: bytes) -> str:
    """Decode a file's name from UTF-8, or else from GBK, as Chinese systems write names."""
    try:
        return harmless(name.decode("utf-8"))
    except UnicodeDecodeError:
        return harmless(name.decode("gb18030", "replace"))


def _paths(folder: Path, strangers: list[tuple[str, Remark]]) -> list[Path]:
    """Lists everything in ``folder`` that is no folder itself, with links to folders, which are not followed."""

    def unread(error: OSError) -> None:
        name = os.path.relpath(error.filename, folder)
        strangers.append((_decode_name(os.fsencode(name)), note("unreadable", why=_describe_error(error))))

    found = []
    for above, inner, files in os.walk(folder, onerror=unread):
        found += [Path(above, name) for name in files]
        found += [path for name in inner if (path := Path(above, name)).is_symlink()]
    return sorted(found)


def _members(
    stream: IO[bytes],
    name: str,
    strangers: list[tuple[str, Remark]],
    taken: Counter[str],
    top: str = "",
    deep: int = 1,
) -> Iterator[tuple[str, bytes, datetime | None]]:
    """Yield (name, content, time) of every file in an archive called ``name``, and in those within it.

    taken   the bytes that each top folder, or file beside them, has had by now.
    top     the folder of the outer archive in which this one lies, "" for that itself.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries[:_MOST_FILES]:
                told = entry.filename.encode("utf-8", "surrogatepass")
                if not entry.flag_bits & 0x800:  # no UTF-8, which the format reads as cp437
                    with suppress(UnicodeError):
                        told = entry.filename.encode("cp437")
                inner = f"{name}/{_decode_name(told)}"
                if any(_IGNORED.fullmatch(part) for part in inner.split("/")):
                    continue
                whose = top or inner.removeprefix(name + "/").split("/")[0]
                packed = inner.lower().endswith(".zip")
                room = min(_MOST_IN_FOLDER - taken[whose], _MOST_IN_ARCHIVE - taken.total())
                with archive.open(entry) as member:
                    content = member.read(min(_MOST_IN_FOLDER if packed else MOST_BYTES, max(room, 0)) + 1)
                taken[whose] += len(content)
                if len(content) > room:
                    strangers.append((inner, note("too-many")))
                    continue
                if packed and deep < _MOST_DEEP:
                    yield from _members(io.BytesIO(content), inner, strangers, taken, whose, deep + 1)
                    continue
                time = None
                with suppress(ValueError, OverflowError, OSError):
                    time = datetime(*entry.date_time).astimezone()
                yield inner, content, time
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        strangers.append((name, note("unreadable", why=_describe_error(error))))
