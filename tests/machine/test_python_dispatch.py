"""Python that C++ calls in the middle of an operation is on the machine too."""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

import simgpu

pytestmark = pytest.mark.usefixtures("gpus")
CUDA0, CUDA1, CPU = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


class Log(TorchDispatchMode):
    """Notes what each operator is given and gives: the devices of tensors, and device=."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf.device for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.seen.append((func.__name__.split(".")[0], given, kwargs.get("device"), made))
        return result

    def devices(self):
        return {device for _, given, chosen, made in self.seen for device in (*given, chosen, *made)} - {None}


def logged(run):
    with Log() as log:
        run()
    return log


def below_autograd():
    """Where a dispatch mode meets operators that are made of others, which autograd takes apart before."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU))


# Modes.


def test_a_dispatch_mode_sees_devices_and_what_it_is_told():
    assert logged(lambda: torch.zeros(2, device=CUDA1)).seen == [("zeros", [], CUDA1, [CUDA1])]
    x, y = torch.ones(2), torch.ones(2, device=CUDA1)
    assert logged(lambda: x.to(CUDA1)).seen == [("_to_copy", [CPU], CUDA1, [CUDA1])]
    assert logged(lambda: y.to(CUDA0)).seen == [("_to_copy", [CUDA1], CUDA0, [CUDA0])]
    assert logged(y.cpu).seen == [("_to_copy", [CUDA1], CPU, [CPU])]
    assert logged(lambda: torch.tensor([1, 2], device=CUDA1)).devices() == {CUDA1}
    assert x.device == CPU


def test_an_operator_that_has_a_device_among_its_arguments_makes_its_result_there():
    x = torch.ones(2, device=CUDA0)
    move = torch.ops.aten.to.device
    assert move(x, CUDA1, torch.float64).device == CUDA1
    moved = move(x, CUDA0, torch.float32, False, True, memory_format=torch.contiguous_format)
    assert (moved.device, moved.data_ptr() == x.data_ptr()) == (CUDA0, False)
    with below_autograd(), Log() as log:
        assert x.to(torch.float64).device == CUDA0
    assert log.devices() == {CUDA0}


def test_an_operator_runs_as_those_that_it_is_made_of_where_it_is():
    x = torch.zeros(4, device=CUDA1)
    with below_autograd(), Log() as log:
        found = torch.ops.aten.log_sigmoid.default.decompose(x)
    assert log.seen[-1] == ("log_sigmoid_forward", [CUDA1], None, [CUDA1, CUDA1])
    assert (len(log.seen), found.device, found[0].item()) == (1, CUDA1, pytest.approx(-0.6931, abs=1e-4))


@pytest.mark.parametrize("run", [lambda op: op, lambda op: op.decompose], ids=["called", "decomposed"])
def test_operators_that_move_a_tensor_find_the_device_wherever_it_is_said(run):
    x, there = torch.ones(2, device=CUDA0), torch.ones(1, device=CUDA1, dtype=torch.float64)
    to = torch.ops.aten.to
    moved = [
        run(to.device)(x, "cuda:1", torch.float64), run(to.dtype_layout)(x, device=CUDA1, dtype=torch.float64),
        run(to.other)(x, there), run(torch.ops.aten.type_as.default)(x, there),
    ]  # fmt: skip
    assert {(each.device, each.dtype) for each in moved} == {(CUDA1, torch.float64)}
    assert run(to.dtype_layout)(x, device="cpu").device == CPU
    with pytest.raises(RuntimeError, match="doesn't support converting to a different layout"):
        run(to.dtype_layout)(x, layout=torch.sparse_coo)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, FakeTensorMode])
def test_packets_of_operators_move_tensors_and_fake_ones_too(mode):
    with torch.no_grad(), mode():
        x, there = (torch.ones(2, device=device) for device in (CUDA0, CUDA1))
        to, put = torch.ops.aten.to, torch.ops.prims.device_put
        moved = [
            to(x, CUDA1, torch.float32),
            to.other(x, there),
            torch.ops.aten.type_as(x, there),
            put(x, CUDA1, True),
        ]
        assert {each.device for each in moved} == {CUDA1}


def test_a_users_function_mode_below_a_dispatch_mode_sees_the_users_functions_alone():
    seen = []

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 2, device=CUDA1)
    with Functions(), Log():
        torch.mm(x, x)
    assert seen == [torch.mm]


def test_intermediate_results_of_C_are_where_the_call_is():
    logits, target = torch.randn(4, 3, device=CUDA1), torch.arange(4, device=CUDA1) % 3
    log = logged(lambda: (F.cross_entropy(logits, target), F.one_hot(target)))
    assert log.devices() == {CUDA1}
    assert len(log.seen) > 4


def test_the_operators_of_backward_are_where_the_tensors_are():
    first, second = nn.Linear(3, 4).to(CUDA0), nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).to(CUDA1)
    x, target = torch.randn(2, 3, device=CUDA0), torch.tensor([0, 2], device=CUDA1)
    loss = F.cross_entropy(second(first(x).to(CUDA1)), target)
    log = logged(loss.backward)  # the mode was not there in the forward pass
    assert all(len({*given, *made}) == 1 for name, given, _, made in log.seen if name != "_to_copy")
    assert [(given, chosen) for name, given, chosen, _ in log.seen if name == "_to_copy"] == [
        ([CUDA1], CUDA0)
    ]
    assert {given[0] for _, given, _, _ in log.seen if given} == {CUDA0, CUDA1}
    assert first.weight.grad.device == CUDA0


def test_a_mode_is_seen_by_mixed_calls_and_they_are_refused_in_it():
    x, y = torch.ones(2, device=CUDA1), torch.ones(2)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:1 and cpu"):
        logged(lambda: x + y)
    assert logged(lambda: x + torch.tensor(1.0)).seen[-1] == ("add", [CUDA1, CPU], None, [CUDA1])


def test_what_a_mode_makes_is_where_it_says():
    class Other(TorchDispatchMode):
        device = CPU

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return torch.zeros(2, device=self.device)

    x = torch.ones(2, device=CUDA1)
    with Other() as mode:
        host = x + x
        mode.device = CUDA0
        other = x + x
    assert (host.device, other.device) == (CPU, CUDA0)
    assert (host + host).device == CPU
    assert host.to(CUDA1).device == CUDA1


def test_a_mode_of_before_counts_on_the_machine_and_is_itself_again_afterwards():
    layer = nn.Linear(3, 4).to(CUDA1)
    with FlopCounterMode(display=False) as counter:
        layer(torch.ones(2, 3, device=CUDA1)).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 2  # forward, and the gradient of the weight
    seen = Log.__torch_dispatch__
    simgpu.machine_in_use().close()
    assert Log.__torch_dispatch__ is not seen
    assert logged(lambda: torch.ones(2)).seen == [("ones", [], CPU, [CPU])]


# Subclasses.


class Wrapper(Tensor):
    """Holds another tensor and has no values itself."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    seen = None

    @staticmethod
    def __new__(cls, inner, *device):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=device[0] if device else inner.device,
            requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner, *device):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda a: a.inner if isinstance(a, Wrapper) else a, (args, kwargs or {}))
        if Wrapper.seen is not None:
            Wrapper.seen.append(
                (func.__name__, kwargs.get("device"), torch.arange(2, device="cuda:0").device)
            )
        return tree_map(lambda a: cls(a) if isinstance(a, Tensor) else a, func(*args, **kwargs))


def test_a_wrapper_is_on_its_device_and_its_inner_tensor_counts(monkeypatch):
    monkeypatch.setattr(Wrapper, "seen", [])
    before = torch.cuda.memory_allocated(1)
    one = Wrapper(torch.ones(1000, device=CUDA1))
    assert torch.cuda.memory_allocated(1) - before == 4096
    two = one * 2 + 1
    assert (one.device, two.device, two.inner.device, two.is_cuda) == (CUDA1, CUDA1, CUDA1, True)
    assert torch.cuda.memory_allocated(1) - before == 2 * 4096
    moved, back = two.to(CUDA0), two.cpu()
    assert (moved.device, moved.inner.device) == (CUDA0, CUDA0)
    assert (back.device, back.inner.device, type(back)) == (CPU, CPU, Wrapper)
    assert ("_to_copy.default", CUDA0, CUDA0) in Wrapper.seen


def test_a_class_may_answer_by_a_static_method():
    class Static(Wrapper):
        @staticmethod
        def __torch_dispatch__(func, types, args=(), kwargs=None):
            args = tree_map(lambda a: a.inner if isinstance(a, Static) else a, args)
            return Static(func(*args, **(kwargs or {})))

    two = Static(torch.ones(2, device=CUDA1)) * 2
    assert (type(two), two.device, two.inner.tolist()) == (Static, CUDA1, [2, 2])


def test_a_wrapper_is_loaded_where_it_was():
    x = Wrapper(torch.ones(2, device=CUDA1))
    file = io.BytesIO()
    torch.save(x, file)
    for location, device in ((None, CUDA1), ("cuda:0", CUDA0), ("cpu", CPU)):
        file.seek(0)
        loaded = torch.load(file, map_location=location, weights_only=False)
        assert (loaded.device, loaded.inner.device) == (device, device)


def test_a_wrapper_is_where_it_says_it_is():
    assert Wrapper(torch.ones(2, device=CUDA1), "cuda:0").device == CUDA0
    assert Wrapper(torch.ones(2, device=CUDA1), CPU).device == CPU
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        Wrapper(torch.ones(2), "cuda:2")


def test_a_wrapper_that_answers_for_its_device_does_not_end_the_process():
    class Answering(Wrapper):
        @staticmethod
        def __new__(cls, inner):
            return Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device, dispatch_device=True
            )

    x = Answering(torch.ones(2, device=CUDA1)).requires_grad_()
    (x * 2).sum().backward()
    assert (x.device, x.grad.device, x.grad.inner.device) == (CUDA1, CUDA1, CUDA1)


def test_a_class_made_while_the_machine_is_in_use_is_one_without_it(gpus):
    class Late(Wrapper):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return super().__torch_dispatch__(func, types, args, kwargs)

    assert (Late(torch.ones(2, device=CUDA1)) * 2).inner.device == CUDA1
    gpus.close()
    assert (Late(torch.ones(2)) * 2).inner.tolist() == [2, 2]


class Named(Tensor):
    """A subclass with a __torch_function__ of its own."""

    seen = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if Named.seen is not None:
            plain = [a.device for a in args if type(a) is Tensor]
            Named.seen.append((func, plain, torch.zeros(1, device="cuda:0").device))
        return super().__torch_function__(func, types, args, kwargs)


def test_a_torch_function_of_a_subclass_sees_the_machine(monkeypatch):
    x = torch.ones(2, device=CUDA1)
    named = x.as_subclass(Named)
    monkeypatch.setattr(Named, "seen", [])
    result = named + x
    assert Named.seen == [(Tensor.add, [CUDA1], CUDA0)]
    assert (type(result), result.device, (result @ x).device) == (Named, CUDA1, CUDA1)
    with torch.autocast("cuda", torch.bfloat16):
        assert (named[None] @ x[:, None]).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="at least two devices"):
        named + torch.ones(2)


def test_an_object_with_a_torch_function_sees_the_machine():
    class Duck:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func, torch.zeros(1, device="cuda:1").device

    assert torch.add(torch.ones(1, device=CUDA1), Duck()) == (torch.add, CUDA1)
    assert torch.cat([torch.ones(1), Duck()]) == (torch.cat, CUDA1)
