"""A small assignment that changes with nobody: in the form in which a teacher writes their own."""

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from labkit_classroom.assignment import load
from labkit_classroom.intake import collecting

sys.path.insert(0, str(Path(__file__).parent))
import engine  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _template_closed():
    yield
    engine.close()


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The assignment ``small``: questions split and scatter, 2 points each."""
    folder = tmp_path_factory.mktemp("assignments") / "small"
    ignored = shutil.ignore_patterns("__pycache__")
    return load(shutil.copytree(Path(__file__).parent / "small", folder, ignore=ignored))


@pytest.fixture(autouse=True)
def today(monkeypatch):
    """The day of the tests' stamps is over, whenever they run."""
    monkeypatch.setattr(
        collecting, "_current_time", lambda: max(datetime.now(UTC), datetime(2027, 1, 1, tzinfo=UTC))
    )
