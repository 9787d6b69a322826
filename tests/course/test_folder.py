"""A lesson's folder: the current one, importable, the same when asked again, gone with its process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import labkit
from labkit.course.processes.folder import Folder

CODE = """
import os
from pathlib import Path
from labkit.course import workspace
workspace()
print(os.getcwd())
Path("mine.py").write_text("word = 1")
os.chdir("/")
import mine
workspace()
assert os.path.samefile(os.path.dirname(mine.__file__), os.getcwd())
"""


def test_it_is_gone_when_the_kernel_has_ended(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(labkit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == Path(os.path.realpath(tmp_path))
    assert list(tmp_path.iterdir()) == []


ABANDONED = """
import os
from labkit.course import workspace
workspace()
print(os.getcwd(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_what_a_killed_kernel_left_is_taken_away_by_the_next_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = Folder()
    (tmp_path / "labkit-lesson-other").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(labkit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert Path(done.stdout.strip()).exists()
    assert Path(held.name).exists()  # the other process has seen it, and let it be
    with Folder() as new:
        assert not Path(done.stdout.strip()).exists()
        assert {path.name for path in tmp_path.iterdir()} == {
            Path(held.name).name, Path(new).name, "labkit-lesson-other",
        }  # fmt: skip
    held.cleanup()
    assert [path.name for path in tmp_path.iterdir()] == ["labkit-lesson-other"]
