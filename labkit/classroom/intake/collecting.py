"""What came back: every file under ``submitted/``, whose it is, and which of several is graded.

A file is whose its edition says, if the tag in it is that student's: nobody can make one without the teacher's
secret. Where the tag is lost, it is whose the names of file and folders say (an id, or a name that only one student
has). Where the two disagree, it is graded for nobody and the teacher is told. Links are not followed, and archives
are read to one level within limits.
"""

from __future__ import annotations

import hmac
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ...base.files import reason
from ..assignment import Assignment
from ..handout.folder import EVERYBODY, ClassFolder
from ..handout.release import numbers_of
from .answers import Answers, Claim, Note, assignments_of, claims_of, read_answers
from .document import MOST_BYTES, Document, WrongFile, read_document

_MOST_FILES = 20_000
_MOST_IN_ARCHIVES = 500_000_000  # bytes
# What systems and tools leave in folders, and what is no submission of anything.
_IGNORED = re.compile(
    r"(\.(?!\.$).*|__MACOSX|Thumbs\.db|desktop\.ini|__pycache__|README(\..*)?)", re.IGNORECASE
)
_SLACK = timedelta(minutes=1)


@dataclass(frozen=True)
class Received:
    """A file that came back.

    when    by its own stamp (``stamped``), which ``labkit submit`` makes with the student's clock; else by the
            file's time, which copying and archives may change.
    late    None if there is no deadline.
    """

    name: str
    content: bytes = field(repr=False)
    document: Document = field(repr=False)
    when: datetime
    stamped: bool = False
    late: bool | None = None


@dataclass(frozen=True)
class Submission:
    """What is graded for a student: the newest of their files."""

    student: str
    file: Received
    notes: list[Note] = field(default_factory=list)


@dataclass(frozen=True)
class Collection:
    """``submissions`` by the students' ids; ``strangers``: (file, why) of what is graded for nobody."""

    submissions: dict[str, Submission]
    missing: list[str]
    strangers: list[tuple[str, Note]]


def collect(folder: ClassFolder) -> Collection:
    """Look through ``submitted/``; OSError if it cannot be read."""
    found: dict[str, list[tuple[Received, list[Note]]]] = {}
    strangers: list[tuple[str, Note]] = []
    names = _Names(folder)
    for name, content, when in _files(folder.submitted, strangers):
        try:
            document = read_document(content, name)
        except WrongFile as wrong:
            # Told with the student's marks where the name says whose it is.
            strangers.append((name, _note_wrong_file(wrong)))
            continue
        held = assignments_of(document)
        if held and held[0] != folder.assignment:
            strangers.append((name, _note_other_assignment(held[0], folder.assignment)))
            continue
        owner, notes, why = _owner(claims_of(document), names.owner(name), folder)
        if owner is None:
            assert why is not None
            strangers.append((name, why))
            continue
        file = _received(name, content, document, when, folder.deadline)
        found.setdefault(owner, []).append((file, notes))
    submissions = {}
    for student in folder.students:
        if student in found:
            submissions[student] = _newest(student, found[student])
    missing = [student for student in folder.students if student not in found]
    return Collection(submissions, missing, strangers)


def _owner(
    claims: list[Claim], by_name: str | None, folder: ClassFolder
) -> tuple[str | None, list[Note], Note | None]:
    """Whose a file is, what is odd about that, or why it is nobody's."""
    if by_name and not folder.individual and _shared(claims, folder):
        return by_name, [], None
    proven = sorted(
        {claim.student for claim in claims if claim.student in folder.students and _is_genuine(claim, folder)}
    )
    if len(proven) == 1:
        if by_name not in (None, proven[0]):
            assert by_name is not None
            return None, [], _note_another(proven[0], by_name)
        return proven[0], [], None
    if proven:
        return None, [], _note_two(proven)
    if claims and not _shared(claims, folder):
        return None, [], _note_forged(claims[0].student, by_name)
    if by_name:
        return by_name, [_note_untagged()], None
    return None, [], _note_nobody()


def _shared(claims: list[Claim], folder: ClassFolder) -> bool:
    """Whether it is the edition that all share, which says nothing of whose it is."""
    return any(claim.student == EVERYBODY and _is_genuine(claim, folder) for claim in claims)


def _is_genuine(claim: Claim, folder: ClassFolder) -> bool:
    return claim.assignment == folder.assignment and hmac.compare_digest(
        claim.edition.encode(), folder.tag(claim.student).encode()
    )


class _Names:
    """Whose file it is by the names of the file and its folders, from the inside out."""

    def __init__(self, folder: ClassFolder) -> None:
        self._ids = {
            id: re.compile(rf"(?<![0-9A-Za-z]){re.escape(id)}(?![0-9A-Za-z])", re.IGNORECASE)
            for id in folder.students
        }
        names = [student.name for student in folder.students.values()]
        self._names = {
            student.name: id for id, student in folder.students.items() if names.count(student.name) == 1
        }

    def owner(self, name: str) -> str | None:
        for part in reversed(re.split(r"[/\\]", name)):
            ids = {
                id for id, form in self._ids.items() if id.casefold() in part.casefold() and form.search(part)
            }
            if len(ids) == 1:
                return ids.pop()
            named = [name for name in self._names if name in part]
            named = [name for name in named if not any(name != other and name in other for other in named)]
            if len(named) == 1 and not ids:
                return self._names[named[0]]
        return None


def _files(folder: Path, strangers: list[tuple[str, Note]]) -> Iterator[tuple[str, bytes, datetime]]:
    """(name within the folder, content, time) of every file, those in archives too."""
    count, unpacked = 0, 0
    for path in _paths(folder):
        name = path.relative_to(folder).as_posix()
        if any(_IGNORED.fullmatch(part) for part in name.split("/")):
            continue
        if path.is_symlink() or not path.is_file():
            strangers.append((name, _note_link()))
            continue
        count += 1
        if count > _MOST_FILES:
            strangers.append((name, _note_too_many()))
            return
        try:
            when = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
            if path.suffix.lower() == ".zip":
                for member, content, time in _members(path, name, strangers, _MOST_IN_ARCHIVES - unpacked):
                    unpacked += len(content)
                    yield member, content, time or when
                continue
            with open(path, "rb") as stream:
                yield name, stream.read(MOST_BYTES + 1), when
        except (OSError, ValueError, OverflowError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            strangers.append((name, _note_unreadable(why)))


def _paths(folder: Path) -> list[Path]:
    """Everything in ``folder`` that is no folder itself; links to folders are among it, and are not followed."""
    found = []
    for above, inner, files in os.walk(folder):
        found += [Path(above, name) for name in files]
        found += [path for name in inner if (path := Path(above, name)).is_symlink()]
    return sorted(found)


def _members(
    path: Path, name: str, strangers: list[tuple[str, Note]], room: int
) -> Iterator[tuple[str, bytes, datetime | None]]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries[:_MOST_FILES]:
                # A name written in China without saying so is in GBK, which the format reads as cp437.
                told = entry.filename if entry.flag_bits & 0x800 else _as_gbk(entry.filename)
                inner = f"{name}/{told}"
                if any(_IGNORED.fullmatch(part) for part in inner.split("/")):
                    continue
                with archive.open(entry) as stream:
                    content = stream.read(min(MOST_BYTES, room) + 1)
                room -= len(content)
                if room < 0:
                    strangers.append((inner, _note_too_many()))
                    return
                time = None
                try:
                    time = datetime(*entry.date_time).astimezone()
                except (ValueError, OverflowError, OSError):
                    time = None
                yield inner, content, time
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        strangers.append((name, _note_unreadable(str(error))))


def _as_gbk(name: str) -> str:
    try:
        return name.encode("cp437").decode("gb18030")
    except UnicodeError:
        return name


def _received(
    name: str, content: bytes, document: Document, when: datetime, deadline: datetime | None
) -> Received:
    stamp = document.labkit.get("submitted")
    stamped = False
    if isinstance(stamp, str):
        try:
            told = datetime.fromisoformat(stamp)
            if told.tzinfo is not None:
                when, stamped = told, True
        except ValueError:
            pass
    late = None if deadline is None else when > deadline + _SLACK
    return Received(name, content, document, when, stamped, late)


def _newest(student: str, files: list[tuple[Received, list[Note]]]) -> Submission:
    files = sorted(files, key=lambda pair: (pair[0].when, _natural(pair[0].name)))
    file, notes = files[-1]
    notes = list(notes)
    if len(files) > 1:
        in_time = any(not earlier.late for earlier, _ in files[:-1]) and bool(file.late)
        notes.append(_note_resubmitted(len(files), file.name, in_time))
    if file.late:
        notes.append(_note_late(file))
    return Submission(student, file, notes)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]


def read_submission(folder: ClassFolder, assignment: Assignment, came: Collection, student: str) -> Answers:
    """What ``student`` answers, with all that was odd about their file."""
    found = came.submissions[student]
    numbers = numbers_of(folder, assignment, student)
    answers = read_answers(
        found.file.document, assignment.name, assignment.questions, numbers, assignment.prologue(numbers)
    )
    return Answers(answers.answers, found.notes + answers.notes, answers.claims)


def strangers_of(collection: Collection, folder: ClassFolder) -> Mapping[str, list[tuple[str, Note]]]:
    """The files that are graded for nobody, by the student whose name they bear; "" where they bear none."""
    names = _Names(folder)
    found: dict[str, list[tuple[str, Note]]] = {}
    for name, note in collection.strangers:
        found.setdefault(names.owner(name) or "", []).append((name, note))
    return found


def _note_wrong_file(wrong: WrongFile) -> Note:
    return Note("wrong-file", wrong.en, wrong.zh)


def _note_other_assignment(held: str, wanted: str) -> Note:
    return Note(
        "other-assignment",
        f"it is assignment {held}, not {wanted}",
        f"它是作业 {held}，不是 {wanted}",
    )


def _note_another(proven: str, by_name: str) -> Note:
    return Note(
        "another",
        f"it is the edition of {proven}, handed in as {by_name}'s: graded for neither",
        f"这是 {proven} 的版本，却以 {by_name} 的名义提交：两人都不按它计分",
    )


def _note_two(proven: list[str]) -> Note:
    listed = ", ".join(proven)
    return Note(
        "another",
        f"it holds the editions of {listed}: graded for none of them",
        f"里面混有 {listed} 的版本：都不按它计分",
    )


def _note_forged(claimed: str, by_name: str | None) -> Note:
    by = f" (by its name, of {by_name})" if by_name else ""
    by_zh = f"（按文件名属于 {by_name}）" if by_name else ""
    return Note(
        "forged",
        f"it says that it is the edition of {claimed}{by}, but its tag is none that this class was given",
        f"它自称是 {claimed} 的版本{by_zh}，但其中的标记不是发给这个班的",
    )


def _note_untagged() -> Note:
    return Note(
        "untagged",
        "the lines that say whose edition it is are lost; it was told by the file's name",
        "说明这是谁的版本的那一行不见了；是按文件名认出来的",
    )


def _note_nobody() -> Note:
    return Note(
        "nobody",
        "neither the file nor its name says whose it is: put the id into the file's name",
        "文件内容和文件名都没有说明是谁的：请把学号写进文件名",
    )


def _note_link() -> Note:
    return Note("link", "a link, or no regular file: not read", "它是链接，或不是普通文件：没有读取")


def _note_too_many() -> Note:
    return Note(
        "too-many", "more files than a class hands in: not read from here on", "文件太多：从这里起没有读取"
    )


def _note_unreadable(why: str) -> Note:
    return Note("unreadable", f"it cannot be read: {why}", f"无法读取：{why}")


def _note_resubmitted(count: int, name: str, in_time: bool) -> Note:
    en = f"{count} files came back; the newest was graded, {name}"
    zh = f"交了 {count} 个文件；批改的是最新的一个，{name}"
    if in_time:
        en += "; an earlier one was in time"
        zh += "；其中较早的一个没有迟交"
    return Note("resubmitted", en, zh)


def _note_late(file: Received) -> Note:
    when = file.when.strftime("%Y-%m-%d %H:%M")
    if file.stamped:
        return Note(
            "late", f"late: made at {when}, by the student's clock", f"迟交：{when}（按学生电脑的时钟）"
        )
    return Note("late", f"late: the file is of {when}", f"迟交：文件时间为 {when}")
