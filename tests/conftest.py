"""What every test may rely on: no machine, no language and no progress of another test."""

import os
import time

import pytest

os.environ["LABKIT_PROGRESS"] = "off"  # the notebooks' kernels inherit it


@pytest.fixture(autouse=True)
def _clean_slate():
    yield
    import sys

    import labkit

    machines = sys.modules.get("labkit.machine")
    if machines is not None and machines.machine_in_use() is not None:
        machines.machine_in_use().close()
    labkit.set_language("en")


@pytest.fixture
def gpus():
    """Two simulated GPUs."""
    import labkit

    with labkit.simulate(gpus=2) as machine:
        yield machine


def pytest_configure(config):
    # nbval starts a kernel for each notebook. On an overloaded computer a start can hang: it is given up
    # after its timeout and tried again. A cell that fails is never tried again.
    try:
        from nbval import kernel
    except ImportError:
        return
    start = kernel.RunningKernel.__init__

    def start_again(self, *args, **kwargs):
        for attempt in (1, 2, 3):
            try:
                return start(self, *args, **kwargs)
            except (RuntimeError, TimeoutError):
                if attempt == 3:
                    raise
                time.sleep(1)

    kernel.RunningKernel.__init__ = start_again
