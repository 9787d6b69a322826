"""The kernels under nn.SyncBatchNorm; tests/ranks/test_tensor_parallel.py joins the statistics of ranks by them."""

import pytest
import torch
from torch import nn


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
