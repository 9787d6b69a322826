"""How many threads of OpenMP a rank computes with: those that torchrun gives it, in both ways to run ranks."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import labkit
from labkit_ranks.threads.world import World

ROOT = Path(__file__).parents[2]


def count(rank):
    return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


@pytest.fixture
def three():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("told", "size", "expected"), [(None, 2, (1, "1")), ("2", 2, (2, "2")), (None, 1, (3, None))]
)
def test_each_computes_with_as_many_as_torchrun_gives_it(three, monkeypatch, told, size, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    with World(size) as world:
        assert world.run(count) == [expected] * size
    with labkit.ranks(size) as session:
        assert session.run(lambda: count(None)) == [expected] * size


def test_what_a_rank_chooses_is_its_own_and_gone_with_it(three, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def choose(rank):
        if rank.number:
            torch.set_num_threads(2)

    later = []
    with World(2) as world:
        world.run(choose)
        assert world.run(count) == [(1, "1"), (2, "1")]
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert torch.get_num_threads() == 3
    assert later == [3]


SUMS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(rank)
x = torch.randn(1 << 18, device=f"cuda:{rank}")
total = (x.sum() + (x.view(512, 512) @ x.view(512, 512)).sum()).reshape(1)
both = [torch.empty_like(total) for _ in range(2)]
dist.all_gather(both, total)
if not rank:
    print(torch.get_num_threads(), *[value.item().hex() for value in both])
dist.destroy_process_group()
"""


def test_the_same_bits_both_ways_where_nothing_is_set(tmp_path):
    """A launcher with several threads, as on any laptop: sums of many numbers depend on how many there are."""
    (tmp_path / "sums.py").write_text(SUMS)
    launcher = "import torch; torch.set_num_threads(4); from labkit_cli import main; raise SystemExit(main())"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = []
    for way in ([], ["--processes"]):
        ran = subprocess.run(
            [sys.executable, "-c", launcher, "torchrun", *way, "--nproc-per-node=2", "sums.py"],
            cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout)
    assert said[0] == said[1]
    assert said[0].startswith("1 ")
