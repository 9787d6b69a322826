"""Features register themselves: an ordinary training script runs without any one of their files."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from labkit.base import ours
from simgpu import features
from simgpu.features import FEATURES
from tools.warm import python

SCRIPT = """
import io
import torch
from torch import nn
import labkit

labkit.simulate(gpus=2)
model = nn.DataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("cuda:0"))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.rand(6, 4)), torch.zeros(6, dtype=torch.long, device="cuda:0"))
    loss.backward()
    optimizer.step()
assert all(p.grad.device == torch.device("cuda:0") for p in model.parameters())
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
there = torch.load(file, map_location="cuda:1")["module.0.weight"]
assert there.device == torch.device("cuda:1")
assert torch.cuda.memory_allocated(1) > 0
try:
    there + model.module[0].weight
except RuntimeError as error:
    assert str(error).startswith("Expected all tensors to be on the same device"), error
else:
    raise AssertionError("devices mixed")
"""
# Imports torch once; then, for each file, a fork imports labkit from the copy without it, and runs the script.
WITHOUT_EACH = f"""
import os, sys, traceback
import torch._dynamo  # an optimizer does, which takes longer than all else

script = {SCRIPT!r}
for path in sys.argv[1:]:
    os.rename(path, path + ".away")
    if not os.fork():
        try:
            exec(script)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.wait()[1]:
        print("without", path)
    os.rename(path + ".away", path)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A folder with copies of the two packages, beside which nothing else is imported as these."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("labkit", "simgpu"):
        shutil.copytree(ours.HOME / name, folder / name)
    return folder


def run(copy, code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [*python(), "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=copy, capture_output=True, text=True)


def test_all_are_loaded_here():
    folder = Path(features.__file__).parent
    files = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    here = {name.removesuffix("__init__").removesuffix(".") for name in files} - {""}
    assert {name.removeprefix("simgpu.features.") for name in FEATURES} == here


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the files are taken out for forks")
def test_without_any_one_of_them_an_ordinary_script_runs(copy):
    files = list(copy.joinpath("simgpu", "features").rglob("*.py"))
    files.remove(copy / "simgpu" / "features" / "__init__.py")
    assert len(files) > 25
    found = run(copy, WITHOUT_EACH, *files)
    assert (found.returncode, found.stdout) == (0, ""), found.stderr


def test_without_all_of_them_it_runs_too(copy):
    folder = copy / "simgpu" / "features"
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    shutil.copy(away / "__init__.py", folder)
    try:
        found = run(copy, SCRIPT)
    finally:
        shutil.rmtree(folder)
        away.rename(folder)
    assert found.returncode == 0, found.stderr
