"""Keep the two languages of notebooks in sync: ``python -m tools.author.sync [--check] [--accept] [NOTEBOOK …]``.

Code is written in the English notebook. For each notebook (by default all), copy the code cells to the Chinese one, run
both, store the outputs, and record the pair of texts of each cell in ``notebooks/pairs.json``. If one of them fails,
nothing is written.

A text that changed in one language only is an error: change the other one too, or pass ``--accept`` if the other needs
no change (a typo). ``--check`` only prints differences.

Also reported: terms that the glossary has otherwise, hints on a right answer, and questions without a folded "why".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Collection
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from labkit.base.files import write_whole
from labkit.base.language import LANGUAGES
from labkit_course import glossary
from labkit_course.notebooks.execute import execute, store

from . import questions


def notebooks(root: Path) -> list[str]:
    """Return the names of all notebooks of the course, in order."""
    return sorted(path.stem for path in (root / "en").glob("*.ipynb"))


def lessons(root: Path) -> list[str]:
    """Return the names of the lessons: notebooks that begin with a number."""
    return [name for name in notebooks(root) if name[:2].isdigit()]


def read(root: Path, language: str, lesson: str) -> NotebookNode:
    """Return the notebook of a lesson in one language."""
    found: NotebookNode = nbformat.read(root / language / f"{lesson}.ipynb", as_version=4)
    return found


def differences(root: Path, lesson: str) -> list[str]:
    """Return the differences in cells and code between the languages, a line for each cell."""
    english, chinese = (read(root, language, lesson).cells for language in LANGUAGES)
    found = []
    if [cell.id for cell in english] != [cell.id for cell in chinese]:
        odd = sorted({cell.id for cell in english} ^ {cell.id for cell in chinese})
        return [f"{lesson}: the cells differ: {', '.join(odd) or 'other order'}"]
    for one, other in zip(english, chinese, strict=True):
        if one.cell_type != other.cell_type:
            found.append(f"{lesson}, cell {one.id}: {one.cell_type} in en, {other.cell_type} in zh")
        elif (
            one.cell_type == "code"
            and source_in("zh", one.source, one.metadata.get("tags", ())) != other.source
        ):
            found.append(f"{lesson}, cell {one.id}: the code differs")
    return found


def terms(root: Path, lesson: str) -> list[str]:
    """Return the places where a pair of texts does not use the glossary's terms, a line for each."""
    both = (read(root, language, lesson).cells for language in LANGUAGES)
    return [
        f"{lesson}, cell {one.id}: {problem}"
        for one, other in zip(*both, strict=True)
        if one.cell_type == "markdown"
        for problem in glossary.problems(one.source, other.source)
    ]


def pairs(root: Path, lesson: str) -> dict[str, list[str]]:
    """Return cell id -> [hash of the English text, hash of the Chinese text]."""
    both = [read(root, language, lesson).cells for language in LANGUAGES]
    return {
        one.id: [hashlib.sha256(cell.source.encode()).hexdigest()[:16] for cell in (one, other)]
        for one, other in zip(*both, strict=True)
        if one.cell_type == "markdown"
    }


def read_recorded_pairs(root: Path) -> dict[str, dict[str, list[str]]]:
    """Return the recorded pairs by notebook."""
    file = root / "pairs.json"
    known: dict[str, dict[str, list[str]]] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return known


def one_sided(recorded: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """Return the cells with a text changed in one language only since the record."""
    return [
        cell for cell, hashes in now.items()
        if cell in recorded and sum(a != b for a, b in zip(recorded[cell], hashes, strict=True)) == 1
    ]  # fmt: skip


def drift(root: Path, lesson: str) -> list[str]:
    """Return all differences between the languages of a notebook, a line for each cell."""
    found = differences(root, lesson)
    if any("the cells differ" in line for line in found):
        return found
    changed = one_sided(read_recorded_pairs(root).get(lesson, {}), pairs(root, lesson))
    return found + [f"{lesson}, cell {cell}: the text changed in one language only" for cell in changed]


def synchronise(root: Path, lesson: str, *, accept: bool = False) -> None:
    """Copy the code, run both notebooks, store outputs and pairs; raises SystemExit before writing anything."""
    english, chinese = (read(root, language, lesson) for language in LANGUAGES)
    if [(cell.id, cell.cell_type) for cell in english.cells] != [(c.id, c.cell_type) for c in chinese.cells]:
        raise SystemExit("\n".join(differences(root, lesson)))
    changed = one_sided(read_recorded_pairs(root).get(lesson, {}), pairs(root, lesson))
    if changed and not accept:
        raise SystemExit(
            f"{lesson}: the text changed in one language only: {', '.join(changed)}; "
            "change the other one too, or pass --accept"
        )
    for cell, other in zip(english.cells, chinese.cells, strict=True):
        if cell.cell_type == "code":
            other.source = source_in("zh", cell.source, cell.metadata.get("tags", ()))
            if cell.source.startswith("from labkit.course import predict\n"):  # it only asks
                cell.metadata["jupyter"] = {"source_hidden": True}
            other.metadata = cell.metadata.copy()
    for language, notebook in zip(LANGUAGES, (english, chinese), strict=True):
        try:
            execute(notebook, root / language)
        except CellExecutionError as error:
            raise SystemExit(f"{lesson} ({language}) failed, nothing was written:\n{error}") from None
    for language, notebook in zip(LANGUAGES, (english, chinese), strict=True):
        store(notebook, root / language / f"{lesson}.ipynb")
    now = read_recorded_pairs(root) | {lesson: pairs(root, lesson)}
    write_whole(root / "pairs.json", json.dumps(now, indent=1, sort_keys=True) + "\n")


def main(args: list[str]) -> int:
    """Synchronise or check the named notebooks, by default all."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.author.sync", description="Keep the two languages of the lessons together."
    )
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", help="such as 03_split; all if none is named")
    parser.add_argument("--check", action="store_true", help="say what differs, write nothing")
    parser.add_argument("--accept", action="store_true", help="record texts changed in one language only")
    parser.add_argument("--root", type=Path, default=Path("notebooks"), help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    known = notebooks(options.root)
    unknown = [name for name in options.names if name not in known]
    if unknown or not known:
        names = ", ".join(unknown) or str(options.root)
        print(f"no such notebook here: {names}; there are {', '.join(known) or 'none'}", file=sys.stderr)
        return 2
    found = []
    for lesson in options.names or known:
        if not options.check:
            synchronise(options.root, lesson, accept=options.accept)
            print(f"{lesson}: both languages run and stored", flush=True)
        elif problems := drift(options.root, lesson):
            found += problems
            continue
        found += terms(options.root, lesson)
        found += questions.problems(read(options.root, "en", lesson).cells)
    print("\n".join(found) or "the two languages agree")
    return 1 if found else 0


def source_in(language: str, source: str, tags: Collection[str]) -> str:
    """Return the source of an English code cell in ``language``: only the parameter differs."""
    return source.replace('language = "en"', f'language = "{language}"') if "parameters" in tags else source


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
