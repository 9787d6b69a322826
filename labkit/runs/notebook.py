"""Notebooks as files, in the one format that labkit writes."""

from __future__ import annotations

from pathlib import Path

import nbformat


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook in a file, in the format that labkit's are written in."""
    found: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    return found


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Store ``notebook``; the folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
