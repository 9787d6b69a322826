"""A sequence shared by ranks: attention is one GPU's, forward and backward, or refused as CUDA refuses it."""

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.distributed.tensor.experimental import _attention as cp
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from labkit import turns
from labkit_ranks.diagnosis import diagnose_ranks, operations
from labkit_ranks.threads.world import RanksFailed

N = 2
KERNELS = {None: torch.float32, SDPBackend.EFFICIENT_ATTENTION: torch.float32} | dict.fromkeys(
    (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION), torch.bfloat16
)


def sequence(rows, dtype):
    torch.manual_seed(0)
    return [torch.randn(2, 2, N * rows, 16, device="cuda", dtype=dtype) for _ in range(4)]


def of_one_gpu(q, k, v, weight, kernel):
    q, k, v = (one.clone().requires_grad_() for one in (q, k, v))
    out = chosen(kernel, q, k, v)
    return [out, *torch.autograd.grad((out * weight).sum(), (q, k, v))]


def chosen(kernel, q, k, v):
    with sdpa_kernel(list(SDPBackend.__members__.values())[1:] if kernel is None else kernel):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def shared(rows, dtype, kernel, rotate, balanced):
    """The result of ranks, put together again, and one GPU's."""
    mesh, buffers = init_device_mesh("cuda", (N,)), sequence(rows, dtype)
    wanted = of_one_gpu(*buffers, kernel)
    _attention.set_rotate_method(rotate)
    _attention._cp_options.enable_load_balance = balanced
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4):
        q, k, v = (one.detach().requires_grad_() for one in buffers[:3])
        out = chosen(kernel, q, k, v)
        assert out.shape[2] == rows
        (out * buffers[3]).sum().backward()
        found = _attention.context_parallel_unshard(mesh, [out, q.grad, k.grad, v.grad], [2] * 4)
    return found, wanted


@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_of_a_shared_sequence_is_one_gpus(joined, kernel):
    def work(rank):
        dtype = KERNELS[kernel]
        for rotate, balanced in itertools.product(("allgather", "alltoall"), (True, False)):
            for found, wanted in zip(*shared(64, dtype, kernel, rotate, balanced), strict=True):
                assert found.device == torch.device("cuda", rank.local)
                torch.testing.assert_close(
                    found, wanted, atol=1e-5 if dtype is torch.float32 else 2e-2, rtol=1e-2
                )

    joined.run(work)


def test_what_cuda_cannot_share_is_refused(joined):
    def work(rank):
        for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with pytest.raises(RuntimeError, match="No available kernel"):
                shared(64, torch.float32, kernel, "allgather", True)
        with pytest.raises(RuntimeError, match="got mixed torch.Tensor and DTensor"):
            shared(64, torch.float32, SDPBackend.MATH, "allgather", True)
        found, wanted = shared(32, torch.float32, None, "allgather", False)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        found, wanted = shared(6, torch.bfloat16, None, "allgather", True)  # cuDNN's, which pads nothing
        torch.testing.assert_close(found, wanted, atol=2e-2, rtol=1e-2)

    joined.run(work)


def test_a_padded_logsumexp_fails_in_the_ring_as_on_cuda(joined):
    """The memory-efficient kernel pads to 32 rows; each half of a rank's balanced piece has 16."""
    with pytest.raises(RanksFailed, match="The size of tensor a .* must match the size of tensor b"):
        joined.run(lambda rank: shared(32, torch.float32, None, "allgather", True))


class Attention(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def attend(*args, **kwargs):
    return F.scaled_dot_product_attention(*args, **kwargs)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("kind", ["SDPA", "FLEX"])
def test_the_plan_for_a_module(joined, kind, balanced):
    def work(rank):
        mesh, (*qkv, weight) = init_device_mesh("cuda", (N,)), sequence(128, torch.float32)
        balancer = cp._HeadTailLoadBalancer(N * 128, N, torch.device("cuda")) if balanced else None
        plan = cp._ContextParallel(2, cp._ContextParallel.AttentionType[kind])
        module = parallelize_module(Attention(attend if kind == "SDPA" else flex_attention), mesh, plan)
        buffers, options = [*qkv, weight], {"is_causal": True}
        if kind == "FLEX":
            buffers.append(
                create_block_mask(lambda b, h, i, j: i >= j, 1, 1, N * 128, N * 128, device="cuda")
            )
        *own, own_weight = cp._context_parallel_shard(
            mesh, buffers[: 4 + (kind == "FLEX")], [2] * len(buffers), load_balancer=balancer
        )[:4]
        if kind == "FLEX":
            options = {
                "block_mask": cp._context_parallel_shard(mesh, buffers[4:], [2], load_balancer=balancer)[0]
            }
        own = [one.detach().requires_grad_() for one in own]
        cp._enable_context_parallel_dispatcher()
        out = module(*own, **options)
        (out * own_weight).sum().backward()
        cp._disable_context_parallel_dispatcher()
        grads = [one.grad for one in own]
        found = cp.context_parallel_unshard(mesh, [out, *grads], [2] * 4, load_balancer=balancer)
        torch.testing.assert_close(found, of_one_gpu(*qkv, weight, None), atol=1e-5, rtol=1e-3)

    joined.run(work)


def test_a_layer_of_torchs_within_a_shared_sequence(joined):
    def work(rank):
        torch.manual_seed(1)
        layer = nn.MultiheadAttention(16, 2, batch_first=True, device="cuda")
        x, weight = (torch.randn(2, N * 64, 16, device="cuda") for _ in range(2))
        mask = nn.Transformer.generate_square_subsequent_mask(N * 64, device="cuda")
        options = {"need_weights": False, "is_causal": True}
        (layer(x, x, x, attn_mask=mask, **options)[0] * weight).sum().backward()
        wanted, layer.in_proj_weight.grad = layer.in_proj_weight.grad, None
        with context_parallel(init_device_mesh("cuda", (N,)), buffers=[x, weight], buffer_seq_dims=[1, 1]):
            (layer(x, x, x, attn_mask=mask, **options)[0] * weight).sum().backward()
        dist.all_reduce(layer.in_proj_weight.grad)
        torch.testing.assert_close(layer.in_proj_weight.grad, wanted, atol=1e-4, rtol=1e-3)

    joined.run(work)


def test_each_rank_has_its_own_rules_and_options(joined):
    def work(rank):
        def rule():
            found = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
            return found[torch.ops.aten._scaled_dot_product_flash_attention.default].__name__

        outside, one = rule(), torch.ones(1, device="cuda")
        _attention._cp_options.enable_load_balance = rank.number == 0
        with context_parallel(
            init_device_mesh("cuda", (N,)), buffers=[sequence(64, torch.float32)[0]], buffer_seq_dims=[2]
        ):
            dist.all_reduce(one)
            inside = rule()
            if rank.number:  # the other one has left by now
                dist.all_reduce(one)
                assert rule() == inside != outside
        if not rank.number:
            dist.all_reduce(one)
        dist.all_reduce(one)
        assert rule() == outside
        assert _attention._cp_options.enable_load_balance == (rank.number == 0)

    joined.run(work)


def test_a_rank_that_is_ended_within_attention_reads_no_random_state_of_another(monkeypatch):
    """Its state would be searched for among its own next 2**31 numbers, in a thread that goes on meanwhile."""
    digest, readers = operations._generator_digest, []
    monkeypatch.setattr(
        operations, "_generator_digest", lambda one: (readers.append(turns.current_task()), digest(one))[1]
    )

    def work(rank):
        torch.cuda.set_device(rank.local)
        dist.init_process_group("nccl")
        torch.cuda.manual_seed(rank.number)
        mesh, x = init_device_mesh("cuda", (N,)), torch.ones(2, 2, N * 64, 16, device="cuda")
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
            if rank.number:
                dist.send(x, 0)
                torch.optim.SGD([x.requires_grad_()])  # a step draws: without an optimizer, no draw is noted
                Attention(attend)(x, x, x, is_causal=True)
            dist.recv(x, 1)
            raise ValueError("rank 0 fails while the other one attends")

    (finding,) = diagnose_ranks(work, N).findings
    assert finding.name == "script_fails"
    assert [one is None for one in readers] == [False]
