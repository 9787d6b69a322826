import pytest

import labkit


@pytest.fixture
def four():
    with labkit.simulate(gpus=4):
        yield
