"""Convert a lesson's two notebooks to one text and back, each cell's Chinese below its English.

For writing and reviewing a lesson in an editor::

    python -m tools.author.bilingual 03_split > 03.txt     # both languages, side by side
    python -m tools.author.bilingual --write 03_split 03.txt
    python -m tools.author.sync 03_split                   # run and store

A cell begins with ``%% id`` (text) or ``%% id code``, possibly with a tag (``%% id code parameters``). In a text cell,
a line ``%% zh`` separates English and Chinese. Writing keeps the outputs of unchanged code cells, and the metadata of
all existing code cells.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.base.language import LANGUAGES
from labkit_classroom.cells import BETWEEN, BilingualCell, parse
from labkit_course.notebooks.execute import store
from tools.author.sync import read, source_in

_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def to_text(root: Path, name: str) -> str:
    """Return the notebook ``name`` in both languages as one text."""
    english, chinese = (read(root, language, name).cells for language in LANGUAGES)
    parts = []
    for one, other in zip(english, chinese, strict=True):
        tags = "".join(f" {tag}" for tag in one.metadata.get("tags", []))
        if one.cell_type == "code":
            parts.append(f"%% {one.id} code{tags}\n{one.source}\n")
        else:
            parts.append(f"%% {one.id}\n{one.source}\n{BETWEEN}\n{other.source}\n")
    return "\n".join(parts)


def write(root: Path, name: str, text: str) -> None:
    """Make the two notebooks of ``name`` from ``text``; raises ValueError with the line of a wrong format."""
    cells = parse(text)
    for language in LANGUAGES:
        path = root / language / f"{name}.ipynb"
        old_cells = {cell.id: cell for cell in read(root, language, name).cells} if path.exists() else {}
        made = [_cell(cell, language, old_cells) for cell in cells]
        path.parent.mkdir(parents=True, exist_ok=True)
        store(new_notebook(cells=made, metadata=_METADATA), path)


def _cell(cell: BilingualCell, language: str, known: Mapping[str, NotebookNode]) -> NotebookNode:
    source, tags = cell.text.in_language(language), [cell.tag] if cell.tag and cell.code else []
    made: NotebookNode = (
        new_code_cell(source_in(language, source, tags), id=cell.id)
        if cell.code
        else new_markdown_cell(source, id=cell.id)
    )
    if tags:
        made.metadata["tags"] = tags
    if tags == ["setup"] or source.startswith("from labkit.course import predict\n"):
        made.metadata["jupyter"] = {"source_hidden": True}
    before = known.get(cell.id)
    if not (cell.code and before and before.cell_type == "code"):
        return made
    for key, value in before.metadata.items():  # e.g. folded code
        if key != "tags":
            made.metadata[key] = value
    if before.source == made.source:
        made.update(outputs=before.outputs, execution_count=before.execution_count)
    return made


def main(args: list[str]) -> int:
    """Print a notebook as text, or write a notebook from a text."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.author.bilingual", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("name", help="the notebook, such as 03_split")
    parser.add_argument("text", nargs="?", help="with --write: the file to read")
    parser.add_argument("--write", action="store_true", help="make the notebooks from the text")
    parser.add_argument("--root", type=Path, default=Path("notebooks"), help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.write != bool(options.text):
        parser.error("--write and a file go together")
    try:
        if options.write:
            write(options.root, options.name, Path(options.text).read_text("utf-8"))
        else:
            print(to_text(options.root, options.name), end="")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
