"""The core stands alone: with ranks, classroom, course and content deleted, the rest of labkit works.

A copy of labkit without them runs in processes of its own. A command that wants what is gone says so in one line.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from labkit.base.ours import PACKAGES
from tools.warm import python

ROOT = Path(__file__).parent.parent
GONE = ("labkit_ranks", "labkit_classroom", "labkit_course", "labkit_content")
# Each command that wants one of them, and which.
WANTING = {
    "torchrun --nproc-per-node 2 train.py": "labkit_ranks", "sweep 03_split": "labkit_course",
    "lessons": "labkit_course", "lab": "labkit_course", "grade class": "labkit_classroom",
    "assignment list": "labkit_classroom", "submit mine.ipynb": "labkit_classroom",
}  # fmt: skip
MAKE = """
import torch
from torch import nn

def make():
    return nn.Linear(5, 2), torch.randn(8, 5)
"""
TRAIN = """
import torch
from torch import nn

model = nn.DataParallel(nn.Linear(5, 2).to("cuda:0"))
print(torch.cuda.device_count(), list(model(torch.randn(30, 5).to("cuda:0")).shape))
"""
SHOW = """
import torch
import labkit

with labkit.simulate(2), labkit.record() as trace:
    labkit.DataParallel(torch.nn.Linear(5, 2).to("cuda:0"))(torch.randn(4, 5).to("cuda:0")).sum().backward()
drawn = [labkit.draw_split(30, 8), labkit.draw_batches(30, batch_size=8), labkit.draw_shapes([32, 5], 2),
         labkit.draw_all_reduce(labkit.ring_all_reduce(4), 1), labkit.draw_flow(trace), labkit.draw_timeline(trace)]
print(len({type(axes) for axes in drawn}), "<svg" in labkit.split(10, 4)._repr_svg_())
for name in labkit.__all__:
    of_ranks = labkit._names.modules().get(name, "").startswith("labkit_ranks")
    if name.endswith("Explorer") and name != "Explorer" and not of_ranks:
        assert "<svg" in str(getattr(labkit, name)()._repr_mimebundle_()), name
print(labkit.get_language())
try:
    labkit.ranks
except ModuleNotFoundError as error:
    print(error)
"""
ABSENT = """raise ModuleNotFoundError("No module named '{name}'", name="{name}")"""
# Commands in one process, one after the other, with the exit code of each.
COMMANDS = """
import json, sys
from labkit_cli import main
for words in json.loads(sys.argv[1]):
    print("$", words, file=sys.stderr, flush=True)
    print("=>", main(words.split()), file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    for name in PACKAGES:
        if name in GONE:  # else Python would go on and find the package that is installed
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(ABSENT.format(name=name))
        else:
            shutil.copytree(ROOT / name, folder / name)  # with what is compiled, which else takes seconds
    (folder / "make.py").write_text(MAKE)
    (folder / "train.py").write_text(TRAIN)

    def run(*words):
        done = subprocess.run(
            [*python(), *words], cwd=folder, capture_output=True, text=True, encoding="utf-8",
            env=os.environ | {"PYTHONPATH": str(folder), "LABKIT_LANG": "en", "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        assert f"{ROOT}{os.sep}" not in done.stderr, "a file of the whole labkit was run"
        return done

    return run


def test_the_readmes_program(alone):
    text = (ROOT / "docs/examples.md").read_text("utf-8")
    examples = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    (code, output) = next(one for one in examples if "diagnose" not in one[0])  # that is a command's, below
    done = alone("-c", code)
    assert (done.stdout, done.returncode) == (output, 0), done.stderr


def test_pictures_and_explorers(alone):
    done = alone("-c", SHOW)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 True\nen\nthis installation of labkit lacks labkit_ranks\n"


def test_a_script_of_ones_own(alone):
    done = alone("-m", "labkit", "run", "--gpus", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 [30, 2]\n")
    assert "labkit" not in done.stderr


def test_commands(alone):
    words = ["diagnose make.py:make --gpus 2", "doctor", *WANTING]
    done = alone("-c", COMMANDS, json.dumps(words))
    said = dict(re.findall(r"^\$ (.*)\n((?:(?!=>).*\n)*=> .*)$", done.stderr, re.MULTILINE))
    assert list(said) == words, done.stderr
    assert said["diagnose make.py:make --gpus 2"] == "=> 0"
    assert said["doctor"] in ("=> 0", "=> 1")  # the computer may lack something that lessons want
    assert "every run starts from seed 0" in done.stdout
    assert "PyTorch" in done.stdout
    for command, part in WANTING.items():
        assert said[command] == f"labkit: this installation of labkit lacks {part}\n=> 69", command
