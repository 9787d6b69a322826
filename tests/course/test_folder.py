"""A lesson's folder: the current one, importable, the same when asked again, gone with its process."""

import os
import subprocess
import sys
from pathlib import Path

import labkit

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
