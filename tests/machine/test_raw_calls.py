"""What other libraries ask of torch.cuda."""

import gc

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import labkit

cufft = torch.backends.cuda.cufft_plan_cache


@pytest.fixture(autouse=True)
def machine():
    with labkit.simulate(gpus=2, memory="1 MiB") as machine:
        yield machine


def test_raw_memory_counts_until_it_is_given_back():
    one = torch.cuda.caching_allocator_alloc(1000, device=1)
    other = torch.cuda.caching_allocator_alloc(1000, device=1)
    assert one != other
    assert [torch.cuda.memory_allocated(k) for k in range(2)] == [0, 2048]
    torch.cuda.caching_allocator_delete(one)
    assert torch.cuda.memory_allocated(1) == 1024
    with pytest.raises(RuntimeError, match=f"invalid device pointer: {one:#x}"):
        torch.cuda.caching_allocator_delete(one)
    with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has a total capacity of 1024.00 KiB"):
        torch.cuda.caching_allocator_alloc(2**20, device=1)
    assert torch.cuda.memory_allocated(1) == 1024


def test_each_gpu_has_a_handle_of_its_own():
    handles = set()
    for k in range(2):
        with torch.cuda.device(k):
            handles.add(torch.cuda.current_blas_handle())
    assert len(handles) == 2
    assert all(isinstance(handle, int) and handle for handle in handles)


def test_pinned_memory_is_counted_in_powers_of_two():
    gc.collect()
    before = torch.cuda.host_memory_stats()
    kept = torch.ones(300).pin_memory()
    dropped = torch.ones(3).pin_memory()
    del dropped
    after = torch.cuda.host_memory_stats()
    grown = {name: after[name] - before[name] for name in before}
    assert (grown["allocated_bytes.current"], grown["allocated_bytes.allocated"]) == (2048, 2048 + 16)
    assert (grown["num_host_alloc"], grown["num_host_free"]) == (2, 1)
    assert kept.is_pinned()


def test_the_plans_of_fourier_transforms():
    assert (cufft.size, cufft.max_size) == (0, 4096)
    for length in (8, 16, 8):
        torch.fft.fft(torch.rand(length, device="cuda:0"))
    torch.fft.rfft(torch.rand(8, device="cuda:1"))
    torch.fft.rfft(torch.rand(8))
    assert (cufft[0].size, cufft[1].size) == (2, 1)
    cufft[0].max_size = 1
    assert (cufft[0].size, cufft[1].max_size) == (1, 4096)
    cufft[1].clear()
    assert cufft[1].size == 0
    with pytest.raises(RuntimeError, match="read-only"):
        cufft.size = 3
    with pytest.raises(RuntimeError, match="must be non-negative, but got -1"):
        cufft.max_size = -1
    with pytest.raises(RuntimeError, match="expected 0 <= device index < 2"):
        torch._cufft_get_plan_cache_size(5)


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
