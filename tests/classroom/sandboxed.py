"""The sandbox for tests of grading: on Linux there must be one, or the tests fail."""

import os
import sys

import pytest

from labkit_classroom.messages import Problem
from labkit_classroom.sandbox import isolation

# Set it to the reason where the kernel truly forbids every sandbox: the tests that need one are then skipped.
VARIABLE = "LABKIT_TESTS_WITHOUT_WALL"


def way():
    """The strongest sandbox of this computer. Called by a module of tests as it is imported."""
    try:
        return isolation.best_sandbox()
    except Problem as none:
        if sys.platform == "linux" and not os.environ.get(VARIABLE):
            pytest.fail(
                f"no sandbox: {isolation.try_sandboxes()}. If it cannot be helped, {VARIABLE} takes the reason.",
                pytrace=False,
            )
        pytest.skip(f"no sandbox: {os.environ.get(VARIABLE) or none}", allow_module_level=True)
