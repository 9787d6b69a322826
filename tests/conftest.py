"""What every test may rely on: no machine, no language and no progress of another test."""

import pytest


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
