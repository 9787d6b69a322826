"""Processes that are started while a machine is in use see that machine."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import labkit
from simgpu.children import environment as children

ROOT = Path(__file__).parents[2]


def test_cuda_visible_devices_names_a_gpu_by_the_uuid_that_torch_gives():
    with labkit.simulate(gpus=12):
        for number in (0, 9, 10, 11):
            assert str(torch.cuda.get_device_properties(number).uuid) == children.uuid(number)


@pytest.mark.parametrize(("listed", "seen"), [
    ("3,1", (3, 1)), ("", ()), ("0,4,1", (0,)), ("-1", ()), ("1,-1,2", (1,)), ("0,0", ()), (" 2 , 1", (2, 1)),
    ("1x", (1,)), ("none", ()), (f"GPU-{children.uuid(2)},0", (2, 0)), ("GPU-0", ()), ("GPU-9", ()),
])  # fmt: skip
def test_cuda_visible_devices_as_the_driver_reads_it(listed, seen):
    assert children.visible_gpus(4, listed) == seen


def test_simulate_takes_no_notice_of_what_was_there_and_its_children_of_what_is_new():
    machine = children.MachineDescription(3, [1, 2, 3], order=[2, 0, 1], heedless="0")
    assert machine.options({"CUDA_VISIBLE_DEVICES": "0"})["memory"] == [1, 2, 3]
    hidden = machine.options({"CUDA_VISIBLE_DEVICES": "2,0"})
    assert (hidden["gpus"], hidden["memory"], hidden["order"]) == (2, [3, 1], (0, 1))
    assert children.parse_description(machine.text()) == machine
    assert machine.options({})["gpus"] == 3


def test_the_environment_is_what_it_was(monkeypatch):
    for before in (None, "", "/mine", f"/mine{os.pathsep}/yours"):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONPATH", before)
        environment = dict(os.environ)
        with labkit.simulate(gpus=2):
            told = os.environ["LABKIT_MACHINE"]
            with labkit.simulate(gpus=3):
                assert os.environ["LABKIT_MACHINE"] != told
            assert os.environ["LABKIT_MACHINE"] == told
            assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == children.FOLDER
        assert dict(os.environ) == environment


def test_a_path_that_the_user_sets_meanwhile_stays(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    with labkit.simulate(gpus=2):
        os.environ["PYTHONPATH"] += f"{os.pathsep}/yours"
    assert os.environ["PYTHONPATH"] == f"/mine{os.pathsep}/yours"


SEEN = "import os, sys; print(os.environ.get('LABKIT_MACHINE', '')[:12], [type(f).__name__ for f in sys.meta_path][:1])"
WAITS = "{\"gpus\": 2,  ['Finder']\n"


def test_a_child_is_told_whatever_environment_it_is_given(gpus, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the hidden one')")
    for environment in (None, {}, {"PYTHONPATH": str(tmp_path)}, {b"PATH": b"/bin"}):
        found = subprocess.run([sys.executable, "-c", SEEN], env=environment, capture_output=True, text=True)
        hidden = "the hidden one\n" if environment and "PYTHONPATH" in environment else ""
        assert (found.stdout, found.stderr) == (hidden + WAITS, "")
    monkeypatch.setenv(
        "PYTHONPATH", str(tmp_path)
    )  # as a script does that wants its children to find its modules
    assert subprocess.check_output([sys.executable, "-c", SEEN], text=True) == "the hidden one\n" + WAITS


def test_the_path_of_a_child_does_not_show_it(gpus):
    code = "import sys; print(sys.path)"
    inside = subprocess.check_output([sys.executable, "-c", code], text=True)
    gpus.close()
    assert inside == subprocess.check_output([sys.executable, "-c", code], text=True)


def test_without_a_machine_children_are_told_nothing():
    with labkit.simulate(gpus=2):
        pass
    assert not subprocess.check_output([sys.executable, "-c", SEEN], text=True).startswith("{")


def test_a_python_that_cannot_have_labkit_runs_and_says_so(gpus, tmp_path):
    """One with another torch, say: an import that fails is one line, and the program goes on."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('another torch')")
    found = subprocess.run(
        [sys.executable, "-c", "import torch; print('goes on')"], env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout == "another torch\ngoes on\n"
    assert found.stderr.startswith(f"labkit: this process ({sys.executable}) sees no simulated GPU: ")
    assert len(found.stderr.splitlines()) == 1


def run(tmp_path, program, *arguments, gpus=2):
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "labkit", "run", "--gpus", str(gpus), "--memory", "1 MiB", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )
    return done.returncode, done.stdout, done.stderr


TREE = """
import os, subprocess, sys
import torch

def look():
    found = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
    return [(one.total_memory, one.pci_bus_id) for one in found], torch.cuda.memory_allocated()

if __name__ == "__main__":
    if sys.argv[1:]:
        print(look(), flush=True)
        sys.exit(int(sys.argv[1]))
    x = torch.ones(1, device="cuda")
    print(look(), flush=True)
    assert os.system(f"CUDA_VISIBLE_DEVICES=2,0 {sys.executable} {__file__} 3") == 3 * 256
"""


def test_a_child_sees_what_cuda_would_show_it(tmp_path):
    code, out, err = run(tmp_path, TREE, gpus=3)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "([(1048576, 0), (1048576, 1), (1048576, 2)], 512)",
        "([(1048576, 2), (1048576, 0)], 0)",
    ]


SENT = """
import sys, torch
from torch.utils.data import DataLoader, Dataset

class OnGpu(Dataset):
    def __len__(self): return 2
    def __getitem__(self, at): return torch.full((2,), float(at), device="cuda:1")

def work(inbox, outbox, weight):
    x = inbox.get()
    x += 1
    weight.data.mul_(10)
    outbox.put((x[1:], torch.empty(0, device="cuda:1"), torch.cuda.memory_allocated(1), torch.cuda.device_count()))
    inbox.get()

if __name__ == "__main__":
    method = sys.argv[1]
    context = torch.multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch"])
    inbox, outbox = context.Queue(), context.Queue()
    weight, x = torch.nn.Parameter(torch.ones(2, device="cuda:0")), torch.arange(3.0, device="cuda:1")
    child = context.Process(target=work, args=(inbox, outbox, weight))
    child.start()
    inbox.put(x)
    back, empty, there, count = outbox.get()
    print(back, empty.device, there, count, x, weight.data, torch.cuda.memory_allocated(1))
    inbox.put(None)
    child.join()
    print(child.exitcode)
    for batch in DataLoader(OnGpu(), batch_size=2, num_workers=1, multiprocessing_context=method):
        print(batch)
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.more)])
def test_tensors_on_gpus_go_to_other_processes_and_come_back(tmp_path, method):
    path = tmp_path / "sent.py"
    path.write_text(SENT)
    code, out, err = run(tmp_path, f"import runpy, sys\nsys.argv = ['', '{method}']\n" + SENT)
    # On a busy computer, Python's tracker of semaphores may miss that one was removed, and warn in two lines.
    err = re.sub(r".*resource_tracker: .*\n +warnings\.warn\(.*\n", "", err)
    assert (code, err) == (0, "")
    assert out == (
        "tensor([2., 3.], device='cuda:1') cuda:1 0 2 tensor([1., 2., 3.], device='cuda:1') "
        "tensor([10., 10.], device='cuda:0') 512\n0\n"
        "tensor([[0., 0.],\n        [1., 1.]], device='cuda:1')\n"
    )


RANKS = """
import os, sys
import torch, torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
for backend in ("gloo", "nccl"):
    dist.init_process_group(backend, store=dist.FileStore(f"store-{backend}", 2), rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).cuda(), device_ids=[rank])
    net(torch.full((1, 2), float(rank), device="cuda")).sum().backward()
    open(f"{rank}-{backend}.txt", "w").write(f"{torch.cuda.device_count()} {net.module.weight.grad}")
    dist.destroy_process_group()
"""


def test_torchrun_starts_ranks_on_gpus(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    command = [sys.executable, "-m", "labkit", "run", "--gpus", "2", *launch, "ranks.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank, backend in itertools.product(range(2), ("gloo", "nccl")):
        found = (tmp_path / f"{rank}-{backend}.txt").read_text()
        assert found == f"2 tensor([[0.5000, 0.5000]], device='cuda:{rank}')"


@pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl")
def test_a_machine_that_a_program_opened_itself_says_where_nccl_is(gpus):
    with pytest.raises(RuntimeError, match="doesn't have NCCL built in: a simulated machine that a program"):
        torch.distributed.init_process_group(
            "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_was_put_on_a_gpu_before_a_fork_is_lost_in_the_child(gpus):
    x = torch.ones(2, device="cuda:1")
    context = torch.multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def use():
        for call in (lambda: x + 1, lambda: x.mul_(2), x.cpu, x.tolist, x.item, lambda: str(x)):
            try:
                call()
                answers.put("went through")
            except RuntimeError as error:
                answers.put(str(error))

    def ask():
        answers.put(f"{x.device} {x.shape} {torch.ones(2).sum()}")
        use()

    child = context.Process(target=ask)
    child.start()
    assert answers.get() == "cuda:1 torch.Size([2]) 2.0"
    for _ in range(6):
        assert answers.get().startswith(
            ("CUDA error: initialization error", "Cannot re-initialize CUDA in forked")
        )
    child.join()
    assert (x + 1).tolist() == [2, 2]
