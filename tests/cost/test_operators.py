"""Seconds of single operators on a GPU."""

import pytest
import torch

from labkit.cost.hardware import ACCELERATORS
from labkit.cost.operators import operator_seconds


def seconds(dtype, gpu):
    """Return the seconds of a large product."""
    a = torch.empty(8192, 8192, dtype=dtype, device="meta")
    return operator_seconds(torch.ops.aten.mm.default, (a, a), {}, a, ACCELERATORS[gpu])[1]


@pytest.fixture
def tf32():
    """Yield the switch of TF32, and put it back."""
    switch = torch.backends.cuda.matmul
    before = switch.allow_tf32
    yield switch
    switch.allow_tf32 = before


@pytest.mark.parametrize(("gpu", "times"), [
    ("a100", 312 / 19.5), ("h100", 989 / 67), ("h20", 148 / 44), ("l20", 119.5 / 59.8), ("4090", 165.2 / 82.6),
])  # fmt: skip
def test_a_product_in_float32_takes_longer_by_the_data_sheets_peaks(gpu, times, tf32):
    assert seconds(torch.float32, gpu) == pytest.approx(times * seconds(torch.bfloat16, gpu))
    tf32.allow_tf32 = True
    assert seconds(torch.float32, gpu) == pytest.approx(2 * seconds(torch.bfloat16, gpu))
