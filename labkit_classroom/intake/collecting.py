"""Collect the files under ``submitted/``: find the student of each, and choose which of several to grade.

Files in archives count, also in nested ones. Links are not followed. The unpacked size of an archive and of each of its
folders is limited.

A file belongs to the student named in its edition, if the tag is genuine. Without a tag it belongs to the student whose
id or unique name is in the name of the file or its folders. If both disagree, the file is not graded.
"""

from __future__ import annotations

import hmac
import io
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

from labkit.base.files import reason
from labkit.base.language import say

from ..assignment import Assignment
from ..draw import Numbers
from ..handout.folder import ClassFolder, numbers_of
from ..messages import Remark, replace_controls
from .answers import Answers, Claim, assignments_of, claims_of, read_answers
from .document import MOST_BYTES, Document, WrongFile, note, read_document

_MOST_FILES = 20_000
# Unpacked bytes of a top folder of an archive (learning platforms make one for each student), and of a whole archive.
_MOST_IN_FOLDER, _MOST_IN_ARCHIVE = 100_000_000, 4_000_000_000
# Levels of archives: a class's, a student's, and one made from a folder.
_MOST_DEEP = 3
# Files of systems and tools.
_IGNORED = re.compile(
    r"(\.(?!\.$).*|__MACOSX|Thumbs\.db|desktop\.ini|__pycache__|README(\..*)?)", re.IGNORECASE
)

_BAD_ARCHIVE = zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError
_SLACK = timedelta(minutes=1)
_AHEAD = timedelta(days=1)  # for students' clocks in another zone, or wrong by hours


@dataclass(frozen=True)
class Submission:
    """A student's file, and remarks on it.

    when    its time: from the stamp of ``labkit submit`` (``stamped``, the student's clock), or else the file's; the
            present instead of the future.
    named   whether the name of the file, or of a folder, is the student's.
    days_late   days begun since the deadline, 0 without a deadline.
    share       the share of the points that counts, by the rule for late work.
    """

    name: str
    document: Document = field(repr=False)
    when: datetime
    stamped: bool
    named: bool
    days_late: int
    share: float
    notes: list[Remark]


@dataclass(frozen=True)
class Collection:
    """Submissions by student, and the students without one.

    rejected     (file, reason) of files that count for no student.
    unreadable   those of students whose name is on a rejected file and who have no submission.
    missing      students without any file.
    """

    submissions: dict[str, Submission]
    unreadable: dict[str, list[tuple[str, Remark]]]
    missing: list[str]
    rejected: list[tuple[str, Remark]]


def collect(folder: ClassFolder) -> Collection:
    """Read all files in ``submitted/``. Raise OSError if the folder cannot be read."""
    found: dict[str, list[Submission]] = {}
    rejected: list[tuple[str, Remark]] = []
    names = _Names(folder)
    for name, content, when in files_in(folder.submitted, rejected):
        try:
            document = read_document(content)
        except WrongFile as wrong:
            # The name may still identify the student.
            rejected.append((name, wrong.note))
            continue
        by_name = names.owner(name)
        owner, odd = _owner(document, by_name, folder)
        if owner is not None:
            notes = [*filter(None, [odd])]
            time, is_stamped = _time(document, when, notes)
            days = folder.days_late(time - _SLACK) if time else 0
            share = max(0.0, 1 - folder.late_rate * days)
            time = time or _current_time()
            file = Submission(name, document, time, is_stamped, by_name == owner, days, share, notes)
            found.setdefault(owner, []).append(file)
        elif odd:
            rejected.append((name, odd))
    submissions = {student: _newest(found[student]) for student in folder.students if student in found}
    unreadable: dict[str, list[tuple[str, Remark]]] = {}
    for name, why in rejected:
        if (student := names.owner(name)) and student not in found:
            unreadable.setdefault(student, []).append((name, why))
    missing = [student for student in folder.students if student not in found and student not in unreadable]
    return Collection(submissions, unreadable, missing, rejected)


def take_in(folder: ClassFolder, assignment: Assignment) -> tuple[Collection, dict[str, Answers]]:
    """Read all files of the class; return also each student's answers, with remarks on the file."""
    came = collect(folder)
    answers = {}
    for student, found in came.submissions.items():
        read = answers_of(assignment, numbers_of(folder, assignment, student), found.document)
        answers[student] = replace(read, notes=found.notes + read.notes)
    return came, answers


def answers_of(assignment: Assignment, numbers: Numbers, document: Document) -> Answers:
    """Read the answers of an edition with these numbers."""
    return read_answers(
        document, assignment.name, assignment.question_facts(numbers), assignment.prologue(numbers)
    )


def _owner(document: Document, by_name: str | None, folder: ClassFolder) -> tuple[str | None, Remark | None]:
    """Return the file's student, and a remark if the tag is lost; or None and the reason."""
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


# An id within a name. A small number must begin it: "2.ipynb", "2_small.ipynb", "2 (1).ipynb", not "small 2.ipynb".
_WITHIN, _SHORT = r"(?<![0-9A-Za-z]){}(?![0-9A-Za-z])", r"^0*{}(?=[ _.,，、-]|$)"
# The marks of second copies: " (1)", "- Copy (2)", "（1）".
_COPY = re.compile(
    r"([ _-]*(copy|副本))?\s*[(（]\d{1,3}[)）](?=\.|$)|[ _-]+(copy|副本)(?=\.|$)", re.IGNORECASE
)


class _Names:
    """Finds a file's student by its name, or else by the names of its folders, the innermost first."""

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


def _time(document: Document, when: datetime, notes: list[Remark]) -> tuple[datetime | None, bool]:
    """Return the time of the file's stamp, or else ``when``, and whether it is the stamp's.

    Append a remark to ``notes`` for each of them that is in the future. Return None if both are.
    """
    stamp, now = None, _current_time()
    with suppress(KeyError, TypeError, ValueError):
        stamp = datetime.fromisoformat(document.labkit["submitted"])
    for time, words in (stamp, ("future", "stamped")), (when, ("future",)):
        if time and time.tzinfo and time <= now + _AHEAD:
            return min(time, now), time is stamp
        if time and time.tzinfo:
            notes.append(note(*words, when=time.strftime("%Y-%m-%d %H:%M")))
    return None, False


def _current_time() -> datetime:
    return datetime.now().astimezone()


def _newest(files: list[Submission]) -> Submission:
    """Return the file to grade: the newest with the student's name in its path, else the newest.

    Another student may hand in a copy of an edition, so a file without a name never replaces one with the name.
    """
    *before, file = sorted(files, key=lambda file: (file.named, file.when, _natural(file.name)))
    later = [other for other in before if other.when > file.when]
    if later:
        file.notes.append(note("nameless", name=file.name, other=", ".join(other.name for other in later)))
    elif before:
        in_time = any(not earlier.days_late for earlier in before) and file.days_late > 0
        file.notes.append(note("resubmitted", *["late"] * in_time, count=len(files), name=file.name))
    if file.days_late:
        when = file.when.strftime("%Y-%m-%d %H:%M")
        file.notes.append(note("late", *["stamped"] * file.stamped, when=when))
        if file.share < 1:
            file.notes.append(note("late-points", days=file.days_late, share=f"{file.share:.0%}"))
    return file


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]


def group_files(files: Iterable[tuple[str, Remark]]) -> list[str]:
    """Return a line for each rejected file, or for all files of an archive that have the same remark."""
    groups: dict[tuple[str, Remark], list[str]] = {}
    for name, why in files:
        archive = re.match(r".*?\.zip(?=/)", name, re.IGNORECASE)
        groups.setdefault((archive[0] if archive else name, why), []).append(name)
    return [
        say(en=f"{archive} ({len(names)} files): {why}", zh=f"{archive}（{len(names)} 个文件）：{why}")
        if len(names) > 1
        else say(en=f"{names[0]}: {why}", zh=f"{names[0]}：{why}")
        for (archive, why), names in groups.items()
    ]


def files_in(folder: Path, rejected: list[tuple[str, Remark]]) -> Iterator[tuple[str, bytes, datetime]]:
    """Yield (name within the folder, content, time) of every file, also of files in archives."""
    count = 0
    for path in _paths(folder, rejected):
        name = _decode_name(os.fsencode(path.relative_to(folder).as_posix()))
        if any(_IGNORED.fullmatch(part) for part in name.split("/")):
            continue
        if path.is_symlink() or not path.is_file():
            rejected.append((name, note("link")))
            continue
        count += 1
        if count > _MOST_FILES:
            rejected.append((name, note("too-many")))
            return
        try:
            when = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
            with open(path, "rb") as stream:
                if path.suffix.lower() == ".zip":
                    for member, content, time in _members(stream, name, rejected, Counter()):
                        yield member, content, time or when
                else:
                    yield name, stream.read(MOST_BYTES + 1), when
        except (OSError, ValueError, OverflowError) as error:
            rejected.append((name, note("unreadable", why=_describe_error(error))))


def _describe_error(error: Exception) -> str:
    return replace_controls(reason(error) if isinstance(error, OSError) else str(error))


def _decode_name(name: bytes) -> str:
    """Decode a file's name from UTF-8, or else from GBK, which Chinese systems use."""
    try:
        return replace_controls(name.decode("utf-8"))
    except UnicodeDecodeError:
        return replace_controls(name.decode("gb18030", "replace"))


def _paths(folder: Path, rejected: list[tuple[str, Remark]]) -> list[Path]:
    """List the files in ``folder`` and its folders, including links to folders, which are not followed."""

    def unread(error: OSError) -> None:
        name = os.path.relpath(error.filename, folder)
        rejected.append((_decode_name(os.fsencode(name)), note("unreadable", why=_describe_error(error))))

    found = []
    for above, inner, files in os.walk(folder, onerror=unread):
        found += [Path(above, name) for name in files]
        found += [path for name in inner if (path := Path(above, name)).is_symlink()]
    return sorted(found)


def _members(
    stream: IO[bytes],
    name: str,
    rejected: list[tuple[str, Remark]],
    taken: Counter[str],
    top: str = "",
    deep: int = 1,
) -> Iterator[tuple[str, bytes, datetime | None]]:
    """Yield (name, content, time) of every file in an archive called ``name`` and in nested archives.

    taken   bytes unpacked so far, by top folder or file of the outermost archive.
    top     the top folder that contains this archive, "" for the outermost archive.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries[:_MOST_FILES]:
                told = entry.filename.encode("utf-8", "surrogatepass")
                if not entry.flag_bits & 0x800:  # not UTF-8: zipfile has decoded it as cp437
                    with suppress(UnicodeError):
                        told = entry.filename.encode("cp437")
                inner = f"{name}/{_decode_name(told)}"
                if any(_IGNORED.fullmatch(part) for part in inner.split("/")):
                    continue
                whose = top or inner.removeprefix(name + "/").split("/")[0]
                packed = inner.lower().endswith(".zip")
                room = min(_MOST_IN_FOLDER - taken[whose], _MOST_IN_ARCHIVE - taken.total())
                try:
                    with archive.open(entry) as member:
                        content = member.read(
                            min(_MOST_IN_FOLDER if packed else MOST_BYTES, max(room, 0)) + 1
                        )
                except _BAD_ARCHIVE as error:
                    why = re.sub(
                        r"(of|for) .*?(?= is|$)| '.*'", "", _describe_error(error)
                    ).strip()  # no file name
                    rejected.append((inner, note("unreadable", why=why)))
                    continue
                taken[whose] += len(content)
                if len(content) > room:
                    rejected.append((inner, note("too-many")))
                    continue
                if packed and deep < _MOST_DEEP:
                    yield from _members(io.BytesIO(content), inner, rejected, taken, whose, deep + 1)
                    continue
                time = None
                with suppress(ValueError, OverflowError, OSError):
                    time = datetime(*entry.date_time).astimezone()
                yield inner, content, time
    except _BAD_ARCHIVE as error:
        rejected.append((name, note("unreadable", why=_describe_error(error))))
