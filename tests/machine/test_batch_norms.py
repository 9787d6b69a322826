"""The kernels under nn.SyncBatchNorm: two ranks' statistics, put together, are those of the joined batch."""

import pytest
import torch
from torch import nn

RANKS = ("cuda:0", "cuda:1")


def close(one, other, dtype):
    torch.testing.assert_close(one.cpu().float(), other.float(), rtol=2e-2 if dtype is not torch.float32 else 1e-4,
                               atol=2e-2 if dtype is not torch.float32 else 1e-5)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_two_ranks_are_one_batch(gpus, dtype, layout):
    torch.manual_seed(0)
    pieces = [
        torch.randn(n, 3, 4, 5).mul(2).add(1).to(dtype).contiguous(memory_format=layout) for n in (2, 3)
    ]
    joined = torch.cat(pieces).float().requires_grad_()
    norm = nn.BatchNorm2d(3)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias)
    expected = norm(joined)
    seed = torch.randn_like(expected).to(dtype)
    expected.backward(seed.float())

    x = [piece.to(at) for piece, at in zip(pieces, RANKS, strict=True)]
    stats = [torch.batch_norm_stats(piece, 1e-5) for piece in x]
    for (mean, invstd), at in zip(stats, RANKS, strict=True):
        assert mean.dtype is invstd.dtype is torch.float32
        assert str(mean.device) == at
        assert mean.shape == (3,)
    grads, sums = [s.to(at) for s, at in zip(seed.split((2, 3)), RANKS, strict=True)], []
    everywhere = []
    for at in RANKS:
        running = torch.zeros(3, device=at), torch.ones(3, device=at)
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            x[RANKS.index(at)], *(torch.stack([pair[k].to(at) for pair in stats]) for k in (0, 1)), *running, 0.1,
            1e-5, torch.tensor([40.0, 60.0], device=at),
        )  # fmt: skip
        everywhere.append((mean, invstd, running))
        close(running[0], norm.running_mean, torch.float32 if dtype is torch.float32 else dtype)
        close(running[1], norm.running_var, dtype)
    outs = []
    for piece, grad, at, (mean, invstd, _) in zip(x, grads, RANKS, everywhere, strict=True):
        weight, bias = norm.weight.detach().to(at), norm.bias.detach().to(at)
        out = torch.batch_norm_elemt(piece, weight, bias, mean, invstd, 1e-5)
        assert out.dtype is dtype
        assert out.is_contiguous(memory_format=layout)
        assert str(out.device) == at
        outs.append(out.cpu())
        sums.append(torch.batch_norm_backward_reduce(grad, piece, mean, invstd, weight, True, True, True))
        assert all(str(total.device) == at and total.dtype is torch.float32 for total in sums[-1])
    close(torch.cat(outs), expected.detach(), dtype)
    close(sum(s[2].cpu() for s in sums), norm.weight.grad, torch.float16)
    close(sum(s[3].cpu() for s in sums), norm.bias.grad, torch.float16)
    found = []
    for piece, grad, at, (mean, invstd, _) in zip(x, grads, RANKS, everywhere, strict=True):
        totals = [sum(s[k].to(at) for s in sums) for k in (0, 1)]
        count = torch.tensor([40, 60], dtype=torch.int32, device=at)
        grad_input = torch.batch_norm_backward_elemt(
            grad, piece, mean, invstd, norm.weight.detach().to(at), *totals, count
        )
        assert grad_input.dtype is dtype
        assert grad_input.is_contiguous(memory_format=layout)
        found.append(grad_input.cpu())
    close(torch.cat(found), joined.grad, dtype)


def test_what_the_kernels_refuse(gpus):
    x = torch.ones(2, 3, 2, device="cuda:0")
    rows = torch.ones(2, 3, device="cuda:0")
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        torch.batch_norm_stats(x.cpu(), 1e-5)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.batch_norm_elemt(x, None, None, rows[0], rows[0].to("cuda:1"), 1e-5)
    with pytest.raises(TypeError, match="eps"):
        torch.batch_norm_stats(x)
    differ, row = "^mean and invstd need to have the same data types$", rows[0]
    with pytest.raises(RuntimeError, match=differ):
        torch.batch_norm_backward_reduce(x, x, row, row.double(), None, True, True, True)
    with pytest.raises(RuntimeError, match=differ):
        torch.batch_norm_backward_elemt(
            x, x, row.double(), row, None, row, row, torch.ones(1, device="cuda:0")
        )


@pytest.mark.parametrize("training", [True, False])
def test_sync_batch_norm_without_a_group_is_batch_norm(gpus, training):
    x = torch.randn(4, 3, 2, 2)
    plain = nn.BatchNorm2d(3).train(training)
    mine = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3)).to("cuda:1").train(training)
    result = mine(x.to("cuda:1"))
    assert result.device.index == 1
    assert torch.equal(result.cpu(), plain(x))
    assert torch.equal(mine.running_var.cpu(), plain.running_var)
