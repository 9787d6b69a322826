"""What is patched stands in one table, and whatever programs do, all of torch is itself again afterwards."""

import ast
import contextlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import labkit
import simgpu
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


# The attributes that the machine puts on objects of torch and of Python: on what, and the file.
ATTRIBUTES = {
    "_labkit_mark": "a storage: the GPU (state/marks.py)",
    "_labkit_pinned": "a storage: whether it is in pinned memory (state/marks.py)",
    "_labkit_gpu": "a generator: the GPU for which it was made (state/random.py)",
    "_labkit_turn": "a thread: its turn among the replicas (state/threads.py)",
    "_labkit_inputs": "a node of the graph, a module's hook: the GPU of each input (ops/gradients.py)",
    "_labkit_outputs": "a node of the graph, a module's hook: the GPU of each output (ops/gradients.py)",
    "_labkit_stream": "a node of the graph: the stream of its forward (ops/gradients.py)",
    "_labkit_streams": "a module's hook: the streams of its inputs and outputs (features/module_hooks.py)",
    "_labkit_modes": "a context manager: the modes pushed with it (simgpu/stack.py)",
    "_labkit_wrapped": "a __torch_dispatch__: it is wrapped already (features/dispatch/classes.py)",
    "_labkit_libraries": "torch.library: the registrations that replace others (features/dispatch/libraries.py)",
    "_labkit_kernels": "torch.library: the kernels for half precision (features/kernels/half_precision.py)",
    "_labkit_attention": "torch.library: the kernels of CUDA's attention (features/attention_kernels.py)",
    "_labkit_held": "a Reducer: the bytes of its buckets (features/reducers.py)",
    "_labkit_map": "a Reducer: the bytes of its map of used parameters (features/reducers.py)",
}


def test_the_attributes_that_the_machine_puts_on_others_objects_are_listed():
    texts = {path: path.read_text("utf-8") for path in Path(simgpu.__file__).parent.rglob("*.py")}
    written = {name for text in texts.values() for name in re.findall(r"\b_labkit_\w+", text)}
    assert written == set(ATTRIBUTES)
    for name, what in ATTRIBUTES.items():
        files = [file for file in texts if str(file).endswith(tuple(re.findall(r"\w+/\w+\.py", what)))]
        assert any(name in texts[file] for file in files), name


def changing(module):
    """The names in ``module`` whose values functions change: containers that begin empty, locks, ``global`` ones."""
    tree = ast.parse(module.read_text("utf-8"))
    for node in tree.body:
        value = getattr(node, "value", None)
        empty = isinstance(value, (ast.Dict, ast.List)) and not getattr(value, value._fields[0])
        if empty or (isinstance(value, ast.Call) and not value.args and not value.keywords):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
    yield from (name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names)


# Module variables that change while the program runs, without the registries.
VALUES = {
    "machine": {"_opened", "_changing"},
    "simulation": {"_open"},
    "state.current_machine": {"_active", "work"},
    "state.host": {"_looks"},
    "state.leaves": {"_running", "_waiting"},
    "ops.gradients": {"_unmoved_gradients"},
    "torch_api.absent": {"REFUSED"},
    "features.dispatch.libraries": {"_routed"},
    "features.sync_and_determinism": {"_here"},
    "features.kernels.half_precision": {"_here"},
    "features.compiling": {"_warned"},
    "features.dtensors": {"_found_shapes"},
    "features.tensors_without_data": {"_operators", "_shapes"},
}


def test_values_of_the_process_that_change_are_listed():
    folder = Path(simgpu.__file__).parent
    registered = {"hooks", "handlers", "rules.functions", "rules.operators"}
    fixed = {"_KNOWN", "ANYWHERE", "FEATURES", "ENVIRONMENT", "PYTHONPATH"}
    found = {}
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        names = set(changing(path)) - fixed
        if names and module not in registered:
            found[module] = names
    assert found == VALUES
