"""``torch.autocast("cuda")`` on simulated GPUs."""

from __future__ import annotations


def install(patches, machine_in_use) -> None:
    """Nothing yet."""
