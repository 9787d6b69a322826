"""What the tests of diagnose share."""

import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def _little_to_collect():
    """Every check-up has the garbage collected: what was there before the first test is not walked through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
