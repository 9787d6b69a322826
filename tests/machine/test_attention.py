"""``sdpa_kernel``: CUDA's kernels take what they take, and say why not."""

import re
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

import labkit

EFFICIENT, FLASH, CUDNN = (
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)


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
