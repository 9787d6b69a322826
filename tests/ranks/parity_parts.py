"""What the scripts of the folder ``parity`` begin with, and the exchanges between ranks that several of them make."""

import torch
import torch.distributed as dist
from torch import nn  # noqa: F401 (for the scripts)
from torch.nn import functional as F  # noqa: F401 (for the scripts)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Sum(torch.autograd.Function):
    """Sum in forward; the gradient passes through."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Copy(torch.autograd.Function):
    """Pass through in forward; sum the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return Sum.apply(gradient)


class Exchange(torch.autograd.Function):
    """All-to-all of equal blocks; backward is the same exchange."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient)
