"""A check-up leaves everything as it was, and says the same whatever machine is in use."""

import queue
import threading
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import labkit
from simgpu import machine_in_use

X = torch.linspace(-1, 1, 80).reshape(16, 5)


class Runs(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(5, 5), function

    def forward(self, *inputs):
        return self.function(self, *inputs)


def test_gradients_are_compared_where_none_are_wanted_and_the_users_get_none():
    """What else of the user's stays as it was: test_left_alone.py."""
    model, x = nn.Linear(5, 4), X.clone().requires_grad_()
    with torch.no_grad():
        assert "gradients" in " ".join(labkit.diagnose(model, x).compared)
        assert not torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in (*model.parameters(), x))
    assert not torch.cuda.is_available()


@dataclass
class Batch:
    x: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inner:
    batch: Batch


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Mapping(UserDict):
    """As a tokenizer's encoding is."""

    def __init__(self, x):
        super().__init__({"x": x})

    @property
    def x(self):
        return self["x"]


class Layers:
    """Holds itself, and its tensor deep inside, as caches of keys and values do."""

    def __init__(self, x):
        self.layers = [{"keys": SimpleNamespace(x=x)}]
        self.layers[0]["whole"] = self

    @property
    def x(self):
        return self.layers[0]["keys"].x


def doubled(self, batch, *_):
    batch = getattr(batch, "batch", batch)
    return self.linear(batch.x.mul_(2).to(self.linear.weight.device))


@pytest.mark.parametrize("moved", [True, False], ids=["moved in forward", "left where it is"])
@pytest.mark.parametrize(("holds", "where"), [
    (Batch, "input 0"), (lambda x: Inner(Batch(x)), "input 0"), (lambda x: SimpleNamespace(x=x), "input 0"),
    (Slotted, "input 0"), (Mapping, "input 0"), (Layers, "input 0"),
], ids=["dataclass", "dataclass in a dataclass", "object", "slots", "UserDict", "a cache of layers"])  # fmt: skip
def test_tensors_in_objects_are_not_changed_and_the_object_is_named(holds, where, moved):
    x = X.clone()
    forward = (
        doubled if moved else lambda self, batch, *_: self.linear(getattr(batch, "batch", batch).x.mul_(2))
    )
    found = labkit.diagnose(Runs(forward), holds(x), X, gpus=2)
    assert torch.equal(x, X)
    assert [(f.name, f.where) for f in found.findings] == [("uncut_input", where)]


def test_an_object_is_on_the_gpu_of_its_model():
    # Moved in forward by nobody: one GPU must not be blamed for where the check-up left the object's tensors.
    model = Runs(lambda self, x, state: self.linear(x) + state.x)
    found = labkit.diagnose(model, X, Layers(torch.ones(5)), gpus=2)
    assert [(f.name, f.where) for f in found.findings] == [("uncut_input", "input 1")]
    kept = Layers(threading.Lock())
    kept.layers[0]["tensor"] = X
    with pytest.raises(
        ValueError, match="input 1: this Layers holds tensors, and copy.deepcopy cannot copy it"
    ):
        labkit.diagnose(model, X, kept, gpus=2)


def test_a_namedtuple_is_cut_as_scatter_cuts_it():
    Pair = namedtuple("Pair", "x y")
    model = Runs(lambda self, pair: self.linear(pair.x) + pair.y)
    assert labkit.diagnose(model, Pair(X, X), gpus=2).ok
    found = labkit.diagnose(model, Pair(X, Slotted(X)), gpus=2)
    assert "fails_on_one" in found  # x + an object


def test_a_dataclass_alone_is_a_batch():
    found = labkit.diagnose(Runs(doubled), Batch(X.clone()), gpus=2)
    assert found.split.batch == 16
    assert [(f.name, f.where) for f in found.findings] == [("uncut_input", "input 0")]


def test_containers_without_tensors_are_not_changed():
    options = {"scale": 2, "names": ["a"]}

    def forward(self, x, options):
        options["names"].append("b")
        return self.linear(x) * options.pop("scale")

    assert labkit.diagnose(Runs(forward), X, options, gpus=2).ok  # scatter makes each replica its own
    assert options == {"scale": 2, "names": ["a"]}


class Wide(nn.Module):
    """More than a MiB on the GPU of the weights, and as much again in outputs."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 60_000), nn.BatchNorm1d(60_000)

    def forward(self, x):
        return self.norm(self.linear(x)).t()


@pytest.fixture(scope="module")
def without_a_machine():
    torch.manual_seed(0)
    return labkit.diagnose(Wide(), X, gpus=2, memory="1 GiB").to_json()


@pytest.mark.parametrize("machine", [
    {"gpus": 2, "memory": "1 MiB"}, {"gpus": 1}, {"gpus": 3, "order": [2, 1, 0]},
    {"gpus": 2, "order": "threads"},
], ids=str)  # fmt: skip
def test_what_is_said_does_not_depend_on_the_machine_in_use(machine, without_a_machine):
    torch.manual_seed(0)
    with labkit.simulate(**machine):
        large = torch.ones(100_000, device="cuda:0")  # is there before and after: not the model's
        assert labkit.diagnose(Wide(), X, gpus=2, memory="1 GiB").to_json() == without_a_machine
        assert large.sum() == 100_000


@pytest.mark.parametrize("gpus", [2, 3, 8], ids=["fewer", "as many", "more"])
def test_the_machine_in_use_stays(gpus):
    with labkit.simulate(gpus=3, memory="1 MiB", order=[2, 0, 1]) as machine:
        model, x = nn.Linear(5, 2).cuda(), X.cuda()
        target = x[:, :2].to("cuda:1")
        torch.cuda.set_device(2)
        torch.cuda.set_per_process_memory_fraction(0.5, 1)
        torch.ones(2000, device="cuda:1")  # a peak above what is there
        model.register_forward_hook(lambda *_: torch.cuda.Event().record())  # takes 5 µs of the GPU's time
        before = known(machine)
        loss = lambda out: (out.to("cuda:1") - target).square().mean()  # noqa: E731
        found = labkit.diagnose(model, x, gpus=gpus, loss=loss)
        assert found.ok, found
        assert "gradients" in " ".join(found.compared)  # the loss holds a tensor of the machine in use
        assert machine_in_use() is machine
        assert known(machine) == before
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(2**18, device="cuda:0")


def known(machine):
    return {
        "device": (torch.cuda.current_device(), torch.cuda.device_count()),
        "random": [state.tolist() for state in torch.cuda.get_rng_state_all()],
        "memory": [dict(torch.cuda.memory_stats(k)) for k in range(3)],
        "size": [torch.cuda.get_device_properties(k).total_memory for k in range(3)],
        "fraction": [torch.cuda.get_per_process_memory_fraction(k) for k in range(3)],
        "order": machine.order,
        "time": [gpu.clock.time() for gpu in machine.gpus],
    }


def test_a_check_up_that_fails_gives_the_machine_back():
    class Stop(BaseException):
        pass

    def forward(self, x):
        raise Stop

    with labkit.simulate(gpus=2, memory="1 MiB") as machine:
        with pytest.raises(Stop):
            labkit.diagnose(Runs(forward), X, gpus=2)
        assert machine_in_use() is machine
        assert machine.gpus[0].capacity == 2**20


# What models keep. A check-up puts back what functions reach around them, but nothing in objects of Python's own.
KEPT = queue.SimpleQueue()


def test_what_a_model_keeps_on_a_gpu_counts_there():
    model = Runs(lambda self, x: KEPT.put(x.new_ones(2**18)) or self.linear(x))
    with labkit.simulate(gpus=2, memory="1 MiB") as machine:
        few = torch.ones(1, device="cuda:0")
        labkit.diagnose(model, X, gpus=2)
        assert machine.memory(0) > 2**20
        with pytest.raises(torch.OutOfMemoryError):
            few.clone()
        while not KEPT.empty():
            KEPT.get()


def test_of_two_threads_the_second_waits_for_the_first():
    begun, found = threading.Event(), {}
    ran = queue.SimpleQueue()

    def check(name):
        def forward(self, x):
            ran.put(name)
            begun.set()
            return self.linear(x)

        found[name] = labkit.diagnose(Runs(forward), X, gpus=2)

    first = threading.Thread(target=check, args=["first"])
    second = threading.Thread(target=check, args=["second"])
    first.start()
    assert begun.wait(60)
    second.start()
    first.join(), second.join()
    order = [ran.get() for _ in range(ran.qsize())]
    assert sorted(order) == order  # all of the one, then all of the other
    assert found["first"].ok
    assert found["second"].ok
    assert not torch.cuda.is_available()
