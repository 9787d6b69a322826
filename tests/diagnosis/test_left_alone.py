"""After a check-up the model is the same object graph in the same state: closures, hooks, classes, generators."""

import functools
import random
import sys
import threading
import warnings
from collections import OrderedDict, deque
from contextlib import nullcontext, suppress
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType

import numpy
import pytest
import torch
from torch import Tensor, nn

import labkit
from labkit_diagnose import attributes

X = torch.linspace(-1, 1, 80).reshape(16, 5)


def walked(value, found, known, way="model", depth=30):
    """Note everything that ``value`` reaches: each object once, by the way to it, with its identity and its state."""
    if id(value) in known or not depth:
        found[way] = id(value), "again"
        return found
    inside = {}
    state = type(value).__name__
    if isinstance(value, Tensor):
        state = (str(value.dtype), str(value.device), value.requires_grad, value.tolist())
        inside = {"grad": value.grad} if value.is_leaf else {}
    elif isinstance(value, torch.Generator):
        state = value.get_state().tolist()
    elif type(value) is random.Random:
        state = value.getstate()
    elif isinstance(value, numpy.random.Generator):
        state = str(value.bit_generator.state)
    elif isinstance(value, (int, float, str, bool, type(None))):
        found[way] = 0, value
        return found
    elif isinstance(value, dict):
        inside = {str(key): one for key, one in value.items()}
    elif isinstance(value, (list, tuple, set, deque)):
        inside = dict(enumerate(value))
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        cells = [(name, cell) for name, cell in cells if cell != CellType()]  # not the empty ones
        around = {name: value.__globals__.get(name) for name in value.__code__.co_names if name.isupper()}
        inside = {
            **{name: cell.cell_contents for name, cell in cells}, **around, "defaults": value.__defaults__,
        }  # fmt: skip
    elif isinstance(value, (MethodType, BuiltinMethodType)):
        inside = {"self": value.__self__, "function": getattr(value, "__func__", None)}
    elif isinstance(value, functools.partial):
        inside = {"function": value.func, "arguments": value.args}
    elif isinstance(value, type):
        own = value.__module__ == __name__
        inside = {name: one for name, one in vars(value).items() if own and not name.startswith("__")}
    elif hasattr(value, "__dict__") and not isinstance(value, ModuleType):
        inside = {**vars(value), "class": type(value)}
    found[way] = id(value), state
    known.add(id(value))
    for step, one in inside.items():
        walked(one, found, known, f"{way}.{step}", depth - 1)
    return found


HISTORY, COUNTS, TOTAL, CACHE = [], {"calls": 0}, torch.zeros(5), {}
DRAWS, CALLS = numpy.random.default_rng(3), 0
TEACHER = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))


@functools.lru_cache
def positions(device):
    return torch.arange(5.0, device=device)


def note(x):
    global CALLS
    CALLS += 1
    HISTORY.append(x.detach())
    COUNTS["calls"] += 1
    CACHE[x.device] = x.detach()
    TOTAL.add_(x.detach().sum(0).cpu())


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        Sign.kept = x
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (Sign.kept.abs() < 1)


class Written(nn.Module):
    """Writes to all that a forward can reach."""

    seen, everywhere = 0, {}

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.BatchNorm1d(5)
        self.register_buffer("count", torch.zeros(()))
        self.features, self.outputs, self.last = [], deque(), None
        self.chance, self.own = random.Random(4), torch.Generator().manual_seed(5)

    def forward(self, x):
        note(x)
        type(self).seen += 1
        Written.everywhere[len(Written.everywhere)] = x
        self.count += 1
        self.last = x
        self.chance.random(), DRAWS.random()
        with torch.no_grad():
            TEACHER(x.detach().cpu())
        draws = torch.rand(5, generator=self.own).to(x.device)
        return Sign.apply(self.norm(self.linear(x + draws * positions(x.device))))


def hooked():
    """A model whose hooks write to what lies in their closures, the model itself among it."""
    model, calls, shapes, total, draws = Written(), 0, [], torch.zeros(()), torch.Generator().manual_seed(6)

    def count(module, inputs, output, kept=[]):  # noqa: B006  # a hook that keeps something in its default
        nonlocal calls, total
        calls += 1
        kept.append(calls)
        shapes.append(output.shape)
        total += 1
        torch.rand(3, generator=draws)
        model.features.append(output.detach())
        return None

    def keep(where, module, inputs):
        where.append(inputs[0])

    model.linear.register_forward_hook(count)
    model.linear.register_forward_pre_hook(functools.partial(keep, model.outputs))
    model.norm.register_forward_hook(
        model.features.__class__ and (lambda *all_of: model.outputs.append(all_of[-1]))
    )
    model.norm.register_full_backward_hook(lambda *_: shapes.append("back"))
    return model


MODEL = None


def named_by_a_global():
    """As in a script, where hooks name the model by its global variable."""
    global MODEL
    MODEL = Written()
    MODEL.linear.register_forward_hook(lambda module, inputs, output: MODEL.features.append(output))
    return MODEL


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)))


@pytest.mark.parametrize("made", [hooked, named_by_a_global, scripted, Written])
def test_the_model_is_the_same_object_graph_in_the_same_state(made):
    positions.cache_clear()
    torch.manual_seed(0)
    model = made()
    if made is not scripted:
        model(X).sum().backward()  # there are gradients, and something in every list
    roots = [model, *model.buffers(), *model.parameters()]
    before = walked(roots, {}, set())
    assert len(before) > 40
    labkit.diagnose(model, X, gpus=4)
    after = walked(roots, {}, set())
    assert [way for way in before | after if before.get(way) != after.get(way)] == []
    gradients = [parameter.grad is None for parameter in model.parameters()]
    assert all(gradients) == (made is scripted)
    assert all(device.type == "cpu" for device in CACHE)
    assert positions(torch.device("cpu")).device.type == "cpu"


def test_a_generator_in_a_closure_is_not_drawn_from():
    letters = (letter for letter in "ab")
    model = nn.Linear(5, 5)
    model.register_forward_hook(lambda *_: next(letters) and None)
    with pytest.raises(ValueError, match="cannot pickle 'generator' object"):
        labkit.diagnose(model, X)
    assert list(letters) == ["a", "b"]


COINS, DICE, NOTES = torch.Generator().manual_seed(1), random.Random(2), ModuleType("notes_of_a_script")
NOTES.seen = []


class FromOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        NOTES.seen.append(x.max().item())
        return self.linear(x) + 0 * torch.rand((), generator=COINS).item() + 0 * DICE.random()


def test_generators_and_modules_that_a_forward_names_are_as_before():
    before = COINS.get_state(), DICE.getstate()
    found = labkit.diagnose(FromOutside(), X, gpus=2)
    assert [(one.name, one.where) for one in found.findings] == [("shared_state", "seen")]
    assert NOTES.seen == []
    assert torch.equal(COINS.get_state(), before[0])
    assert DICE.getstate() == before[1]


class Registry(OrderedDict):
    """As transformers.activations.ACT2FN: what is asked for is made anew."""

    def __getitem__(self, key):
        return super().__getitem__(key)(inplace=True, missing=True)


def fails(*_, **__):
    raise RuntimeError("a method of a container")


# Of each of Python's containers those methods that could serve to copy, read, empty or fill it.
METHODS = [
    (base, name)
    for base in (dict, list, set, OrderedDict, deque)
    for name in ("copy", "clear", "update", "extend", "items", "values", "keys", "add", "append", "__iter__", "__len__",
                 "__getitem__", "__setitem__", "__contains__", "__eq__", "__copy__", "__reduce_ex__")
    if hasattr(base, name)
]  # fmt: skip
ODD = None


def pairs(container):
    return list(attributes.pairs_in(container))


@pytest.mark.parametrize(("base", "method"), [*METHODS, (Registry, "")])
def test_a_container_is_as_before_whichever_of_its_methods_fails(base, method):
    global ODD
    kind = type("Odd", (base,), {method: fails} if method else {})
    ODD, own, around = kind(), kind(), kind()
    mapping, add = issubclass(base, dict), {set: set.add, list: list.append, deque: deque.append}.get(base)
    own_base = OrderedDict if issubclass(base, OrderedDict) else dict

    def put(container, key):
        own_base.__setitem__(container, key, nn.ReLU) if mapping else add(container, key)

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.own = nn.Linear(5, 5), own

        def forward(self, x):
            put(ODD, "written"), put(around, "written"), put(self.own, "written")
            if len(x) < len(X):
                raise ValueError("half-way")
            return self.linear(x)

    for container in (ODD, own):
        put(container, "there"), put(container, 2)
    before = [pairs(container) for container in (ODD, own, around)]
    with suppress(ValueError):  # a model that cannot be copied is refused
        labkit.diagnose(Writes(), X, gpus=2)
    assert [pairs(container) for container in (ODD, own, around)] == before


def of_torch():
    """What a check-up may change of torch, Python and numpy."""
    return (
        torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device(), torch.cuda.is_available(),
        torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()),
        torch.Tensor.to, nn.Module.__call__,
        nn.DataParallel.forward, len(nn.modules.module._global_forward_hooks), torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(), warnings.filters[:], sys.stdout,
    )  # fmt: skip


@pytest.mark.parametrize("half_way", [False, True])
def test_the_state_of_torch_is_as_before(half_way):
    def forward(x):
        (
            torch.set_default_dtype(torch.float64),
            torch.set_default_device("cuda:0"),
            torch.set_grad_enabled(False),
        )
        torch.rand(3), random.random(), numpy.random.rand()
        if half_way:
            raise SystemExit
        return x * 2

    model = nn.Linear(5, 5)
    model.register_forward_hook(lambda module, given, out: forward(out))
    before = of_torch()
    with pytest.raises(SystemExit) if half_way else nullcontext():
        labkit.diagnose(model, X, gpus=2)
    assert of_torch() == before


class Shared:
    """What copies share: it says that it is its own copy."""

    def __init__(self):
        self.scale, self.calls, self.net, self.seen = torch.ones(5), 0, nn.Linear(5, 5), []

    def __deepcopy__(self, memo):
        return self


def test_what_deepcopy_shares_stays_where_it_is():
    shared = Shared()

    def forward(module, given, out):
        module.shared.calls += 1
        module.shared.seen.append(out)
        return out * module.shared.scale.to(out.device)

    model = nn.Linear(5, 5)
    model.shared = shared
    model.register_forward_hook(forward)
    found = labkit.diagnose(model, X, gpus=2)
    assert [(one.name, one.where) for one in found.findings] == [("shared_state", "shared")]
    assert (shared.calls, shared.seen, shared.scale.device.type, shared.net.weight.device.type) == (
        0,
        [],
        "cpu",
        "cpu",
    )


class Slots:
    __slots__ = ("calls",)


class Key:
    """A key that can be hashed once."""

    hashed = False

    def __hash__(self):
        if self.hashed:
            raise RuntimeError("no more")
        self.hashed = True
        return 1


ENDS, KEYED, STARTS = [], {Key(): 1}, []


def test_where_one_thing_cannot_be_restored_the_others_are():
    def forward(module, given, out):
        ENDS.append(1), KEYED.clear(), STARTS.append(1)

    model = nn.Linear(5, 5)
    model.register_forward_hook(forward)
    with pytest.raises(RuntimeError, match="no more"):
        labkit.diagnose(model, X, gpus=2)
    assert (ENDS, STARTS) == ([], [])


COUNTED, TRAINED, SLOTS = numpy.zeros(2), nn.Parameter(torch.ones(5)), Slots()
SLOTS.calls = 0


class Trains(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.lock, self.changed = nn.Linear(5, 5), threading.RLock(), threading.Event()

    def forward(self, x):
        global LATER
        with self.lock:
            LATER, COUNTED[0] = x, COUNTED[0] + 1
            SLOTS.calls += 1
            TEACHER[0].weight.data.mul_(2)
        return self.linear(x) * TRAINED.to(x.device)


def test_arrays_weights_gradients_and_new_globals_are_as_before():
    weights = TEACHER[0].weight.detach().clone()
    labkit.diagnose(Trains(), X, gpus=2)
    assert (COUNTED.tolist(), SLOTS.calls) == ([0, 0], 0)
    assert "LATER" not in globals()
    assert TRAINED.grad is None
    assert torch.equal(TEACHER[0].weight, weights)


def test_a_package_in_site_packages_is_not_written_to(tmp_path, monkeypatch):
    """It imports itself, fills its registry at the first use, and would not do so again; what it keeps is its own."""
    folder = tmp_path / "site-packages" / "lazy_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import parts\nfrom .parts import REGISTRY\n")
    (folder / "parts.py").write_text(
        "import torch, lazy_package\nREGISTRY, FILLED = {}, []\n"
        "class Part(torch.nn.Linear):\n    def forward(self, x):\n        lazy_package\n"
        "        if not FILLED:\n            FILLED.append(1), REGISTRY.update(a=1)\n"
        "        self._scratch = x\n        return super().forward(x)\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    import lazy_package

    model = lazy_package.parts.Part(5, 5)
    registry = lazy_package.REGISTRY
    model.register_forward_hook(lambda *_: registry.get("a") and None)
    assert labkit.diagnose(model, X, gpus=2).ok
    assert (registry, lazy_package.parts.FILLED) == ({"a": 1}, [1])
