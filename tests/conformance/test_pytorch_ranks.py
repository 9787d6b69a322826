"""The harness of PyTorch's own distributed tests: each rank runs the test, skips and failures come out as such."""

import argparse
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from labkit.distributed import fidelity as ranks
from labkit.machine import fidelity

_spec = importlib.util.spec_from_file_location("pytorch_ranks", Path(__file__).with_name("pytorch_ranks.py"))
theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(theirs)
own = theirs.own

FEW = """
import os, sys, unittest
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase, requires_nccl, skip_if_lt_x_gpu)


class TestProcesses(MultiProcessTestCase):
    world_size = 3
    seen = None

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def begin(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.world_size)
        torch.cuda.set_device(self.rank)

    @requires_nccl()
    @skip_if_lt_x_gpu(3)
    def test_sum(self):
        self.begin()
        type(self).seen = self.rank
        x = torch.full((2,), float(self.rank + 1), device="cuda")
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [6, 6])
        self.assertEqual(type(self).seen, self.rank)
        self.assertEqual(x.device.index, self.rank)

    @skip_if_lt_x_gpu(5)
    def test_five_gpus(self):
        self.fail("begins without its GPUs")

    def test_code(self):
        sys.exit(3)

    def test_one_fails(self):
        self.begin()
        if self.rank == 1:
            raise ValueError("rank 1's own")
        dist.barrier()

    def test_wait_for_nobody(self):
        self.begin()
        if self.rank:
            dist.barrier()


class TestThreads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_gather(self):
        out = [torch.empty(1) for _ in range(2)]
        dist.all_gather(out, torch.tensor([float(self.rank)]))
        self.assertEqual([t.item() for t in out], [0, 1])


class TestContinuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "nccl"

    def test_1(self):
        x = torch.ones(1, device=f"cuda:{self.rank}")
        dist.broadcast(x.mul_(self.rank), 1)
        self.assertEqual(x.item(), 1)

    def test_2(self):
        self.assertEqual(dist.get_rank(), self.rank)
        raise ValueError("the second's")

    def test_3(self):
        self.assertEqual(dist.get_world_size(), 2)
"""


@pytest.mark.parametrize("reason", own.reasons(theirs.REASONS), ids=lambda r: r.get("row", r.get("why")))
def test_a_reason_is_a_row_of_the_documentation_or_says_why(reason):
    assert reason.keys() <= {"category", "row", "why", "test", "error"}
    assert reason.keys() & {"test", "error"}
    if reason["category"] == own.NAMED:
        assert reason["row"] in {what for what, _, _ in fidelity.PARTS + ranks.PARTS}
    else:
        assert reason["category"] in (own.HARDWARE, own.VERSION)
        assert reason["why"]
    for pattern in ("test", "error"):
        re.compile(reason.get(pattern, ""))


def options(folder, **changed):
    told = argparse.Namespace(
        pytorch=folder, memory="1 MiB", host_memory=64, seconds=60, folder=folder, log=sys.stderr,
        script=Path(theirs.__file__), variables=theirs.VARIABLES, alone=False, most_again=9, show=False, save=None,
    )  # fmt: skip
    vars(told).update(changed)
    return told


def test_each_rank_runs_the_test(tmp_path):
    """A folder like PyTorch's, with a file of tests of our own."""
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_few.py").write_text(FEW)
    names = [
        f"TestProcesses.test_{name}" for name in ("sum", "five_gpus", "code", "one_fails", "wait_for_nobody")
    ]
    names += ["TestThreads.test_gather", *(f"TestContinuous.test_{at}" for at in (1, 2, 3))]
    found = own.run_file("test_few.py", 3, names, options(tmp_path), theirs.Worker)
    outcomes = {name.partition("test_")[2]: found[name][0] for name in names}
    assert outcomes == {
        "sum": own.PASSED, "five_gpus": own.SKIPPED, "code": own.FAILED, "one_fails": own.FAILED,
        "wait_for_nobody": own.FAILED, "gather": own.PASSED, "1": own.PASSED, "2": own.FAILED, "3": own.PASSED,
    }  # fmt: skip
    assert "Need at least 5 CUDA devices" in found["TestProcesses.test_five_gpus"][1]
    assert found["TestProcesses.test_one_fails"][1].count("ValueError: rank 1's own") == 1
    assert "Abort" not in found["TestProcesses.test_wait_for_nobody"][1]  # told, not waited for


def test_what_passes_by_itself_is_counted_apart(tmp_path, monkeypatch, capsys):
    def run_file(file, gpus, names, options, worker=None):
        assert options.alone
        return {"C.test_a": (own.PASSED, ""), "C.test_b": (own.FAILED, "ValueError: again")}

    monkeypatch.setattr(own, "run_file", run_file)
    found = dict.fromkeys(("C.test_a", "C.test_b"), (own.FAILED, "ValueError: first"))
    found["C.test_c"] = own.SKIPPED, "Need at least 8 CUDA devices"
    skips = theirs.collections.Counter()
    counts = theirs.outcomes("test_few.py", found, skips, options(tmp_path, gpus=3))
    assert counts == {theirs.ALONE: 1, own.UNEXPLAINED: 1, own.SKIPPED: 1}
    assert "ValueError: first" in capsys.readouterr().out
    assert skips == {"Need at least 8 CUDA devices": 1}
