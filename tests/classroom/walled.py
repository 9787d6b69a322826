"""The wall that tests of grading stand behind: on Linux there must be one, or the tests fail."""

import os
import sys

import pytest

from labkit_classroom.wall import templates
from labkit_classroom.words import Problem

# Set it to the reason where the kernel truly forbids every wall: the tests that need one are then skipped.
VARIABLE = "LABKIT_TESTS_WITHOUT_WALL"


def way():
    """The strongest wall of this computer. Called by a module of tests as it is imported."""
    try:
        return templates.best()
    except Problem as none:
        if sys.platform == "linux" and not os.environ.get(VARIABLE):
            pytest.fail(
                f"no wall: {templates.try_ways()}. If it cannot be helped, {VARIABLE} takes the reason.",
                pytrace=False,
            )
        pytest.skip(f"no wall: {os.environ.get(VARIABLE) or none}", allow_module_level=True)
