"""``python -m labkit.course.sync [LESSON …]``: keep the two languages of the lessons together.

English is where code is written. For each lesson (all of them, if none is named) the code cells are copied
to the Chinese notebook, both notebooks are run and their outputs stored, and the pair of texts of each
cell is recorded in ``notebooks/pairs.json``: a test fails when one of the two changes alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import nbformat

from .notebook import execute

LANGUAGES = ("en", "zh")


def lessons(root: Path) -> list[str]:
    """The names of the lessons, in order."""
    return sorted(path.stem for path in (root / "en").glob("*.ipynb"))


def read(root: Path, language: str, lesson: str) -> nbformat.NotebookNode:
    """The notebook of a lesson in one language."""
    return nbformat.read(root / language / f"{lesson}.ipynb", as_version=4)


def differences(root: Path, lesson: str) -> list[str]:
    """What keeps the two notebooks of a lesson from being one lesson, a line for each cell."""
    english, chinese = (read(root, language, lesson).cells for language in LANGUAGES)
    found = []
    if [cell.id for cell in english] != [cell.id for cell in chinese]:
        odd = sorted({cell.id for cell in english} ^ {cell.id for cell in chinese})
        return [f"{lesson}: the cells differ: {', '.join(odd) or 'other order'}"]
    for one, other in zip(english, chinese, strict=True):
        if one.cell_type != other.cell_type:
            found.append(f"{lesson}, cell {one.id}: {one.cell_type} in en, {other.cell_type} in zh")
        elif one.cell_type == "code" and _in("zh", one) != other.source:
            found.append(f"{lesson}, cell {one.id}: the code differs")
    return found


def pairs(root: Path, lesson: str) -> dict[str, list[str]]:
    """Cell id -> the hashes of its English and its Chinese text."""
    both = [read(root, language, lesson).cells for language in LANGUAGES]
    return {
        one.id: [hashlib.sha256(cell.source.encode()).hexdigest()[:16] for cell in (one, other)]
        for one, other in zip(*both, strict=True)
        if one.cell_type == "markdown"
    }


def one_sided(recorded: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """The cells whose text changed in one language only since it was recorded."""
    return [
        cell for cell, hashes in now.items()
        if cell in recorded and sum(a != b for a, b in zip(recorded[cell], hashes, strict=True)) == 1
    ]  # fmt: skip


def _in(language: str, cell) -> str:
    """The source of an English code cell in ``language``: only the parameter differs."""
    if "parameters" not in cell.metadata.get("tags", []):
        return cell.source
    return cell.source.replace('language = "en"', f'language = "{language}"')


def synchronise(root: Path, lesson: str) -> None:
    """Copy the code, run both notebooks, store their outputs."""
    english, chinese = (read(root, language, lesson) for language in LANGUAGES)
    by_id = {cell.id: cell for cell in chinese.cells}
    for cell in english.cells:
        if cell.id not in by_id:
            raise SystemExit(f"{lesson}: cell {cell.id} has no Chinese counterpart; write it first")
        if cell.cell_type == "code":
            by_id[cell.id].source = _in("zh", cell)
            by_id[cell.id].metadata = cell.metadata
    for language, notebook in zip(LANGUAGES, (english, chinese), strict=True):
        execute(notebook, root / language)
        nbformat.write(notebook, root / language / f"{lesson}.ipynb")


def main(names: list[str]) -> int:
    """Synchronise the named lessons, or all."""
    root = Path("notebooks")
    known = lessons(root)
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        print(
            f"no such lesson here: {', '.join(unknown) or root}; there are {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    recorded_file = root / "pairs.json"
    recorded = json.loads(recorded_file.read_text("utf-8")) if recorded_file.exists() else {}
    for lesson in names or known:
        synchronise(root, lesson)
        recorded[lesson] = pairs(root, lesson)
        print(f"{lesson}: both languages run and stored")
    recorded_file.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
