"""The table "Your launcher" of docs/ranks.md: each of its commands runs a script that nothing of labkit is in."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "launchers"
DOCS = Path(__file__).parents[2] / "docs"
# The script, the package that it needs, labkit's command, and what the ranks print.
ROWS = [
    ("plain", None, "labkit torchrun --nproc-per-node 2 train.py", "[8.0, 8.0]"),
    ("plain", None, "labkit run --gpus 2 torchrun --nproc-per-node 2 train.py", "[8.0, 8.0]"),
    ("plain", None, "labkit run --gpus 2 python -m torch.distributed.run --nproc-per-node 2 train.py", "[8.0, 8.0]"),
    ("spawns", None, "labkit run --gpus 2 train.py", "[3.0, 3.0]"),
    ("accelerates", "accelerate", "labkit torchrun --nproc-per-node 2 train.py", "[0, 1], 2 batches, cuda:{rank}"),
    ("accelerates", "accelerate", "labkit run --gpus 2 accelerate launch --multi_gpu --num_processes 2 train.py",
     "[0, 1], 2 batches, cuda:{rank}"),
    ("deepspeeds", "deepspeed", "labkit run --gpus 2 deepspeed --num_gpus 2 train.py",
     "3 steps, better True, cuda:{rank}"),
    ("lightnings", "lightning", "labkit run --gpus 2 train.py ddp", "4 steps"),
    ("lightnings", "lightning", "labkit run --gpus 2 train.py fsdp", "4 steps"),
    ("lightnings", "lightning", "labkit torchrun --nproc-per-node 2 train.py ddp", "4 steps"),
    ("trains", "transformers", "labkit torchrun --nproc-per-node 2 train.py", "4 steps, 1 GPUs each"),
]  # fmt: skip


def run(tmp_path, script, command):
    (tmp_path / "train.py").write_text((HERE / f"{script}.py").read_text("utf-8"), "utf-8")
    beside = os.path.dirname(sys.executable)
    environment = os.environ | {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(shlex.split(command), cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.more
@pytest.mark.parametrize(
    ("script", "package", "command", "printed"), ROWS, ids=[f"{r[0]}: {r[2]}" for r in ROWS]
)
def test_a_launcher_starts_its_ranks_on_simulated_gpus(tmp_path, script, package, command, printed):
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    lines = re.findall(r"^rank (\d) of 2: (.*)$", run(tmp_path, script, command), re.MULTILINE)
    assert sorted(lines) == [(str(rank), printed.format(rank=rank)) for rank in range(2)]


@pytest.mark.more
def test_one_process_of_the_trainer_uses_data_parallel(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    assert "rank 0 of 1: 4 steps, 2 GPUs each" in run(tmp_path, "trains", "labkit run --gpus 2 train.py")


@pytest.mark.parametrize("page", ["ranks.md", "ranks.zh.md"])
def test_the_page_has_these_commands(page):
    listed = set(re.findall(r"`(labkit (?:run|torchrun) [^`]*)`", (DOCS / page).read_text("utf-8")))
    assert {row[2].removesuffix(" ddp").removesuffix(" fsdp") for row in ROWS} <= listed
