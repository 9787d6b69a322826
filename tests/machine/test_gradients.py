"""Gradients are on the device of what they belong to, wherever Python sees them."""

import contextlib
import weakref
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.fx.experimental.proxy_tensor import make_fx

import labkit
import simgpu
from simgpu.state.streams import restore_stream

pytestmark = pytest.mark.usefixtures("gpus")
CUDA0, CUDA1, CPU = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


def leaf(device, *shape):
    return torch.randn(*(shape or (3, 3)), device=device, requires_grad=True)


def test_leaves_on_every_device_get_their_gradient_there():
    a, b, c = leaf(CUDA0), leaf(CUDA1), leaf(CPU)
    loss = ((a.to(CUDA1) * b).cpu() * c).sum()
    loss.backward()
    assert [t.grad.device for t in (a, b, c)] == [CUDA0, CUDA1, CPU]
    assert torch.allclose(a.grad.cpu(), (b * c.to(CUDA1)).cpu())
    assert a.grad is a.grad


def test_gradients_on_different_devices_share_no_memory():
    a, b = leaf(CUDA0), leaf(CUDA1)
    # Both get the very gradient that comes in: of a sum and of a copy the backward is the identity.
    one, other = torch.autograd.grad(a.to(CUDA1) + b, (a, b), torch.ones(3, 3, device=CUDA1))
    assert (one.device, other.device) == (CUDA0, CUDA1)
    one.zero_()
    assert other.sum() == 9


def test_autograd_grad():
    a, b = leaf(CUDA0), leaf(CUDA1)
    grads = torch.autograd.grad((a.to(CUDA1) @ b).sum(), (a, b), create_graph=True)
    assert [g.device for g in grads] == [CUDA0, CUDA1]
    (grads[0] ** 2).sum().backward()
    assert b.grad.device == CUDA1


def test_hooks_see_gradients_on_their_device():
    seen = []
    a = leaf(CUDA0)
    moved = a.to(CUDA1)
    moved.register_hook(lambda grad: seen.append(("tensor", grad.device, (grad * 2).device)))
    a.register_post_accumulate_grad_hook(lambda t: seen.append(("leaf", t.grad.device, None)))
    (moved * 3).sum().backward()
    assert seen == [("tensor", CUDA1, CUDA1), ("leaf", CUDA0, None)]


def test_a_hook_can_replace_a_gradient():
    a = leaf(CUDA1)
    a.register_hook(lambda grad: grad * 0 + 7)
    a.sum().backward()
    assert a.grad.device == CUDA1
    assert a.grad.unique().tolist() == [7]


def test_module_hooks():
    seen = []
    layer = nn.Linear(3, 3).to(CUDA1)
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].device, go[0].device)))
    layer.register_full_backward_pre_hook(lambda m, go: seen.append(go[0].device))
    layer(leaf(CUDA1)).sum().backward()
    assert seen == [CUDA1, (CUDA1, CUDA1)]


def test_a_module_hook_is_found_among_the_hooks():
    known, found = set(), []

    def look(module, grad_input, grad_output):
        return None

    def setup(self, args):
        found.extend(hook in known for hook in self.user_hooks)
        return real(self, args)

    known.add(look)
    layer = nn.Linear(3, 3).to(CUDA1)
    layer.register_full_backward_hook(look)
    real = torch.utils.hooks.BackwardHook.setup_input_hook
    with mock.patch.object(torch.utils.hooks.BackwardHook, "setup_input_hook", setup):
        layer(leaf(CUDA1))
    assert found == [True]


class Double(Function):
    seen = None

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 2).to(CUDA0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        Double.seen = grad.device, x.device, torch.ones(1, device="cuda:1").device
        return grad.to(x.device) * 2


KEPT = Double.apply  # as `f = Double.apply` in a module that is imported before a machine is in use


@pytest.mark.parametrize("apply", [KEPT, lambda x: Double.apply(x)], ids=["kept before", "looked up now"])
def test_functions_get_their_gradients_where_their_outputs_were(apply):
    a = leaf(CUDA1)
    (apply(a) * 1).sum().backward()  # a product's gradient is made by C++
    assert Double.seen == (CUDA0, CUDA1, CUDA1)
    assert a.grad.device == CUDA1
    assert a.grad.unique().tolist() == [2]


def test_saved_tensors_hooks_see_devices():
    seen = []

    def pack(x):
        seen.append(x.device)
        return x.cpu()

    a = leaf(CUDA1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.to(CUDA1)):
        y = a * a
    y.sum().backward()
    assert set(seen) == {CUDA1}
    assert torch.allclose(a.grad, 2 * a)


def test_retained_and_accumulated_gradients():
    a = leaf(CUDA1)
    middle = a * 2
    middle.retain_grad()
    middle.sum().backward()
    (a * 3).sum().backward()
    assert (middle.grad.device, a.grad.device) == (CUDA1, CUDA1)
    assert a.grad.unique().tolist() == [5]


def test_a_gradient_from_elsewhere_cannot_be_assigned():
    a = leaf(CUDA1)
    for device, what in (
        ("cpu", "with device type 'cpu' to a tensor with device type 'cuda'"),
        ("meta", "with device type 'meta' to a tensor with device type 'cuda'"),
        ("cuda:0", "located on device with index '0' to a tensor located on device with index '1'"),
    ):
        with pytest.raises(RuntimeError, match=f"attempting to assign a gradient {what}. Please ensure"):
            a.grad = torch.ones(3, 3, device=device)


@pytest.mark.parametrize(
    "let_go", [lambda x: setattr(x, "grad", None), lambda x: delattr(x, "grad")], ids=["set", "del"]
)
def test_a_gradient_that_goes_is_not_seen_half_gone(let_go):
    """What runs as its bytes are freed, here or in another thread, finds it gone; it was read freed, and crashed."""
    x, seen = torch.ones(3, device="cuda:1", requires_grad=True), []
    x.sum().backward()
    weakref.finalize(x.grad.untyped_storage(), lambda: seen.append(x.grad))
    let_go(x)
    assert seen == [None]


def test_function_transforms():
    a = leaf(CUDA1)
    assert torch.func.grad(lambda x: (x**2).sum())(a).device == CUDA1
    assert torch.vmap(lambda x: x * 2)(a).device == CUDA1
    assert torch.func.jvp(lambda x: x**2, (a.detach(),), (torch.ones_like(a),))[1].device == CUDA1


def test_no_grad_and_inference_mode_hold_on_gpus_and_in_backward():
    a, seen = leaf(CUDA0), []

    def hook(grad):
        with torch.inference_mode():
            seen.append((grad * 2).is_inference())
        seen.append((grad * 2).is_inference())

    for off in (torch.no_grad, torch.inference_mode):
        with off():
            b = a * 2
            assert (b.requires_grad, b.is_inference(), b.device) == (
                False, off is torch.inference_mode, CUDA0,
            )  # fmt: skip
    b = a * 2
    assert (b.requires_grad, b.is_inference()) == (True, False)
    b.register_hook(hook)
    b.sum().backward()
    assert (seen, a.grad.device, a.grad.is_inference()) == ([True, False], CUDA0, False)


def test_modes_see_grad_mode_switched_but_the_machines_own(gpus, monkeypatch):
    class Sees(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    kind, seen = type(gpus.mode), []
    real = kind.__torch_function__
    monkeypatch.setattr(kind, "__torch_function__", lambda *call: seen.append("machine") or real(*call))
    for switch in (torch.no_grad, torch.enable_grad):
        with switch():
            assert torch.is_grad_enabled() is (switch is torch.enable_grad)
    assert seen == []
    with Sees():
        torch._C._set_grad_enabled(True)
    assert seen == ["_set_grad_enabled"]
    with pytest.raises(TypeError):
        torch._C._set_grad_enabled("no")
    assert torch.zeros(1, device=CUDA1).device == CUDA1  # the mode is still there


def test_a_graph_keeps_the_switches_of_grad_mode_as_without_a_machine(gpus):
    def halved(x):
        with torch.no_grad():
            y = x / 2
        return y + 1

    trace = make_fx(halved, pre_dispatch=True)
    graph = trace(torch.ones(2, device=CUDA1))
    assert "torch._C._set_grad_enabled(False)" in graph.code
    gpus.close()
    assert graph.code == trace(torch.ones(2)).code
    assert graph(torch.ones(2)).tolist() == [1.5, 1.5]


@pytest.mark.parametrize("shape", [(), (3, 3)])
@pytest.mark.parametrize("elsewhere", ["cuda:1", "cpu"])
def test_a_gradient_to_start_from_must_be_where_the_output_is(shape, elsewhere):
    x = leaf(CUDA0, 3, 3)
    y = (x * 2).sum() if not shape else x * 2
    if not shape and elsewhere == "cpu":  # as torch's own, for a scalar
        torch.autograd.backward(y, torch.ones(shape, device=elsewhere))
        assert x.grad.unique().tolist() == [2]
        return
    name = "MulBackward0" if shape else "SumBackward0"
    text = f"Function {name} returned an invalid gradient at index 0 - expected device cuda:0 but got {elsewhere}"
    with pytest.raises(RuntimeError, match=text):
        y.backward(torch.ones(shape, device=elsewhere))


def test_a_backward_that_answers_from_another_device_is_refused(gpus):
    class Strays(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, way):
            ctx.way = way
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad.to(ctx.way), None

    x = torch.ones(2, device="cuda:1", requires_grad=True)
    Strays.apply(x, "cuda:1").sum().backward()
    assert x.grad.device == torch.device("cuda:1")
    with pytest.raises(RuntimeError) as caught:
        Strays.apply(x, "cpu").sum().backward()
    assert str(caught.value) == (
        "Function StraysBackward returned an invalid gradient at index 0 - expected device cuda:1 but got cpu"
    )


def test_hooks_follow_their_parameter_and_outlive_the_machine():
    seen, layer = [], nn.Linear(2, 2)
    layer.weight.register_hook(lambda grad: seen.append(str(grad.device)))
    layer.bias.register_post_accumulate_grad_hook(lambda bias: seen.append(str(bias.grad.device)))
    layer.register_full_backward_hook(lambda module, before, after: seen.append(str(after[0].device)))
    machine = simgpu.machine_in_use()
    layer.cuda(1)(torch.ones(1, 2, device=CUDA1)).sum().backward()
    assert seen == ["cuda:1"] * 3
    output = layer(torch.ones(1, 2, device=CUDA1)).sum()
    machine.close()
    output.backward()
    layer(torch.ones(1, 2)).sum().backward()
    assert seen[3:] == ["cpu"] * 6


@pytest.mark.usefixtures("gpus")
def test_hooks_on_saved_tensors_end_in_any_order_and_more_often_than_they_began():
    def unpack(packed):
        first.__exit__()
        return packed

    first = torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack)
    x = torch.ones(2, device="cuda:1", requires_grad=True)
    depth = torch._C._len_torch_function_stack()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        first.__enter__()
        x.sin().sum().backward()
    first.__exit__()
    assert torch._C._len_torch_function_stack() == depth
    assert x.grad.device == x.device


def test_a_checkpoint_may_change_the_default_device_inside():
    @contextlib.contextmanager
    def default(device):
        before = torch.get_default_device()
        torch.set_default_device(device)
        try:
            yield
        finally:
            torch.set_default_device(before)

    with labkit.simulate(2), default("cuda:1"):
        x = torch.tensor(1.0, requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(
            lambda x: x.sin().cos(), x, use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), default("cuda:1")),
        )  # fmt: skip
        y.backward()
        assert x.grad.device == torch.device("cuda:1")
    torch.set_default_device(None)  # before was a device too, and would stay


def test_a_module_that_moves_keeps_its_gradients_as_the_objects_that_they_are():
    layer = nn.Linear(2, 3)
    layer(torch.ones(1, 2)).sum().backward()
    for device in ("cuda:1", "cuda:0", "cpu", "cuda:0"):
        before = [p.grad for p in layer.parameters()]
        values = [grad.tolist() for grad in before]
        layer.to(device)
        assert all(p.grad is grad for p, grad in zip(layer.parameters(), before, strict=True))
        assert {p.grad.device for p in layer.parameters()} == {torch.device(device)}
        assert [p.grad.tolist() for p in layer.parameters()] == values
    parameter = nn.Parameter(torch.ones(2, device=CUDA1))
    parameter.grad = torch.ones(2, device=CUDA1)
    parameter.data = torch.ones(2)
    assert parameter.grad.device == CUDA1  # until it is moved, and no longer than it lives
    parameter.grad = None
    assert torch.cuda.memory_allocated(1) == 0


def test_batched_gradients():
    x = leaf(CUDA1, 2, 2)
    for vectorize in (True, False):
        jacobian = torch.autograd.functional.jacobian(lambda a: a.exp() @ a, x, vectorize=vectorize)
        assert (jacobian.device, jacobian.shape) == (CUDA1, (2, 2, 2, 2))
    forward = torch.autograd.functional.jacobian(torch.exp, x, vectorize=True, strategy="forward-mode")
    assert forward.device == CUDA1
    (grad,) = torch.autograd.grad(x**2, x, torch.ones(5, 2, 2, device=CUDA1), is_grads_batched=True)
    assert (grad.device, grad.shape) == (CUDA1, (5, 2, 2))
    with pytest.raises(RuntimeError, match="expected device cuda:1 but got cuda:0"):
        torch.autograd.grad(x**2, x, torch.ones(5, 2, 2, device=CUDA0), is_grads_batched=True)


def test_the_gradient_of_a_move_is_moved_back():
    seen = []
    x = leaf(CUDA0)
    half = x * 2
    half.grad_fn.register_prehook(lambda grads: seen.append(grads[0].device))
    (half.to(CUDA1) * 3).cpu().sum().backward()
    assert seen == [CUDA0]
    assert x.grad.unique().tolist() == [6]


def test_backward_runs_on_the_stream_of_its_forward():
    side, other = torch.cuda.Stream(device=1), torch.cuda.Stream(device=1)
    seen = {}

    def look(name):
        seen[name] = torch.cuda.current_device(), torch.cuda.current_stream(1)

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            look("function")
            return grad * 2

    layer = torch.nn.Linear(3, 3).to(CUDA1)
    layer.register_full_backward_hook(lambda *_: look("module"))
    layer.register_full_backward_pre_hook(lambda *_: look("module, before"))
    with torch.cuda.stream(side):
        a = leaf(CUDA1)
        a.register_post_accumulate_grad_hook(lambda *_: look("accumulated"))
        doubled = Doubled.apply(a)
        y = layer(doubled) + 1
        y.register_hook(lambda _: look("tensor"))
    doubled.register_hook(lambda _: look("registered later"))
    with torch.cuda.stream(other):
        y.sum().backward()
        assert torch.cuda.current_stream(1) == other
    assert seen == dict.fromkeys(
        ["function", "module", "module, before", "accumulated", "tensor", "registered later"], (1, side)
    )
    assert (torch.cuda.current_device(), torch.cuda.current_stream(1)) == (0, torch.cuda.default_stream(1))


def test_a_stream_of_a_closed_machine_is_nobodys():
    with labkit.simulate(gpus=2):
        stream = torch.cuda.Stream(device=1)
    with restore_stream(stream):
        assert torch.cuda.current_device() == 0


def test_the_gradient_of_a_copy_into_another_gpus_tensor_is_no_part_of_what_is_there():
    # Where the values really are the backward of copy_ hands the same tensor on.
    x = torch.ones(3, device="cuda:0", requires_grad=True)
    copied, seed = torch.empty(3, device="cuda:1").copy_(x), torch.ones(3, device="cuda:1")
    (grad,) = torch.autograd.grad(copied, x, seed)
    assert (grad.get_device(), seed.get_device()) == (0, 1)
    grad += 1
    assert seed.tolist() == [1, 1, 1]

    copied = torch.empty(3, device="cuda:1").copy_(x)
    copied.register_hook(lambda grad: None)  # which sees it on cuda:1; then autograd keeps it as that of x
    (2 * copied).sum().backward()
    assert x.grad.get_device() == 0
    assert x.grad is x.grad
    x.grad += 1
    assert x.grad.tolist() == [3, 3, 3]
