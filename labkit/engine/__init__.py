"""The data-parallel engine: replicate, scatter, parallel_apply and gather, in ordinary PyTorch."""

from .data_parallel import DataParallel, data_parallel
from .gather import gather
from .parallel_apply import parallel_apply
from .replicate import replicate
from .scatter import scatter, scatter_kwargs

__all__ = [
    "DataParallel", "data_parallel", "gather", "parallel_apply", "replicate", "scatter", "scatter_kwargs",
]  # fmt: skip
