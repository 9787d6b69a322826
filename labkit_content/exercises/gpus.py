"""GPUs to try an answer on: those in use, or simulated ones for the moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from simgpu import simulate


@contextmanager
def some_gpus(most: int = 3) -> Iterator[list[str]]:
    """Up to ``most`` of the GPUs in use; where there are not even two, ``most`` simulated ones for the moment."""
    with simulate(gpus=most) if torch.cuda.device_count() < 2 else nullcontext():
        yield [f"cuda:{gpu}" for gpu in range(min(torch.cuda.device_count(), most))]
