"""What the READMEs show of labkit torchrun is what it says."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tools.warm import python

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("language", "name"), [("en", "README.md"), pytest.param("zh", "README.zh.md", marks=pytest.mark.more)]
)
def test_the_script_that_hangs_on_a_cluster(tmp_path, language, name):
    text = (ROOT / name).read_text("utf-8")
    (found,) = re.findall(r"```py\n(.*?)```.*?```\nlabkit (.*?)```.*?```text\n(.*?)```", text, re.DOTALL)
    script, command, output = found
    (tmp_path / "train.py").write_text(script, "utf-8")
    done = subprocess.run(
        [*python(), "-m", "labkit", *command.split()], cwd=tmp_path, capture_output=True, text=True,
        encoding="utf-8", env=os.environ | {"LABKIT_LANG": language, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith(output), done.stderr
    assert re.search("^Do: |^怎么办：", output, re.MULTILINE)
