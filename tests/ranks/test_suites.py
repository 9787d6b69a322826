"""`pytest --gpus N`: tests that know nothing of labkit see GPUs, and the ranks that they start are threads."""

import os
import re
import subprocess
import sys

import pytest

from tools.warm import python

TESTS = '''
import os, subprocess, sys, tempfile, unittest
import fairscale, pytest, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.testing._internal.common_distributed import (
    MultiProcessTestCase, MultiThreadedTestCase, skip_if_lt_x_gpu)
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

HERE = os.getpid()

def test_gpus():
    assert torch.cuda.device_count() == 3
    assert torch.ones(2, device="cuda:2").device.index == 2

def test_gpus_of_children():
    code = "import torch; print(torch.cuda.device_count())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "3"

def work(rank, size, x, start):
    assert os.getpid() == HERE and "MASTER_ADDR" not in os.environ
    dist.init_process_group("gloo", init_method=f"file://{start}", rank=rank, world_size=size)
    x += rank
    y = x.clone()
    dist.all_reduce(y)
    assert y.item() == size * (size - 1) / 2
    if size == 3 and rank == 1:
        raise ValueError("the second of three")
    dist.destroy_process_group()

def test_spawn(tmp_path):
    x = torch.zeros(1)
    mp.spawn(work, args=(2, x, tmp_path / "start"), nprocs=2)
    mp.start_processes(work, args=(2, x, tmp_path / "again"), nprocs=2, start_method="fork")
    assert x.item() == 0  # each has its own

def test_spawn_fails(tmp_path):
    with pytest.raises(mp.ProcessRaisedException, match="the second of three") as caught:
        mp.spawn(work, args=(3, torch.zeros(1), tmp_path / "start"), nprocs=3)
    assert caught.value.error_index == 1

def leave(rank):
    sys.exit(3 if rank else 0)

def test_spawn_exits():
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.spawn(leave, nprocs=2)
    assert (caught.value.error_index, caught.value.exit_code) == (1, 3)

def other_process(rank, numbers):
    numbers.put((rank, os.getpid()))

def test_more_ranks_than_gpus_are_processes():
    numbers = mp.get_context("fork").SimpleQueue()
    mp.start_processes(other_process, args=(numbers,), nprocs=4, start_method="fork")
    assert len({numbers.get()[1] for _ in range(4)} - {HERE}) == 4

class TestProcesses(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_processes(self):
        dist.init_process_group("nccl", store=dist.FileStore(self.file_name, 2), rank=self.rank, world_size=2)
        x = torch.ones(1, device=f"cuda:{self.rank}")
        dist.all_reduce(x)
        assert x.item() == 2 and os.getpid() == HERE
        type(self).written = self.rank
        dist.barrier()
        assert type(self).written == self.rank

    def test_modules(self):
        from fairscale import Config
        assert Config is fairscale.Config
        fairscale.set_group(self.rank)
        dist.init_process_group("nccl", store=dist.FileStore(self.file_name, 2), rank=self.rank, world_size=2)
        dist.barrier()
        assert fairscale.group == self.rank

    @skip_if_lt_x_gpu(8)
    def test_skips(self):
        assert False

    def test_fails(self):
        assert self.rank == 0, "only in the second"

os.environ.update(BACKEND="nccl", WORLD_SIZE="2", TEMP_DIR=tempfile.gettempdir())
from torch.testing._internal.distributed import distributed_test

class TestMeeting(distributed_test.TestDistBackend):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    _barrier = distributed_test.DistributedTest._DistTestBase._barrier

    @skip_if_lt_x_gpu(2)
    def test_meeting(self):
        for number in range(3):
            dist.distributed_c10d._get_default_store().add("met", 1)
            self._barrier()
            assert dist.distributed_c10d._get_default_store().add("met", 0) == 2 * (number + 1)
            self._barrier()

    @skip_if_lt_x_gpu(2)
    def test_ddp_has_finalized(self):
        pass

def test_modules_are_back():
    assert sys.modules["fairscale"] is fairscale and fairscale.group is None

class TestThreads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_threads(self):
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        assert x.item() == 2 and os.getpid() == HERE

class TestTensors(DTensorTestBase):
    world_size = 3

    @with_comms
    def test_dtensor(self):
        from torch.distributed.tensor import Shard, distribute_tensor
        whole = torch.arange(6.0, device="cuda")
        piece = distribute_tensor(whole, self.build_device_mesh(), [Shard(0)]).to_local()
        assert piece.is_cuda and piece.tolist() == [2 * self.rank, 2 * self.rank + 1] and os.getpid() == HERE

class TestSharded(FSDPTest):
    def test_fsdp(self):
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(torch.nn.Linear(6, 6, device="cuda"))
        model(torch.ones(2, 6, device="cuda")).sum().backward()
        assert self.world_size == 3 and model.weight.grad.to_local().shape == (2, 6)

SCRIPT = """
import os, pathlib, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.ones(1, device=f"cuda:{os.environ['LOCAL_RANK']}")
dist.all_reduce(x)
pathlib.Path(sys.argv[1], f"{dist.get_rank()}").write_text(f"{x.item()} {os.getpid()}")
dist.destroy_process_group()
"""

def test_torchrun_starts_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(["torchrun", "--nproc-per-node", "2", str(script), str(tmp_path)])
    found = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    assert {value for value, _ in found} == {"2.0"} and len({process for _, process in found}) == 2
    assert done.returncode == 0

def test_triton():
    import importlib.util
    from torch.utils._triton import has_triton
    assert importlib.util.find_spec("triton") is None
    import triton, triton.language as tl
    from triton.language.extra import libdevice
    assert not has_triton() and triton.cdiv(7, 2) == 4
    torch._dynamo.reset()  # imports the compiler, which looks for triton itself

    @triton.autotune(configs=[triton.Config({"B": 1}, num_warps=4)], key=["n"])
    @triton.jit
    def doubled(x, n: tl.constexpr):
        tl.store(x, 2 * tl.load(x))

    with pytest.raises(NotImplementedError, match="doubled is a kernel of triton") as caught:
        doubled[(1,)](torch.ones(1), 1)
    assert len(str(caught.value).splitlines()) == 1
'''
FAILED = {"TestProcesses::test_fails"}
SKIPPED = {"TestProcesses::test_skips"}
PASSED = [
    "test_gpus", "test_gpus_of_children", "test_spawn", "test_spawn_fails", "test_spawn_exits",
    "test_more_ranks_than_gpus_are_processes", "TestProcesses::test_processes", "TestThreads::test_threads",
    "TestMeeting::test_meeting", "TestMeeting::test_ddp_has_finalized",
    "TestProcesses::test_modules", "test_modules_are_back",
    "TestTensors::test_dtensor", "TestSharded::test_fsdp",
    "test_torchrun_starts_processes", "test_triton",
]  # fmt: skip
PLUGIN = ["-p", "labkit_ranks.pytest_plugin", "-p", "no:cacheprovider", "-vv", "-rA", "--tb=short"]


def run(folder, source, *arguments, command=None):
    (folder / "test_theirs.py").write_text(source, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    # A package of which each process has its own, in a script.
    (folder / "fairscale.py").write_text(
        "class Config: pass\ngroup = None\ndef set_group(rank):\n    global group\n    group = rank\n",
        "utf-8",
    )
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": os.defpath,
    }
    whole = [*(command or python()), "-m", "pytest", *PLUGIN, *arguments]
    done = subprocess.run(whole, cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    return run(tmp_path_factory.mktemp("suite"), TESTS, "--gpus", "3")


@pytest.fixture(scope="module")
def outcomes(shown):
    found = re.findall(r"^test_theirs\.py::(\S+) (PASSED|FAILED|SKIPPED|ERROR)", shown, re.MULTILINE)
    assert found, shown
    return dict(found)


def test_each_test_has_been_run(outcomes):
    assert set(outcomes) == {*PASSED, *FAILED, *SKIPPED}


@pytest.mark.parametrize("name", PASSED)
def test_ranks_run_in_one_process(outcomes, shown, name):
    assert outcomes[name] == "PASSED", shown


def test_a_rank_fails_its_test_with_its_traceback(outcomes, shown):
    assert {name for name, outcome in outcomes.items() if outcome == "FAILED"} == FAILED
    assert "Rank 1:" in shown
    assert "AssertionError: only in the second" in shown


def test_what_wants_more_gpus_is_skipped(outcomes):
    assert {name for name, outcome in outcomes.items() if outcome == "SKIPPED"} == SKIPPED


PROCESSES = """
import os, torch, torch.multiprocessing as mp

def work(rank, numbers):
    import triton
    numbers.put(os.getpid())

def test_processes():
    numbers = mp.get_context("fork").SimpleQueue()
    mp.start_processes(work, args=(numbers,), nprocs=2, start_method="fork")
    assert len({numbers.get(), numbers.get(), os.getpid()}) == 3 and torch.cuda.device_count() == 3
"""


def test_ranks_stay_processes_on_request(tmp_path):
    assert "1 passed" in run(tmp_path, PROCESSES, "--gpus=3", "--rank-processes")


def test_workers_of_xdist_see_the_gpus(tmp_path):
    source = "import torch\ndef test_a(): assert torch.cuda.device_count() == 5\ntest_b = test_a"
    assert "2 passed" in run(tmp_path, source, "-p", "xdist", "-n", "2", "--gpus", "5")


@pytest.mark.parametrize(("arguments", "fault"), [
    (["--gpus", "0"], "gpus must be from 1"),
    (["--gpus=2", "--gpu-model", "foo"], "gpu_model must be one of"),
])  # fmt: skip
def test_a_wrong_option_is_refused_in_one_line(tmp_path, arguments, fault):
    shown = run(tmp_path, "def test(): pass", *arguments)
    assert f"ERROR: --gpus: {fault}" in shown
    assert "Traceback" not in shown


def test_a_suite_may_have_such_an_option_itself(tmp_path):
    option = "def pytest_addoption(parser):\n    parser.addoption('--gpus', default='none')\n"
    (tmp_path / "conftest.py").write_text(option, "utf-8")
    assert "1 passed" in run(
        tmp_path, "def test(pytestconfig): assert pytestconfig.getoption('gpus') == 'none'"
    )


def test_torch_is_imported_by_tests_alone(tmp_path):
    source = "import sys\ndef test(): assert 'torch' not in sys.modules"
    assert "1 passed" in run(tmp_path, source, "--gpus", "2", command=[sys.executable])
