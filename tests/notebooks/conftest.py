"""One kernel for many notebooks: starting one and importing torch takes longer than most lessons."""

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from labkit_course.notebooks import kernel
from labkit_course.notebooks.execute import strip_volatile, with_kernel

# What a lesson leaves that the next one would not find in a kernel of its own.
FRESH = """
%reset -f
import os, sys, labkit, simgpu
if "labkit_ranks.notebook.session" in sys.modules and (ranks := sys.modules["labkit_ranks.notebook.session"].current()):
    ranks.close()
if simgpu.machine_in_use():
    simgpu.machine_in_use().close()
labkit.set_language("en")
os.chdir({folder!r})
"""


@pytest.fixture(scope="module")
def run(warm_kernels, tmp_path_factory):
    """Runs a notebook in a folder, cell by cell, in place; the first cell that fails raises CellExecutionError."""
    between = new_notebook(cells=[new_code_cell()])
    first = kernel.start(lambda: with_kernel(between, tmp_path_factory.mktemp("kernel")))

    def run(notebook, folder):
        first.execute_cell(new_code_cell(FRESH.format(folder=str(folder))), 0)
        client = NotebookClient(notebook, km=first.km, timeout=120)
        client.kc = first.kc
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        return strip_volatile(notebook)

    with first.setup_kernel():
        yield run
