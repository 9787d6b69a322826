"""Run a lesson's notebook in a new kernel, and keep outputs without parts that change between runs.

Removing widget ids, timings and breaks in printed text makes stored outputs comparable, and leaves readers without a
kernel the picture of each widget.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert.preprocessors.coalescestreams import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from labkit.base.files import write_whole

from . import kernel

_CELL_TIMEOUT = 120  # seconds
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook: NotebookNode, folder: Path, cell_limit: int | None = _CELL_TIMEOUT) -> NotebookNode:
    """Run every cell of ``notebook`` in ``folder``, in place. Raises nbclient.CellExecutionError.

    Only the start of the kernel is retried, never a cell.

    cell_limit   seconds for a cell, None for no limit. Above it, raise nbclient's CellTimeoutError.
    """
    client = kernel.start(lambda: with_kernel(notebook, folder))
    client.timeout = cell_limit
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    return strip_volatile(notebook)


def store(notebook: NotebookNode, path: Path) -> None:
    """Write ``notebook`` to ``path`` atomically. An OSError leaves the file unchanged."""
    write_whole(path, nbformat.writes(notebook) + "\n")


def with_kernel(notebook: NotebookNode, folder: Path) -> NotebookClient:
    """Return a client for ``notebook`` with a kernel in ``folder``. Raises RuntimeError or TimeoutError."""
    client = NotebookClient(
        notebook, timeout=_CELL_TIMEOUT, startup_timeout=kernel.STARTUP_TIMEOUT, kernel_name="python3",
        resources={"metadata": {"path": str(folder)}}, extra_arguments=["--log-level=CRITICAL"],
    )  # fmt: skip
    client.create_kernel_manager()
    try:
        client.start_new_kernel()
        client.start_new_kernel_client()
    except (RuntimeError, TimeoutError):
        client._cleanup_kernel()
        raise
    return client


def strip_volatile(notebook: NotebookNode) -> NotebookNode:
    """Remove the parts that differ between two runs of a notebook."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    join_streams = CoalesceStreamsPreprocessor().preprocess_cell  # their breaks depend on timing
    for index, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
        join_streams(cell, {}, index)
    return notebook
