"""The notebooks of the course, and a learner's own copy of them: without outputs, theirs to write in.

In the repository the notebooks are ``notebooks/``; in an installed labkit they lie in ``labkit/lessons``.

Each notebook of a copy carries in its metadata which edition of the lesson it is: a digest of its cells. So it is known
without a list of our own, which could be lost or wrong, what the learner has changed, whatever the file was renamed to,
and whether a newer labkit has a newer lesson. What a learner has changed or run is never written over.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from labkit.base.files import write_whole
from labkit.base.language import LANGUAGES, wrong

VARIABLE = "LABKIT_LESSONS"
INDEX = "index"
_METADATA, _EDITION = "labkit", "edition"

Notebook = dict[str, Any]  # as its file says it: nbformat would be one dependency more, for nothing


def source() -> Path:
    """The folder with ``en/`` and ``zh/`` as the authors ran them; nobody's to write in."""
    package = Path(__file__).parents[1]
    shipped = package / "lessons"
    return shipped if (shipped / "en").is_dir() else package.parent / "notebooks"


def names() -> list[str]:
    """``["00_start", …, "index"]``: what there is, in order, in every language."""
    return sorted(path.stem for path in (source() / "en").glob("*.ipynb"))


def default_folder() -> Path:
    """The folder of a learner's copy unless they say otherwise: what ``LABKIT_LESSONS`` names, else in their home.

    RuntimeError if nobody knows where home is.
    """
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / "labkit-lessons"


@dataclass(frozen=True)
class Copy:
    """One notebook of a copy: which lesson it is of, and what has become of it."""

    language: str
    name: str
    file: Path

    def __str__(self) -> str:
        return f"{self.language}/{self.name}"

    @property
    def lesson(self) -> Notebook:
        """The lesson as this labkit has it, without outputs."""
        path = source() / self.language / f"{self.name}.ipynb"
        return _as_never_run(json.loads(path.read_text("utf-8")), self.name)

    @property
    def title(self) -> str:
        """The heading of the lesson: ``03 · Who gets which rows?``."""
        return _text(self.lesson["cells"][0]).partition("\n")[0].lstrip("# ")

    def is_there(self) -> bool:
        return os.path.lexists(self.file)

    def is_touched(self) -> bool:
        """True if the learner put something into it, a change or an output, or if it is no copy of ours."""
        found = self._read()
        cells = found.get("cells", [])
        # What the index shows when it is run is nobody's work, and an old one would not know the new lessons.
        ran = self.name != INDEX and any(cell.get("outputs") for cell in cells)
        return ran or _edition_of(found) != _digest(cells)

    def is_current(self) -> bool:
        """True if it is of the edition that this labkit has."""
        return _edition_of(self._read()) == _edition_of(self.lesson)

    def _read(self) -> Notebook:
        try:
            found: Notebook = json.loads(self.file.read_text("utf-8"))
            _digest(found["cells"])
            _edition_of(found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}  # no notebook: whatever it is, it is not ours
        return found

    def write(self) -> None:
        """Make the file the lesson; what stood there is gone. OSError leaves it as it was."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, json.dumps(self.lesson, indent=1, ensure_ascii=False) + "\n")

    def freshen(self) -> Path:
        """Make the file the lesson, and keep what stood there beside it; gives where. OSError loses nothing."""
        aside = _keep_beside(self.file)
        try:
            self.write()
        except BaseException:
            aside.unlink()  # the file is as it was
            raise
        return aside


def copies(folder: Path) -> Iterator[Copy]:
    """Every notebook that a copy of the course in ``folder`` has, or should have."""
    for language in LANGUAGES:
        for name in names():
            yield Copy(language, name, folder / language / f"{name}.ipynb")


def find(lesson: str, folder: Path) -> list[Copy]:
    """The copies in ``folder`` of ``lesson``: ``03_split``, ``03``, ``index`` in each language, or ``zh/03_split``.

    Raises FileNotFoundError, in one line that lists what there is.
    """
    language, _, name = lesson.removesuffix(".ipynb").rpartition("/")
    known = names()
    meant = name if name in known else next((full for full in known if full.startswith(f"{name}_")), None)
    found = [copy for copy in copies(folder) if copy.name == meant and language in ("", copy.language)]
    if not found:
        listed = ", ".join(known)
        raise wrong(
            FileNotFoundError,
            en=f"no such lesson: {lesson!r}; there are {listed}, each also as en/… and zh/…",
            zh=f"没有课程 {lesson!r}；有的课程是 {listed}，前面可以加 en/ 或 zh/",
        )
    return found


@dataclass
class Laid:
    """The outcome of laying out a copy: notebooks new there, renewed, and kept though this labkit has a newer one."""

    new: list[Copy] = field(default_factory=list)
    renewed: list[Copy] = field(default_factory=list)
    kept: list[Copy] = field(default_factory=list)


def lay_out(folder: Path) -> Laid:
    """Make ``folder`` a copy of the course of this labkit's edition, but for what the learner has put there.

    OSError if something cannot be written; what was laid by then stays. ValueError if the folder is the authors' own.
    """
    if folder.resolve().is_relative_to(source().resolve()):
        raise wrong(
            en=f"{folder} holds the lessons as their authors keep them: a copy goes elsewhere",
            zh=f"{folder} 是作者存放课程原件的地方：副本请放到别处",
        )
    laid = Laid()
    for copy in copies(folder):
        if not copy.is_there():
            copy.write()
            laid.new.append(copy)
        elif copy.is_current():
            continue
        elif copy.is_touched():
            laid.kept.append(copy)
        else:
            copy.write()
            laid.renewed.append(copy)
    return laid


def _as_never_run(notebook: Notebook, name: str) -> Notebook:
    """The notebook without outputs and counts, marked with its edition.

    The tables of the index are its text, with the links to the lessons: they stand there before anything is run.
    """
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        outputs = cell.pop("outputs")
        del cell["execution_count"]
        tables = [output["data"].get("text/markdown") for output in outputs if "data" in output]
        if name == INDEX and tables and all(tables):
            cell |= {"cell_type": "markdown", "source": tables[0]}
        else:
            cell |= {"outputs": [], "execution_count": None}
    notebook["metadata"][_METADATA] = {_EDITION: _digest(notebook["cells"])}
    return notebook


def _text(cell: Notebook) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _digest(cells: list[Notebook]) -> str:
    """A digest of the lesson's texts, which tells one edition from another; editors change ids and metadata."""
    told = [[cell["cell_type"], _text(cell).rstrip()] for cell in cells]
    return sha256(json.dumps(told).encode()).hexdigest()[:16]


def _edition_of(notebook: Notebook) -> str:
    found = notebook.get("metadata", {}).get(_METADATA)
    return str(found.get(_EDITION, "")) if isinstance(found, dict) else ""


def _keep_beside(file: Path) -> Path:
    """Give what is in ``file`` a second name beside it, with the day in it, that nothing had; gives that."""
    for count in itertools.count(1):
        aside = file.with_name(f"{file.stem}.{date.today()}{f'-{count}' * (count > 1)}{file.suffix}")
        try:
            os.link(file, aside, follow_symlinks=True)  # needs no room, and is there whole or not at all
        except FileExistsError:
            continue
        except (OSError, NotImplementedError):  # a disk that knows no second names
            if aside.exists():
                continue
            try:
                shutil.copy2(file, aside)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
        return aside
    raise AssertionError  # for type checkers: there is no last number
