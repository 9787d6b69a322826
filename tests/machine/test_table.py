"""What is patched stands in one table, and whatever programs do, all of torch is itself again afterwards."""

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import labkit
from labkit.base.ours import PACKAGES
from labkit.turns.locks import lock_patches
from simgpu import Machine, machine_in_use
from simgpu.torch_api.table import table

WATCHED = ("torch", "threading", "_thread", "multiprocessing", *PACKAGES)
# What torch itself sets when something is first used.
FIRST_USE = {
    ("torch._opaque_base", "_FakeScriptObject_cls"), ("torch.utils.hooks.RemovableHandle", "next_id"),
    ("torch.autograd.profiler", "_cupti_monitor_module"), ("torch.autograd.profiler", "_cupti_monitor_checked"),
}  # fmt: skip


def where(owner):
    """The name of a module, of a class, or of an object's class."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", None) or where(type(owner))


def watched():
    """Every module of torch (and of what else is patched), every class in it, and every owner in the table."""
    owners = {where(row.owner): row.owner for row in (*table(Machine(1)), *lock_patches())}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in WATCHED and module is not None:
            owners[name] = module
            for value in vars(module).values():
                if issubclass(type(value), type) and type.__getattribute__(value, "__module__").startswith(
                    WATCHED
                ):
                    owners[where(value)] = value
    return owners


class Snapshot:
    """All that all owners have, now."""

    def __init__(self):
        self.before = {at: (owner, dict(vars(owner))) for at, owner in watched().items()}
        self.modes = torch._C._len_torch_function_stack()
        self.patched = {where(row.owner) for row in (*table(Machine(1)), *lock_patches())}

    def changes(self):
        found = [("modes", "")] * (torch._C._len_torch_function_stack() != self.modes)
        for at, (owner, had) in self.before.items():
            has = vars(owner)
            found += [(at, name) for name, value in had.items() if name not in has or has[name] is not value]
            # Elsewhere, torch imports its own submodules when they are first used.
            found += [(at, name) for name in has if name not in had and at in self.patched]
        return sorted(set(found) - FIRST_USE - {("torch.profiler", "_cupti_monitor")})


def step(model, batch):
    loss = model(batch).sum()
    loss.backward()
    return loss


def train():
    with labkit.simulate(gpus=3):
        model = nn.DataParallel(nn.Linear(5, 2).cuda())
        optimizer = torch.optim.Adam(model.parameters())
        step(model, torch.ones(7, 5))
        optimizer.step()
        torch.cuda.synchronize()


def nest():
    with labkit.simulate(gpus=3), labkit.simulate(gpus=2):
        labkit.simulate(gpus=4)
        with labkit.simulate(gpus=5) as machine:
            machine.close()


def fail():
    with labkit.simulate(gpus=2):
        with pytest.raises(torch.OutOfMemoryError), labkit.simulate(gpus=2, memory="1 MiB"):
            torch.ones(2**20, device="cuda")
        with (
            pytest.raises(ZeroDivisionError),
            labkit.simulate(gpus=2),
            torch.autocast("cuda"),
            labkit.record(),
            torch.device("cuda:1"),
        ):
            1 / 0  # noqa: B018


def cast():
    with labkit.simulate(gpus=2), torch.autocast("cuda"):
        step(nn.Linear(5, 2).cuda(), torch.ones(1, 5, device="cuda"))


def change_defaults():
    with labkit.simulate(gpus=2):
        torch.set_default_device("cuda:1")
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        torch.ones(2)


def record():
    with labkit.record():
        machine = labkit.simulate(gpus=2)
        with labkit.record():
            step(labkit.DataParallel(nn.Linear(5, 2).cuda()), torch.ones(7, 5))
        machine.close()


def diagnose():
    labkit.diagnose(nn.Linear(3, 3), torch.ones(4, 3), gpus=2)


PROGRAMS = (train, nest, fail, cast, change_defaults, record, diagnose)


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """What torch and labkit import on first use is imported before the first snapshot; none of it runs a machine."""
    torch.optim.Adam([torch.zeros(1)])
    assert all((labkit.record, labkit.diagnose, labkit.DataParallel))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_torch_is_itself_again(program):
    snapshot = Snapshot()
    program()
    assert not snapshot.changes()
    assert not torch.cuda.is_available()
    assert torch.ones(2).device.type == "cpu"


def test_threads_that_open_machines_at_once_leave_torch_as_it_was():
    start = threading.Barrier(4)

    def open_and_close(gpus, block):
        start.wait(30)
        for _ in range(20):
            try:
                machine = labkit.simulate(gpus=gpus)
                with machine if block else contextlib.closing(machine):
                    pass
            except RuntimeError as error:  # another thread's plain call has ended this machine
                if not str(error).endswith(": make a new machine"):
                    raise

    snapshot = Snapshot()
    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(open_and_close, n, n % 2) for n in range(1, 5)]:
            ended.result()
    while machine_in_use() is not None:
        machine_in_use().close()
    assert not snapshot.changes()


def test_the_table_names_every_change_once():
    rows = list(table(Machine(2)))
    assert len({(where(row.owner), row.name) for row in rows}) == len(rows) > 100
    snapshot = Snapshot()
    with labkit.simulate(gpus=2):
        inside = {change for change in snapshot.changes() if change != ("modes", "")}
    named = {(where(row.owner), row.name) for row in rows}
    assert inside <= named | {("simgpu.state.current_machine", "_active")}, "changed, and not in the table"


@pytest.mark.parametrize(("owner", "name"), [
    (torch.cuda, "current_device"), (torch.nn.Linear, "forward"), (torch.Tensor, "labkit_was_here"),
    (torch.utils.data.DataLoader, "__iter__"), (torch._C, "_cuda_labkit_was_here"),
])  # fmt: skip
def test_a_change_outside_the_table_would_be_seen(owner, name, monkeypatch):
    snapshot = Snapshot()
    monkeypatch.setattr(owner, name, None, raising=False)
    assert (where(owner), name) in snapshot.changes()
