"""Notebooks as files, in the one format that labkit writes."""

from __future__ import annotations

from pathlib import Path

import nbformat


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook in a file, in the format that labkit's are written in."""
    found: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    return found


def made(cells: list[dict[str, object]]) -> nbformat.NotebookNode:
    """A new notebook for Python of these cells."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    found: nbformat.NotebookNode = nbformat.from_dict(
        {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    )
    return found


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Store ``notebook``; the folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
