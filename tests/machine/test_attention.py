"""``sdpa_kernel``: CUDA's kernels take what they take, and say why not."""

import functools
import re
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as attend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import labkit

EFFICIENT, FLASH, CUDNN = (
    SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION,
)  # fmt: skip


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulate(gpus=1), warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def some(*shape, dtype=torch.float16):
    return torch.rand(*(shape or (2, 4, 8, 16)), device="cuda", dtype=dtype)


@pytest.mark.parametrize("kernel", [EFFICIENT, FLASH, CUDNN])
@pytest.mark.parametrize("causal", [False, True])
def test_each_kernel_computes_what_the_mathematical_one_does(kernel, causal):
    q, k, v = some(), some(), some()
    with sdpa_kernel(SDPBackend.MATH):
        plain = attend(q, k, v, is_causal=causal)
    with sdpa_kernel(kernel):
        chosen = attend(q, k, v, is_causal=causal)
        assert not torch.backends.cuda.math_sdp_enabled()
    assert chosen.is_cuda
    assert torch.allclose(chosen, plain, atol=2e-3)


REFUSED = {
    "floats": (lambda: [some(dtype=torch.float32)] * 3, {}, [FLASH, CUDNN], "Query dtype: float, Key dtype: float"),
    "a mask": (lambda: [some()] * 3, {"attn_mask": 8}, [FLASH], "does not support non-null attn_mask"),
    "odd heads": (lambda: [some(2, 4, 8, 12)] * 3, {}, [EFFICIENT, CUDNN], "divisible by 8|a multiple of 8"),
    "wide heads": (lambda: [some(1, 1, 8, 320)] * 3, {}, [FLASH, CUDNN], "less than or equal to 256|more than 128"),
    "three dimensions": (lambda: [some(4, 8, 16)] * 3, {}, [EFFICIENT, FLASH, CUDNN], "4 dimensional"),
    "uneven causal": (
        lambda: [some(), some(2, 4, 6, 16), some(2, 4, 6, 16)], {"is_causal": True}, [FLASH], "seqlen_k: 6",
    ),
    "heads to spread": (
        lambda: [some(), some(2, 1, 8, 16), some(2, 1, 8, 16)], {}, [EFFICIENT, FLASH], "the same num_heads",
    ),
    "doubles": (lambda: [some(dtype=torch.float64)] * 3, {}, [EFFICIENT, FLASH, CUDNN], "double, Key"),
}  # fmt: skip


@pytest.mark.parametrize("kernel", [EFFICIENT, FLASH, CUDNN])
@pytest.mark.parametrize("what", REFUSED)
def test_a_kernel_takes_or_refuses_as_cudas(kernel, what):
    make, options, refusing, words = REFUSED[what]
    if "attn_mask" in options:
        options = {"attn_mask": torch.zeros(8, 8, device="cuda", dtype=torch.float16)}
    with sdpa_kernel(kernel), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if kernel not in refusing:
            assert attend(*make(), **options).is_cuda
            return
        with pytest.raises(RuntimeError, match="No available kernel. Aborting execution."):
            attend(*make(), **options)
    said = [str(warning.message) for warning in told]
    assert any(re.search(words, each) for each in said), said
    assert said[::2] == [
        f"{name} kernel not used because:"
        for name in ("Memory efficient", "Flash attention", "cuDNN attention")
    ]
    assert len([each for each in said if each.endswith("has been runtime disabled.")]) == 2


def test_groups_of_heads_are_taken():
    with sdpa_kernel([FLASH, EFFICIENT]):
        assert attend(some(2, 4, 8, 16), some(2, 2, 8, 16), some(2, 2, 8, 16), enable_gqa=True).shape[1] == 4
        with pytest.raises(RuntimeError, match="No available kernel"):
            attend(some(2, 4, 8, 16), some(2, 3, 8, 16), some(2, 3, 8, 16), enable_gqa=True)


def test_the_hosts_attention_is_the_hosts():
    host = torch.rand(2, 4, 8, 16)
    with sdpa_kernel(EFFICIENT), pytest.raises(RuntimeError, match="No viable backend"):
        attend(host, host, host)


def test_an_older_gpu_has_fewer_kernels():
    with labkit.simulate(gpus=1, gpu_model="T4"):
        with (
            sdpa_kernel([FLASH, CUDNN]),
            pytest.warns(UserWarning, match=r"range \[sm80, sm121\]. Attempting to run on a sm 7.5 gpu"),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            attend(some(), some(), some())
        with sdpa_kernel(EFFICIENT):
            assert attend(some(), some(), some()).is_cuda
            with pytest.raises(RuntimeError, match="No available kernel"):
                attend(*[some(dtype=torch.bfloat16)] * 3)


class Operators(TorchDispatchMode):
    """A user's mode, which notes what is called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::_scaled_dot_product_"))
        return func(*args, **kwargs or {})


ODD = {
    "plain": (lambda: [some(dtype=torch.float32) for _ in range(3)], {}),
    "causal": (lambda: [some(dtype=torch.float32) for _ in range(3)], {"is_causal": True, "scale": 0.3}),
    "bias": (lambda: [some(dtype=torch.float32) for _ in range(3)], {"attn_mask": True}),
    "groups": (
        lambda: [some(2, n, 8, 16, dtype=torch.float32) for n in (4, 2, 2)], {"enable_gqa": True, "is_causal": True},
    ),
    "values of another size": (lambda: [some(2, 4, 8, n, dtype=torch.float32) for n in (16, 16, 32)], {}),
    "lengths": (lambda: [some(2, 4, n, 16, dtype=torch.float32) for n in (5, 40, 40)], {}),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
def test_a_dispatch_mode_sees_cudas_operators_which_compute_the_same(what):
    make, options = ODD[what]
    given = [one.requires_grad_() for one in make()]
    if "attn_mask" in options:
        options = {"attn_mask": torch.randn(2, 4, 8, 8, device="cuda", requires_grad=True)}
        given.append(options["attn_mask"])
    with sdpa_kernel(SDPBackend.MATH):
        plain = attend(*given[:3], **options)
    weight = torch.randn_like(plain)
    wanted = torch.autograd.grad(plain, given, weight)
    with Operators() as seen:
        found = attend(*given[:3], **options)
        grads = torch.autograd.grad(found, given, weight)
    assert "efficient_attention" in seen.names
    assert "efficient_attention_backward" in seen.names
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(grads, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "name"), [(EFFICIENT, "efficient"), (FLASH, "flash"), (CUDNN, "cudnn"), (None, "cudnn")]
)
def test_what_is_dropped_forward_is_dropped_backward(kernel, name):
    q, k, v = (some().requires_grad_() for _ in range(3))
    with sdpa_kernel(kernel or [FLASH, EFFICIENT, CUDNN, SDPBackend.MATH]), Operators() as seen:
        torch.cuda.manual_seed(3)
        out = attend(q, k, v, dropout_p=0.5)
        # Linear in the values: their gradient says what was kept.
        (grad,) = torch.autograd.grad(out, v, torch.ones_like(out), retain_graph=True)
        torch.cuda.manual_seed(3)
        assert torch.equal(attend(q, k, v, dropout_p=0.5), out)
        assert not torch.equal(attend(q, k, v, dropout_p=0.5), out)
    assert seen.names[:2] == [f"{name}_attention"] * 1 + seen.names[1:2]
    torch.testing.assert_close((grad * v).float().sum(), out.float().sum(), atol=1e-1, rtol=1e-2)


def test_operations_of_attention_are_counted():
    q = some(1, 2, 64, 16)
    with FlopCounterMode(display=False) as counted:
        attend(q, q, q)
    assert counted.get_total_flops() == 2 * 2 * 2 * 64 * 64 * 16


def test_the_operators_themselves_refuse_floats_and_pad_as_cudas():
    operators, q = torch.ops.aten, some(1, 2, 40, 16, dtype=torch.float32)
    for refusing in (
        operators._scaled_dot_product_flash_attention,
        operators._scaled_dot_product_cudnn_attention,
    ):
        with pytest.raises(RuntimeError, match="only support fp16 and bf16 data type"):
            refusing(q, q, q, *([None, True] if "cudnn" in refusing.__name__ else []))
    out, logsumexp, *_ = operators._scaled_dot_product_efficient_attention(q, q, q, None, True)
    assert (out.device.type, logsumexp.shape) == ("cuda", (1, 2, 64))


def flexible():
    return [torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True) for _ in range(3)]


def causal_mask():
    return create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cuda")


def test_flexible_attention_runs_eagerly():
    q, k, v = flexible()
    found, plain = flex_attention(q, k, v, block_mask=causal_mask()), attend(q, k, v, is_causal=True)
    assert found.is_cuda
    assert torch.allclose(found, plain, atol=1e-5)
    shifted = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))
    assert not torch.allclose(shifted, plain, atol=1e-3)


def test_flexible_attention_is_recomputed_by_choice():
    given, mask = flexible(), causal_mask()
    run = functools.partial(flex_attention, block_mask=mask)
    wanted = torch.autograd.grad(run(*given).square().sum(), given)
    for saved in ([torch.ops.aten.mm.default], [torch.ops.higher_order.flex_attention]):
        choose = functools.partial(create_selective_checkpoint_contexts, saved)
        out = checkpoint(run, *given, use_reentrant=False, context_fn=choose)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), given), wanted)


@pytest.mark.parametrize("mode", [warnings.catch_warnings, Operators])
def test_a_bias_that_flexible_attention_reads_gets_its_gradient(mode):
    q, k, v = flexible()
    bias = torch.randn(128, device="cuda", requires_grad=True)
    wanted = torch.autograd.grad(((q @ k.mT / 4 + bias).softmax(-1) @ v).square().sum(), (q, bias))
    with mode():
        out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[j])
        torch.testing.assert_close(
            torch.autograd.grad(out.square().sum(), (q, bias)), wanted, atol=1e-4, rtol=1e-3
        )


def test_a_mode_without_a_rule_for_flexible_attention_fails_as_on_cuda():
    given = flexible()
    with FlopCounterMode(display=False), pytest.raises(TypeError):
        flex_attention(*given)
