"""Scripts as torchrun users write them, unmodified, on ranks in one process: each ends with what its oracle says.

The oracles (oracles.py) know nothing of distribution: formulas, or one model on the joined batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch

from labkit_ranks.threads.world import World

sys.path.insert(0, str(Path(__file__).parent))

import oracles
from comparing import SCRIPTS, difference, script

from tools.warm import python

DRIVER = Path(__file__).with_name("one_after_another.py")
# Values that are rounded on their way to 16 bits.
TOLERANCES = {"fp16 hook": 2e-3, "bf16 hook": 2e-2, "bf16": 3e-2}
NAMES = sorted(
    path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("checkpoint_load", "script_ends")
)

# These take their time: DTensor works out anew in each rank how each operator is to be cut.
LONG = ("fsdp2",)
REPEATED = "asynchronous", "ddp_uneven"


def run(name, folder, size, *arguments):
    """What each of ``size`` ranks saved."""
    path = str(SCRIPTS / f"{name}.py")
    code = compile(Path(path).read_text(), path, "exec")
    folder.mkdir()

    def main(rank):
        sys.argv[:] = [path, str(folder), *arguments]
        sys.path.insert(0, str(SCRIPTS))
        rank.main.__dict__["__file__"] = path
        exec(code, rank.main.__dict__)

    with World(size, environ={"TORCHELASTIC_RUN_ID": "none"}) as world, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world.run(main)
    return saved(folder, size)


def saved(folder, size):
    """What each rank left there."""
    return [torch.load(folder / f"{rank}.pt", map_location="cpu", weights_only=False) for rank in range(size)]


def wrong(name, saved):
    """Where what ranks saved differs from what the oracle says."""
    module, found = script(name), []
    for rank, values in enumerate(saved):
        expected = getattr(oracles, name)(module, rank, len(saved))
        assert set(values) == set(expected), f"rank {rank}"
        for key, value in expected.items():
            text = difference(values[key], value, TOLERANCES.get(key, 1e-5), f"rank {rank}: {key}")
            found += [text] if text else []
    return found


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, 4) for name in NAMES]
    + [pytest.param(name, 2, marks=pytest.mark.more) for name in NAMES if name not in LONG],
)
def test_each_rank_ends_with_what_one_model_on_the_joined_batch_has(name, size, tmp_path):
    assert wrong(name, run(name, tmp_path / "a", size)) == []


@pytest.mark.parametrize("name", REPEATED)
def test_repeats_have_the_same_bits(name, tmp_path):
    first, second = (run(name, tmp_path / folder, 2) for folder in "ab")
    assert difference(second, first, tolerance=0.0) is None


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (4, 1)])
def test_a_checkpoint_of_one_world_is_loaded_by_another(before, after, tmp_path):
    run("checkpoint_save", tmp_path / "saved", before)
    loaded = run("checkpoint_load", tmp_path / "loaded", after, str(tmp_path / "saved"))
    assert wrong("checkpoint_load", loaded) == []


# The transport between processes runs the same collectives: these scripts between them use all that it does itself.
OTHER_WAY = "asynchronous", "collectives", "point_to_point"


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    """The folder where two ranks that are processes have saved what a script ends with; some scripts run at once."""

    @cache
    def run_all(other_way: bool):
        folder = tmp_path_factory.mktemp("processes")
        names = [name for name in NAMES if name not in LONG and (name in OTHER_WAY) == other_way]
        words = " , ".join(names)
        command = f"-m labkit torchrun --processes --nproc-per-node 2 {DRIVER} {folder} {words}"
        environment = {**os.environ, "PYTHONPATH": str(DRIVER.parents[2]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*python(), *command.split()],
            env=environment, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return folder

    return lambda name: run_all(name in OTHER_WAY) / name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OTHER_WAY else pytest.mark.more)
        for name in NAMES
        if name not in LONG
    ],
)
def test_ranks_that_are_processes_end_with_the_same_bits(name, by_processes, tmp_path):
    threads = run(name, tmp_path / "a", 2)
    assert difference(saved(by_processes(name), 2), threads, tolerance=0.0) is None


def test_modules_of_a_script_in_folders_without_init(tmp_path):
    inner = tmp_path / "parts_of_mine" / "deeper"
    inner.mkdir(parents=True)
    (inner / "step.py").write_text("count = 0\n")

    def main(rank):
        sys.path.insert(0, str(tmp_path))
        from parts_of_mine.deeper import step

        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(rank.local)
        step.count += 1
        torch.distributed.barrier()
        return int(step.count)

    with World(2) as world:
        assert world.run(main) == [1, 1]
