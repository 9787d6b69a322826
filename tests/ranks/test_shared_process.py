"""What ranks in one process keep apart: threads of their own, packages that read the environment, operators."""

import sys

import pytest

from labkit_cli import main


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs a script on ranks of this process: the exit code, and what it printed, line by line."""
    monkeypatch.chdir(tmp_path)

    def torchrun(text, ranks=2):
        (tmp_path / "script.py").write_text(text)
        code = main(["torchrun", "--nproc-per-node", str(ranks), "script.py"])
        out, err = capsys.readouterr()
        return code, sorted(out.splitlines()), err

    return torchrun


THREADS = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from concurrent.futures import ThreadPoolExecutor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

pool = ThreadPoolExecutor(1)
pool.submit(int).result()  # its thread is older than the groups
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
rank, tp = dist.get_rank(), mesh["tp"]

def shard():
    torch.cuda.set_device(rank)
    rows = distribute_tensor(torch.arange(8.0).view(4, 2).cuda(), tp, [Shard(0)])
    return rows.full_tensor().sum().item(), dist.new_group([0, 1, 2, 3])

local = pool.submit(tp.get_local_rank).result()
total, group = pool.submit(shard).result()
one = torch.ones(1, device=f"cuda:{rank}")
print(rank, local, total, collectives.all_reduce(one, "sum", group).item())
dist.destroy_process_group()
try:
    pool.submit(tp.get_local_rank).result()
except RuntimeError as error:
    print(rank, "gone" if "Could not resolve" in str(error) else error)
"""


def test_a_thread_of_a_rank_finds_its_groups_by_name_and_the_rank_the_threads(run):
    code, lines, error = run(THREADS, ranks=4)
    assert code == 0, error
    assert lines == sorted([f"{r} {r % 2} 28.0 4.0" for r in range(4)] + [f"{r} gone" for r in range(4)])


def test_a_pool_that_nobody_shuts_down_does_not_keep_a_rank_that_failed(run):
    script = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
    code, _, error = run(script + "pool.submit(divmod, 1, 0).result()")
    assert code == 1
    assert "ZeroDivisionError" in error


PACKAGE = """
import os
settings = {name: value for name, value in os.environ.items() if name.startswith("READER_")}
copied = dict(os.environ) | {**os.environ}

class Base: pass
"""


def test_a_package_that_reads_all_variables_is_shared_and_one_that_asks_for_its_rank_is_not(
    run, tmp_path, monkeypatch
):
    folder = tmp_path / "site-packages"
    for name, text in ("reader", PACKAGE), ("asker", "import os\nrank = os.environ['RANK']\n"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    # As datasets is of fsspec, which reads the environment so: its classes are those of the package that is shared.
    (folder / "built_on").mkdir()
    (folder / "built_on" / "__init__.py").write_text("import reader\nclass Built(reader.Base): pass\n")
    monkeypatch.setattr(sys, "path", ["", str(folder), *sys.path])  # the first is the script's
    script = (
        "import asker, built_on, reader, os, torch.distributed as dist\ndist.init_process_group('nccl')\n"
    )
    script += "dist.barrier()\nimport reader\n"
    script += "print(asker.rank == os.environ['RANK'], issubclass(built_on.Built, reader.Base))"
    try:
        code, lines, error = run(script)
        assert code == 0, error
        assert lines == ["True True"] * 2
    finally:
        for name in ("reader", "built_on"):
            sys.modules.pop(name, None)


BEGIN = """
import torch, torch.distributed as dist
from torch.library import Library, custom_op, define, impl, register_autograd, register_fake
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
times = rank + 2
"""
END = """
x = torch.ones(2, device="cuda", requires_grad=True)
dist.barrier()  # all have defined it
y = torch.ops.{name}(x)
{backward}
dist.barrier()
print(rank, y.tolist(), x.grad.tolist() if x.grad is not None else None, torch.ops.{name}(x.detach()).tolist())
"""
OPERATORS = {
    "define": """
define("labkit_one::scale", "(Tensor x) -> Tensor")
impl("labkit_one::scale", "default", lambda x: x * times)
register_fake("labkit_one::scale", torch.empty_like)
register_autograd("labkit_one::scale", lambda ctx, g: g * times)
""",
    "custom_op": """
for _ in range(2):  # as a cell that is run again
    @custom_op("labkit_two::scale", mutates_args=())
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * times
scale.register_fake(torch.empty_like)
scale.register_autograd(lambda ctx, g: g * times)
""",
    "library": """
library = Library("labkit_three", "DEF")
library.define("scale(Tensor x) -> Tensor")
impl(library, "scale", "CompositeImplicitAutograd")(lambda x: x * times)
""",
    "cuda": """
library = Library("labkit_four", "FRAGMENT")
library.define("scale(Tensor x) -> Tensor")
impl(library, "scale", "CUDA")(lambda x: x * times)
try:
    torch.ops.labkit_four.scale(torch.ones(2))
except NotImplementedError:
    pass
else:
    raise AssertionError("there is no kernel for the host")
""",
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_each_rank_defines_an_operator_and_calls_its_own_kernel(run, kind):
    number = {"define": "one", "custom_op": "two", "library": "three", "cuda": "four"}[kind]
    backward = "y.sum().backward()" if kind != "cuda" else ""
    script = BEGIN + OPERATORS[kind] + END.format(name=f"labkit_{number}.scale", backward=backward)
    expected = [
        f"{r} {[r + 2.0] * 2} {[r + 2.0] * 2 if backward else None} {[r + 2.0] * 2}" for r in range(2)
    ]
    for _ in range(2):  # nothing is left of a run
        code, lines, error = run(script)
        assert code == 0, error
        assert lines == expected


def test_an_operator_that_a_rank_defines_twice_is_refused_as_in_a_process(run):
    twice = "define('labkit_five::scale', '(Tensor x) -> Tensor')\n" * 2
    code, _, error = run(BEGIN + twice)
    assert code == 1
    assert "multiple times" in error
