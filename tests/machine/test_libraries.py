"""Operators that Python registers see the machine, whether it was there before them or they before it."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.library import Library, custom_op
from torch.utils.flop_counter import FlopCounterMode

import labkit

CUDA0, CUDA1, CPU = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")
_numbers = itertools.count()


class Operators:
    """A library of each kind of kernel; ``seen`` is where its Python was called, and with what."""

    def __init__(self):
        self.seen = seen = []
        name = f"labkit_test_{next(_numbers)}"

        def noting(what, *tensors):
            here = torch.arange(2, device="cuda:0").device if torch.cuda.is_available() else None
            seen.append((what, *(tensor.device for tensor in tensors), here))

        @custom_op(f"{name}::sin", mutates_args=())
        def sin(x: Tensor) -> Tensor:
            noting("sin", x)
            return torch.from_numpy(np.sin(x.cpu().numpy())).to(x.device)

        def setup(ctx, inputs, output):
            noting("setup", *inputs, output)
            ctx.save_for_backward(*inputs)

        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            noting("backward", x, grad)
            return grad * x.cos()

        sin.register_autograd(backward, setup_context=setup)
        sin.register_fake(torch.empty_like)

        @sin.register_vmap
        def batched(info, in_dims, x):
            noting("vmap", x)
            return sin(x), in_dims[0]

        @custom_op(f"{name}::forgets", mutates_args=())
        def forgets(x: Tensor) -> Tensor:
            return torch.from_numpy(np.sin(x.cpu().numpy()))

        @custom_op(f"{name}::both", mutates_args=(), device_types="cpu")
        def both(x: Tensor) -> Tensor:
            return x * 2

        @both.register_kernel("cuda")
        def both_cuda(x):
            noting("cuda", x)
            return x * 3

        @custom_op(f"{name}::default", mutates_args=())
        def default(x: Tensor) -> Tensor:
            return x * 2

        @default.register_kernel("cuda")
        def default_cuda(x):
            return x * 3

        @custom_op(f"{name}::make", mutates_args=(), device_types=["cpu", "cuda"])
        def make(n: int, device: torch.device) -> Tensor:
            return torch.ones(n, device=device)

        @custom_op(f"{name}::two", mutates_args=())
        def two(x: Tensor, y: Tensor) -> Tensor:
            noting("two", x, y)
            return x + y.to(x.device)

        @custom_op(f"{name}::half", mutates_args=())
        def half(x: Tensor) -> Tensor:
            return x * 2

        half.register_autocast("cuda", torch.float16)
        self.__dict__ |= {k: v for k, v in locals().items() if isinstance(v, type(sin))}

        self.library = Library(name, "DEF")
        for entry in ("gpu", "host", "composite", "late"):
            self.library.define(f"{entry}(Tensor x) -> Tensor")
        self.library.impl("gpu", lambda x: x * 2, "CUDA")
        self.library.impl("host", lambda x: x * 2, "CPU")
        self.library.impl(
            "composite", lambda x: x + torch.ones(1, device=x.device), "CompositeImplicitAutograd"
        )
        torch.library.impl(f"{name}::late", "cpu", lambda x: x * 2, lib=self.library)
        other = Library(name, "FRAGMENT")
        torch.library.impl(f"{name}::late", "cuda", lambda x: x * 3, lib=other)
        self.other, self.ops = other, getattr(torch.ops, name)


@pytest.fixture(params=["operators first", "machine first"])
def made(request):
    operators = Operators() if request.param == "operators first" else None
    with labkit.simulate(gpus=2):
        yield operators or Operators()


def test_a_kernel_and_its_autograd_see_the_machine(made):
    x = torch.ones(3, device=CUDA1, requires_grad=True)
    y = made.sin(x)
    y.sum().backward()
    assert (y.device, x.grad.device) == (CUDA1, CUDA1)
    assert torch.allclose(x.grad, x.cos())
    assert made.seen == [
        ("sin", CUDA1, CUDA0), ("setup", CUDA1, CUDA1, CUDA0), ("backward", CUDA1, CUDA1, CUDA0),
    ]  # fmt: skip
    assert made.sin(torch.ones(3)).device == CPU


def test_a_kernel_that_forgets_the_device_gives_a_tensor_on_the_host(made):
    x = torch.ones(3, device=CUDA1)
    y = made.forgets(x)
    assert y.device == CPU
    with pytest.raises(RuntimeError, match="at least two devices"):
        x + y
    assert y.to(CUDA1).device == CUDA1


def test_the_kernel_of_the_device_is_chosen(made):
    x = torch.ones(1)
    for operator in (made.both, made.default, made.ops.late):
        assert (operator(x.to(CUDA1)).item(), operator(x).item()) == (3, 2)
        assert operator(x.to(CUDA1)).device == CUDA1
    assert made.seen[0] == ("cuda", CUDA1, CUDA0)


def test_a_kernel_that_is_missing_is_missing_in_pytorchs_words(made):
    x = torch.ones(1)
    assert made.ops.gpu(x.to(CUDA1)).device == CUDA1
    assert made.ops.host(x).device == CPU
    with pytest.raises(NotImplementedError, match=r"::gpu' with arguments from the 'CPU' backend") as missing:
        made.ops.gpu(x)
    assert "backends: [CUDA, " in str(missing.value)
    with pytest.raises(NotImplementedError, match=r"::host' with arguments from the 'CUDA' backend"):
        made.ops.host(x.to(CUDA1))


def test_sparse_tensors_have_kernels_of_their_own(gpus):
    library = Library(f"labkit_test_{next(_numbers)}", "DEF")
    library.define("clone(Tensor x) -> Tensor")
    library.impl("clone", lambda x: x.clone(), "SparseCUDA")
    clone = getattr(torch.ops, library.ns).clone
    x = torch.eye(2).to_sparse()
    assert clone(x.to(CUDA1)).device == CUDA1
    with pytest.raises(NotImplementedError, match="from the 'SparseCPU' backend") as missing:
        clone(x)
    assert "SparseCUDA, " in str(missing.value)
    assert "SparseCPU, " not in str(missing.value)


def test_a_device_as_argument_and_tensors_on_several(made):
    assert made.make(2, CUDA1).device == CUDA1
    assert made.make(2, device="cuda:1").device == CUDA1
    assert made.make(2, "cpu").device == CPU
    x = torch.ones(1)
    assert made.two(x, x.to(CUDA1)).device == CPU
    assert made.two(x.to(CUDA1), x.to(CUDA0)).device == CUDA1
    assert made.seen == [("two", CPU, CUDA1, CUDA0), ("two", CUDA1, CUDA0, CUDA0)]
    assert made.ops.composite(x.to(CUDA1)).device == CUDA1


def test_vmap_autocast_and_modes(made):
    x = torch.ones(2, 3, device=CUDA1)
    assert torch.vmap(made.sin)(x).device == CUDA1
    assert made.seen == [("vmap", CUDA1, CUDA0), ("sin", CUDA1, CUDA0)]
    with torch.autocast("cuda"):
        assert made.half(x).dtype == torch.float16
        assert made.half(x.cpu()).dtype == torch.float32
    with FlopCounterMode(display=False), FlopCounterMode(display=False):
        assert made.sin(x).device == CUDA1
        assert made.both(x).device == CUDA1
    torch.library.opcheck(made.sin, (x,), test_utils=("test_schema", "test_faketensor"))


def test_they_outlive_the_machine():
    before = Operators()
    with labkit.simulate(gpus=1):
        during = Operators()
    x = torch.ones(1)
    for operators in (before, during):
        assert operators.both(x).item() == operators.default(x).item() == operators.ops.late(x).item() == 2
        assert torch.allclose(operators.sin(x), x.sin())
        with FlopCounterMode(display=False):  # kernels are looked up in another way while a mode is on
            assert operators.both(x).item() == operators.default(x).item() == 2
        with pytest.raises(NotImplementedError, match=r"from the 'CPU' backend"):
            operators.ops.gpu(x)
    assert not hasattr(torch.library, "_labkit_libraries")


def test_kernels_over_those_of_torch(gpus):
    x = torch.ones(2)
    library = Library("aten", "IMPL")
    library.impl("sinc", lambda a: a * 0 + 7, "CUDA")
    library.impl("digamma", lambda a: a * 0 + 5, "CPU")
    assert torch.sinc(x.to(CUDA1)).tolist() == [7, 7]
    assert torch.sinc(x).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert torch.digamma(x).tolist() == [5, 5]
    on_gpu = torch.digamma(x.to(CUDA1))
    assert on_gpu.device == CUDA1
    assert on_gpu.tolist() == pytest.approx([-0.5772, -0.5772], abs=1e-4)
    library._destroy()
    assert torch.sinc(x.to(CUDA1)).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_triton_is_refused_in_words(gpus):
    @torch.library.triton_op(f"labkit_test_{next(_numbers)}::kernel", mutates_args=())
    def kernel(x: Tensor) -> Tensor:
        torch.library.wrap_triton(print)[(1,)](x)
        return x.clone()

    with pytest.raises(NotImplementedError, match="Triton kernels run on a real GPU"):
        kernel(torch.ones(2, device=CUDA1))


@pytest.fixture
def native():
    """As torch built for CUDA: it has registered a kernel of its own for bmm, which wants a real GPU."""
    registry = pytest.importorskip("torch._native.registry")

    def wants_a_gpu(keyset, *args):
        raise RuntimeError("CUDAGuardImpl initialized with non-CUDA DeviceType: cpu")

    wants_a_gpu.__module__ = "torch._native.registry"
    before = dict(registry._aten_override_libs)

    def install():
        if ("bmm", "CUDA") not in before:
            registry._install_aten_override("bmm", "CUDA", wants_a_gpu)

    yield install
    if ("bmm", "CUDA") not in before:
        registry._aten_override_libs.pop(("bmm", "CUDA"))._destroy()


@pytest.mark.parametrize("early", [True, False])
def test_kernels_of_torch_itself_for_real_gpus_are_left_to_them(native, early):
    if early:
        native()
    with labkit.simulate(gpus=2):
        if not early:
            native()
        x = torch.ones(2, 3, 4, device="cuda:1")
        assert (x @ x.transpose(1, 2)).tolist() == [[[4.0] * 3] * 3] * 2
