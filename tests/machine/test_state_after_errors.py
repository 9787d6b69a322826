"""Whatever is called, and however it fails, the machine is in the same state afterwards."""

import inspect
import random
import sys
import warnings
from contextlib import ExitStack, contextmanager, suppress

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import labkit
from labkit.base.tree import tensors_in
from simgpu import hooks
from simgpu.state.current_machine import work
from simgpu.state.placement import gpu_of

functional = nn.functional
HOME, OTHER = "cuda:0", "cuda:1"


class Seen(torch.Tensor):
    """A subclass that answers functions."""


class Logged(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Passed(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Broken(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("add", "mul", "mm", "sum", "relu", "stack"):
            raise LookupError(
                "in a dispatch mode"
            )  # in others C++ ends the process, as it does without a machine
        return func(*args, **(kwargs or {}))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if random.random() < 0.3:
            raise LookupError("in backward")
        return grad * 2


@pytest.fixture(scope="module", autouse=True)
def operator():
    @torch.library.custom_op("unharmed::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise LookupError("in a kernel")
        return x * 2


def state(machine, tensors):
    """What no call may change."""
    depth = torch._C._len_torch_function_stack()
    return {
        "function modes": [id(torch._C._get_function_stack_at(at)) for at in range(depth)],
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "the mode's answer": vars(machine.mode).get("__torch_function__"),
        "default device": torch.zeros(1).device,
        "current": (torch.cuda.current_device(), torch.cuda.current_stream(0), torch.cuda.current_stream(1)),
        "at work": (work.gpu, work.whole, work.engine),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "gradients": torch.is_grad_enabled(), "functions": torch._C._is_torch_function_enabled(),
        "lent": machine.random._lent, "marks": [gpu_of(tensor) for tensor in tensors],
    } | {
        (id(owner), name): vars(owner).get(name)
        for owner, name, _ in machine._patches._before
        if name != "_streams"  # where PyTorch's scatter keeps its streams from the first call on
    }  # fmt: skip


def a_pool():
    layer, other = nn.Linear(4, 4).to(HOME), nn.Linear(4, 4).to(OTHER)
    pool = [layer.weight, layer.bias, other.weight]
    for device in ("cpu", HOME, OTHER):
        pool += [
            torch.rand(3, 4, device=device),
            torch.rand(4, 4, device=device).half(),
            torch.rand((), device=device),
        ]
        pool += [torch.tensor([0, 9], device=device), torch.rand(2, 4, device=device, requires_grad=True)]
        pool += [torch.rand(4, 4, device=device).as_subclass(Seen), torch.eye(4, device=device).to_sparse()]
        rows = [torch.rand(2, 4, device=device), torch.rand(3, 4, device=device)]
        pool += [torch.nested.nested_tensor(rows, layout=layout) for layout in (torch.jagged, torch.strided)]
    return layer, pool


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES = [
    Logged, Passed, Broken, torch.no_grad, deterministic, lambda: torch.autocast("cuda"), lambda: torch.device(OTHER),
    lambda: torch.cuda.device(1), lambda: torch.cuda.stream(torch.cuda.Stream(1)), torch.autograd.graph.save_on_cpu,
]  # fmt: skip


def functions(layer, draw):
    """Calls of one, two or three tensors of any kind."""

    def backward(x, y):
        (Doubled.apply(x) * y).sum().backward()

    one = [
        layer, torch.sum, torch.relu, functional.dropout, torch.nonzero, repr, torch.Tensor.tolist, torch.Tensor.item,
        lambda x: x.to(draw.choice(["cpu", HOME, OTHER])), lambda x: x[9], lambda x: x.sum().backward(),
        lambda x: torch.ops.unharmed.twice(x), lambda x: torch.empty_like(x, device=OTHER), lambda x: x.cuda(7),
        lambda x: nn.parallel.scatter(x, [0, 1]), lambda x: torch.func.vmap(torch.sin)(x), torch.linalg.inv,
        lambda x: functional.avg_pool3d(x, 2), lambda x: torch.cat([x, x.to(OTHER)]), lambda x: x.requires_grad_(),
        lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward(),
        lambda x: nn.DataParallel(layer, [0, 1])(x),
    ]  # fmt: skip
    two = [
        torch.add, torch.matmul, functional.linear, functional.embedding, torch.where, torch.cat, backward,
        lambda x, y: x.copy_(y), lambda x, y: x.index_select(0, y), lambda x, y: torch.autograd.grad(x.sum(), y),
        lambda x, y: torch.stack([x, y]), lambda x, y: torch.optim.SGD([x, y], lr=1.0).step(), torch.mul, torch.mm,
    ]  # fmt: skip
    return [(function, 1) for function in one] + [(function, 2) for function in two]


def fuzz(calls, seed=0):
    """Returns how many of the ``calls`` came back and how many failed."""
    draw = random.Random(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    ended = {True: 0, False: 0}
    with labkit.simulate(gpus=2) as machine, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer, pool = a_pool()
        choices = functions(layer, draw)
        for call in range(calls):
            function, many = draw.choice(choices)
            given = [draw.choice(pool) for _ in range(many)]
            modes = [draw.choice(MODES) for _ in range(draw.choice([0, 0, 0, 1, 1, 2, 3]))]
            tensors = tensors_in(given)
            before = state(machine, tensors)
            try:
                with ExitStack() as stack:
                    for mode in modes:
                        stack.enter_context(mode())
                    function(*given)
                ended[True] += 1
            except Exception:
                ended[False] += 1
            after = state(machine, tensors)
            changed = {what: (was, after[what]) for what, was in before.items() if after[what] != was}
            assert not changed, (changed, seed, call, function, modes, given)
    return ended


def test_mixed_calls_and_their_errors_leave_everything_as_it_was():
    ended = fuzz(300)
    assert min(ended.values()) > 60, ended


@pytest.mark.more
def test_many_mixed_calls_and_their_errors_leave_everything_as_it_was():
    fuzz(2000, seed=1)


def test_a_jagged_tensor_is_refused_by_what_it_is_made_of(gpus):
    rows = [torch.rand(2, 4), torch.rand(3, 4)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged).to(OTHER)
    with pytest.raises(RuntimeError, match="mat1 is on cuda:1, different from other tensors on cuda:0"):
        nn.Linear(4, 4).to(HOME)(jagged)
    assert nn.Linear(4, 4).to(OTHER)(jagged).device == torch.device(OTHER)
    assert torch.zeros(1).device.type == "cpu"


def test_where_the_stack_of_python_ends_nothing_stays():
    """A context manager is left wherever it could be entered, at each depth."""

    def saved():
        with torch.autograd.graph.save_on_cpu():
            (a * a).sum().backward()

    def cast():
        with torch.autocast("cuda"):
            return layer(a)

    def told():
        with deterministic():
            return a.sum()

    # Ranks follow, too, where they have been imported.
    with labkit.simulate(gpus=2) as machine, hooks.is_followed.adding(lambda _: False):
        layer = nn.Linear(4, 4).to(HOME)
        a, b = torch.rand(3, 4, device=HOME, requires_grad=True), torch.rand(4, 4, device=OTHER)
        whole = a.detach().long()
        calls = [lambda: layer(b), lambda: whole @ whole.T, lambda: functional.dropout(a), saved, cast, told]
        told()  # the first time, torch imports more
        before, limit, depth = state(machine, [a, b]), sys.getrecursionlimit(), len(inspect.stack(0))
        for call in calls:
            for left in range(90):
                try:
                    with suppress(RuntimeError):  # also where no more than this is left
                        sys.setrecursionlimit(depth + left)
                        call()
                finally:
                    sys.setrecursionlimit(limit)
                assert state(machine, [a, b]) == before, (call, left)
