"""What other libraries ask of torch.cuda."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import labkit


@pytest.fixture(autouse=True)
def machine():
    with labkit.simulate(gpus=2, memory="1 MiB") as machine:
        yield machine


@pytest.mark.filterwarnings("ignore")
def test_flexible_attention_runs_eagerly():
    q, k, v = (torch.rand(1, 2, 16, 8, device="cuda:1", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cuda:1")
    found = flex_attention(q, k, v, block_mask=mask)
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert found.device == torch.device("cuda:1")
    assert torch.allclose(found, plain, atol=1e-5)
    shifted = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))
    assert not torch.allclose(shifted, plain, atol=1e-3)
