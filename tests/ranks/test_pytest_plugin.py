"""Tests marked with ``@pytest.mark.ranks(4)``, as pytest runs and shows them."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed.tensor  # noqa: F401 (it registers operators, which each process can once)

from labkit_ranks import testing  # noqa: F401 (else the tests below import it, and torch, each anew)
from simgpu import machine_in_use
from tools.warm import python

ROOT = Path(__file__).parents[2]

pytest_plugins = ["pytester"]

HEAD = """
import os
import re
import unittest
import pytest, torch, torch.distributed as dist
"""
PLUGIN = ("-p", "labkit_ranks.pytest_plugin", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for name in ("CI", "BUILD_NUMBER"):  # with them pytest repeats the whole message in its summary
        monkeypatch.delenv(name, raising=False)
    # Of what is installed here only labkit's plugin is asked about: each process would import all the others.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def run(pytester):

    def run(source, *arguments, **expected):
        pytester.makepyfile(HEAD + source)
        result = pytester.runpytest_inprocess(*PLUGIN, *arguments)
        result.assert_outcomes(**expected)
        return "\n".join(result.outlines)

    return run


def test_a_test_runs_on_ranks_with_a_gpu_and_a_group_for_each(run):
    source = """
@pytest.mark.ranks(4)
def test(rank, world_size, device):
    assert (dist.get_rank(), dist.get_world_size(), world_size) == (rank, 4, 4)
    assert device == torch.device("cuda", rank) and torch.cuda.current_device() == rank
    x = torch.full((3,), rank, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [6, 6, 6]
"""
    run(source, passed=1)


def test_the_mark_says_how_many_nodes_how_much_memory_and_which_gpus(run):
    source = """
@pytest.mark.ranks(4, nodes=2, memory="1 GiB", gpu_model="h100")
def test(rank, device):
    assert device.index == rank % 2 and torch.cuda.device_count() == 2
    assert torch.cuda.mem_get_info()[1] == 1 << 30 and "H100" in torch.cuda.get_device_name()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 30, device=device)
"""
    run(source, passed=1)


def test_a_failing_rank_is_shown_with_its_own_traceback_and_each_once(run):
    source = """
@pytest.mark.ranks(4)
def test(rank):
    print("I am", rank)
    assert rank == 1
"""
    shown = run(source, failed=1)
    for rank in (0, 2, 3):
        assert shown.count(f"E       assert {rank} == 1") == 1
        assert shown.count(f"rank {rank}:") == 1
        assert f"rank {rank} │ I am {rank}" in shown
    # No frame of labkit's own code; the folder of the checkout may be called labkit, too.
    assert not re.search(r"\blabkit(_ranks)?/(?!\.venv|tests)", shown.replace(str(ROOT), ""))


def test_ranks_that_fail_alike_are_shown_once(run):
    shown = run("@pytest.mark.ranks(4)\ndef test():\n    raise ValueError('all of us')", failed=1)
    assert shown.count("E       ValueError: all of us") == 1
    assert "ranks 0–3:" in shown


def test_a_deadlock_is_a_failure_in_labkits_words(run):
    source = """
@pytest.mark.ranks(4)
def test_some(rank):
    if rank:
        dist.barrier()

@pytest.mark.ranks(4)
def test_all(rank):
    dist.barrier()
"""
    shown = run(source, failed=1, passed=1)
    assert "rank 0 never came to this line, ranks 1–3 did" in shown
    assert shown.count("On real GPUs the host waits in the call itself") == 1
    assert "distributed_c10d" not in shown


def test_a_rank_may_skip_and_fail_as_expected(run):
    source = """
@pytest.mark.ranks(2)
def test_skip(rank):
    pytest.skip("not today")

@pytest.mark.ranks(2)
@pytest.mark.xfail(raises=ZeroDivisionError)
def test_x():
    1 / 0

@pytest.mark.ranks(2)
def test_both(rank):
    if rank:
        pytest.skip("not today")
    assert False
"""
    run(source, skipped=1, xfailed=1, failed=1)


def test_fixtures_of_a_test_are_each_ranks_own_and_longer_ones_are_made_once(run):
    source = """
made = []

@pytest.fixture(scope="module")
def data():
    made.append("data")
    return [1]

@pytest.fixture
def model(device, data):
    made.append("model")
    torch.manual_seed(0)
    yield torch.nn.Linear(2, 2).to(device)
    dist.barrier()
    made.append("end")

@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)

@pytest.mark.ranks(3)
@pytest.mark.parametrize("given", [torch.zeros(1)])
def test(model, data, request, given, rank, tmp_path):
    given += 1
    assert given.item() == 1
    assert model.weight.device.index == rank and request.getfixturevalue("model") is model
    (tmp_path / str(rank)).touch()
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 3

@pytest.mark.ranks(3)
def test_by_name(request, rank):
    assert request.getfixturevalue("model").weight.device.index == rank

def test_made():
    assert made == ["data"] + (["model"] * 3 + ["end"] * 3) * 2
"""
    run(source, passed=3)


def test_a_failing_fixture_is_its_ranks_failure(run):
    source = """
@pytest.fixture
def bad(rank):
    assert rank != 2, "bad luck"
    yield
    dist.barrier()

@pytest.mark.ranks(4)
def test(bad): pass
"""
    shown = run(source, failed=1)
    assert "bad luck" in shown
    assert "rank 2:" in shown


def test_classes_and_test_cases_have_an_instance_for_each_rank(run):
    source = """
@pytest.mark.ranks(2)
class TestOwn:
    def setup_method(self):
        self.seen = []
    def test(self, rank):
        self.seen.append(rank)
        dist.barrier()
        assert self.seen == [rank]

@pytest.mark.ranks(2)
class Case(unittest.TestCase):
    def setUp(self):
        self.x = torch.ones(1, device="cuda")
    def test_sum(self):
        dist.all_reduce(self.x)
        self.assertEqual(self.x.item(), 2)
    def test_wrong(self):
        self.assertEqual(dist.get_rank(), 0)
    @unittest.skip("no")
    def test_skipped(self): pass
"""
    run(source, passed=2, failed=1, skipped=1)


def test_tests_share_nothing(run):
    os.environ.pop("PYTEST_CURRENT_TEST")  # each run of pytest takes it out
    before = dict(os.environ), torch.random.get_rng_state()
    source = """
@pytest.mark.ranks(2)
@pytest.mark.parametrize("turn", range(2))
def test(rank, device, turn, monkeypatch):
    assert torch.cuda.memory_allocated() == 0 and "SET" not in os.environ
    os.environ["SET"] = str(rank)
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setattr(os, "sep", rank)
    torch.manual_seed(turn)
    kept.append(torch.ones(9, device=device))
    dist.new_group([0])

kept = []

def test_after():
    assert not dist.is_initialized() and "SET" not in os.environ and "RANK" not in os.environ and os.sep == "/"
"""
    run(source, passed=3)
    assert machine_in_use() is None
    assert dict(os.environ) == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])


def test_a_test_makes_its_own_group_instead(run):
    source = """
@pytest.mark.ranks(2)
def test(rank):
    dist.init_process_group("gloo")
    assert dist.get_backend() == "gloo"
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
"""
    run(source, passed=1)


def test_what_catches_output_gets_it_plain(run):
    source = """
@pytest.mark.ranks(2)
def test(rank, capsys):
    if rank == 0:
        print("a")
        assert capsys.readouterr().out == "a\\n"
"""
    run(source, passed=1)


def test_without_the_mark_and_without_a_number(run):
    shown = run("def test(rank): pass\n\n@pytest.mark.ranks\ndef test_b(): pass", errors=2)
    assert "mark the test with @pytest.mark.ranks(4)" in shown
    assert "missing 1 required positional argument: 'size'" in shown


@pytest.mark.parametrize(("mark", "fault"), [
    ("0", "size must be from 1 to 1024, got 0"),
    ("'four'", "size must be a whole number"),
    ("4, nodes=3", "nodes must be a divisor of size, 4, got 3"),
    ("2, gpu_model='foo'", "gpu_model must be one of"),
    ("2, memory='lots'", "lots"),
    ("2, processes=True", "ranks() got an unexpected keyword argument 'processes'"),
    ("[0]", "size must be from 1 to 1024, got 0"),
])  # fmt: skip
def test_a_wrong_mark_fails_in_one_line(run, mark, fault):
    shown = run(f"@pytest.mark.ranks({mark})\ndef test(): pass", "--tb=short", errors=1)
    line = next(line for line in shown.splitlines() if line.startswith("@pytest.mark.ranks(4): "))
    assert fault in line
    assert "Traceback" not in shown


def test_a_mark_with_several_numbers_runs_the_test_once_for_each(run):
    source = """
@pytest.mark.ranks([2, 3], nodes=1)
class Test:
    @pytest.mark.parametrize("factor", [1, 10])
    def test(self, rank, world_size, factor):
        sizes.add((world_size, dist.get_world_size(), factor))

sizes = set()
def test_after():
    assert sizes == {(2, 2, 1), (2, 2, 10), (3, 3, 1), (3, 3, 10)}

@pytest.mark.ranks([2, 3])
class Case(unittest.TestCase):
    def test(self): pass
"""
    shown = run(source, "-v", "--tb=short", passed=5, errors=1)
    assert "ranks=2" in shown
    assert "size must be a whole number" in shown


TWO = """
@pytest.mark.ranks(2)
def test_a(rank):
    mine = rank * 10
    assert rank == 0

@pytest.mark.ranks(2)
def test_b(rank): pass
"""


def test_stopping_at_the_first_failure(run):
    run(TWO, "-x", failed=1)


@pytest.mark.parametrize("style", ["long", "short", "line", "native", "no"])
def test_each_style_of_tracebacks_shows_it(run, style):
    assert ("assert 1 == 0" in run(TWO, f"--tb={style}", failed=1, passed=1)) or style == "no"


def outer(pytester, *arguments, source=TWO, answers=""):
    pytester.makepyfile(HEAD + source)
    command = [*python(), "-m", *arguments]
    done = subprocess.run(command, input=answers, capture_output=True, text=True, cwd=pytester.path)
    return done.stdout + done.stderr


def test_xdist(pytester):
    shown = outer(pytester, "pytest", *PLUGIN, "-p", "xdist", "-n", "2")
    assert "1 failed, 1 passed" in shown
    assert "rank 1:" in shown


def test_pdb_stands_in_the_rank(pytester):
    shown = outer(pytester, "pytest", *PLUGIN, "--pdb", answers="p mine, torch.cuda.device_count()\nq\n")
    assert "(10, 2)" in shown


def test_a_breakpoint_stands_in_the_rank(pytester):
    source = "@pytest.mark.ranks(2)\ndef test(rank):\n    mine = rank + 10\n    if rank: breakpoint()\n    print('on')"
    shown = outer(pytester, "pytest", *PLUGIN, source=source, answers="p mine\nc\n")
    assert "11" in shown
    assert "1 passed" in shown


def test_pytest_as_ranks_of_torchrun(pytester):
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "-m", "pytest", *PLUGIN, "-q")
    source = """
@pytest.mark.ranks(2)
def test(rank, world_size, device):
    assert device.type == "cpu" and dist.get_backend() == "gloo"
    x = torch.full((1,), rank)
    dist.all_reduce(x)
    assert x.item() == 1

@pytest.mark.ranks(4)
def test_more(): pass
"""
    shown = outer(pytester, *launcher, source=source)
    assert shown.count("1 passed, 1 skipped") == 2
