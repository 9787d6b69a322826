"""GPUs to try an answer on: the ones in use, or simulated ones for the duration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from simgpu import simulate


@contextmanager
def some_gpus(most: int = 3) -> Iterator[list[str]]:
    """Yield up to ``most`` of the GPUs in use; with fewer than two, simulate ``most`` for the duration."""
    with simulate(gpus=most) if torch.cuda.device_count() < 2 else nullcontext():
        yield [f"cuda:{gpu}" for gpu in range(min(torch.cuda.device_count(), most))]
