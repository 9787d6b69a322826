"""Running a lesson's notebook: a fresh kernel, every cell in order, outputs kept without what changes.

What differs from run to run (widget ids, timings, where printed text was cut) is taken out, so that the stored
outputs can be compared and readers without a kernel get the still picture of each widget.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from labkit.base.files import write_whole

from . import kernel

_CELL_TIMEOUT = 120  # seconds
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell of ``notebook`` in ``folder``, in place; raises nbclient.CellExecutionError.

    Starting the kernel is tried again (an overloaded computer can miss the first start), a cell never.
    """
    client = kernel.start(lambda: with_kernel(notebook, folder))
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    return without_volatile(notebook)


def store(notebook: NotebookNode, path: Path) -> None:
    """Write ``notebook`` to ``path``, whole or not at all; OSError leaves the file as it was."""
    write_whole(path, nbformat.writes(notebook) + "\n")


def with_kernel(notebook: NotebookNode, folder: Path) -> NotebookClient:
    """A client for ``notebook`` whose kernel runs in ``folder``; RuntimeError or TimeoutError if it does not start."""
    client = NotebookClient(
        notebook, timeout=_CELL_TIMEOUT, startup_timeout=kernel.STARTUP_TIMEOUT, kernel_name="python3",
        resources={"metadata": {"path": str(folder)}}, extra_arguments=["--log-level=ERROR"],
    )  # fmt: skip
    client.create_kernel_manager()
    try:
        client.start_new_kernel()
        client.start_new_kernel_client()
    except (RuntimeError, TimeoutError):
        client._cleanup_kernel()
        raise
    return client


def without_volatile(notebook: NotebookNode) -> NotebookNode:
    """Take out what differs between two runs of the same notebook."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
        if "outputs" in cell:
            cell.outputs = _streams_joined(cell.outputs)
    return notebook


def _streams_joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring texts of the same stream as one: where a kernel cuts them is a matter of timing."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and "name" in output and output.get("name") == joined[-1].get("name"):
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined
