"""GPUs to try an answer on: those in use, or simulated ones for the moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...machine import simulate


@contextmanager
def some_gpus(most: int = 3) -> Iterator[list[str]]:
    """Up to ``most`` of the GPUs in use; where there are not even two, ``most`` simulated ones for the moment."""
    if torch.cuda.device_count() >= 2:
        yield [f"cuda:{gpu}" for gpu in range(min(torch.cuda.device_count(), most))]
        return
    with simulate(gpus=most):
        yield [f"cuda:{gpu}" for gpu in range(most)]
