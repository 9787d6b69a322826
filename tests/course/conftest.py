"""What the tests of the course share: modules of answers beside them, and progress that is a test's own."""

import sys
from pathlib import Path

import pytest

from labkit_course import progress

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "_unwritten", set())
