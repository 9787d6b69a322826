"""The notebooks of the course, and the learner's copy of them, without outputs.

The notebooks are in ``notebooks/`` of the repository, or in ``labkit_course/lessons`` of an installed labkit. Each
notebook of a copy has the lesson's edition in its metadata, a digest of the cells. The digest tells whether the learner
changed the notebook, even under another name, and whether labkit has a newer edition. A notebook that the learner
changed or ran is never overwritten.
"""

from __future__ import annotations

import itertools
import json
import os
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

Notebook = dict[str, Any]  # parsed JSON, to avoid the dependency on nbformat


def source() -> Path:
    """Return the folder with the authors' notebooks in ``en/`` and ``zh/``, which no learner changes."""
    package = Path(__file__).parents[1]
    shipped = package / "lessons"
    return shipped if (shipped / "en").is_dir() else package.parent / "notebooks"


def names() -> list[str]:
    """Return the names of all notebooks in order: ``["00_start", …, "index"]``."""
    return sorted(path.stem for path in (source() / "en").glob("*.ipynb"))


def default_folder() -> Path:
    """Return the default folder of the copy: ``LABKIT_LESSONS``, or else ``~/labkit-lessons``.

    Raises RuntimeError without a home folder.
    """
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / "labkit-lessons"


@dataclass(frozen=True)
class LessonCopy:
    """A notebook of the learner's copy."""

    language: str
    name: str
    file: Path

    def __str__(self) -> str:
        return f"{self.language}/{self.name}"

    @property
    def lesson(self) -> Notebook:
        """The current edition of the lesson, without outputs."""
        path = source() / self.language / f"{self.name}.ipynb"
        return _as_never_run(json.loads(path.read_text("utf-8")), self.name)

    @property
    def title(self) -> str:
        """The heading of the lesson: ``03 · Who gets which rows?``."""
        return _text(self.lesson["cells"][0]).partition("\n")[0].lstrip("# ")

    def is_there(self) -> bool:
        return os.path.lexists(self.file)

    def is_touched(self) -> bool:
        """Return whether the learner changed or ran the notebook, or the file is no copy of a lesson."""
        found = self._read()
        cells = found.get("cells", [])
        # Ignore outputs of the index: a renewed index lists new lessons, and nothing of the learner's is lost.
        ran = self.name != INDEX and any(cell.get("outputs") for cell in cells)
        return ran or _edition_of(found) != _digest(cells)

    def is_current(self) -> bool:
        """Return whether the notebook has the current edition."""
        return _edition_of(self._read()) == _edition_of(self.lesson)

    def _read(self) -> Notebook:
        try:
            found: Notebook = json.loads(self.file.read_text("utf-8"))
            _digest(found["cells"])
            _edition_of(found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}  # no notebook, or not from labkit
        return found

    def write(self) -> None:
        """Overwrite the file with the lesson. An OSError leaves the file unchanged."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, json.dumps(self.lesson, indent=1, ensure_ascii=False) + "\n")

    def freshen(self) -> Path:
        """Replace the file by the lesson; return the path that keeps the former contents. An OSError loses nothing."""
        names = (
            f"{self.name}.{date.today()}{f'-{count}' * (count > 1)}.ipynb" for count in itertools.count(1)
        )
        aside = next(path for path in map(self.file.with_name, names) if not os.path.lexists(path))
        self.file.rename(aside)
        try:
            self.write()
        except BaseException:
            aside.rename(self.file)
            raise
        return aside


def copies(folder: Path) -> Iterator[LessonCopy]:
    """Yield every notebook of a copy in ``folder``, existing or missing."""
    for language in LANGUAGES:
        for name in names():
            yield LessonCopy(language, name, folder / language / f"{name}.ipynb")


def find(lesson: str, folder: Path) -> list[LessonCopy]:
    """Return the copies of ``lesson`` in ``folder``: ``03_split``, ``03`` or ``index`` in each language, or ``zh/03``.

    Raises FileNotFoundError with the list of lessons.
    """
    language, _, name = lesson.removesuffix(".ipynb").rpartition("/")
    known = names()
    meant = name if name in known else next((full for full in known if full.startswith(f"{name}_")), None)
    found = [copy for copy in copies(folder) if copy.name == meant and language in ("", copy.language)]
    if not found:
        listed = ", ".join(known)
        raise wrong(
            FileNotFoundError,
            en=f"no such lesson: {lesson!r}; the lessons are {listed}, also as en/… or zh/…",
            zh=f"没有课程 {lesson!r}；有的课程是 {listed}，前面可以加 en/ 或 zh/",
        )
    return found


@dataclass
class LayoutResult:
    """The result of :func:`lay_out`: notebooks that were added, renewed, or kept despite a newer edition."""

    new: list[LessonCopy] = field(default_factory=list)
    renewed: list[LessonCopy] = field(default_factory=list)
    kept: list[LessonCopy] = field(default_factory=list)


def lay_out(folder: Path) -> LayoutResult:
    """Create or renew the copy of the course in ``folder``, except notebooks that the learner changed or ran.

    Raises OSError if a file cannot be written, after the files before it; ValueError for the authors' own folder.
    """
    if folder.resolve().is_relative_to(source().resolve()):
        raise wrong(
            en=f"{folder} contains the authors' lessons: choose another folder for your copy",
            zh=f"{folder} 是作者存放课程原件的地方：副本请放到别处",
        )
    laid = LayoutResult()
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
    """Remove outputs and execution counts, and add the edition to the metadata.

    Turn the tables of the index into Markdown cells, so that its links work before any cell runs.
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
    """Return a digest of the cells' texts, without ids and metadata, which editors change."""
    texts = [[cell["cell_type"], _text(cell).rstrip()] for cell in cells]
    return sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _edition_of(notebook: Notebook) -> str:
    found = notebook.get("metadata", {}).get(_METADATA)
    return str(found.get(_EDITION, "")) if isinstance(found, dict) else ""
