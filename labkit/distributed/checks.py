"""What NCCL and gloo refuse. (Stand-in, until the full one is merged.)"""

from __future__ import annotations

from typing import Any

from .call import Call


def check(call: Call, group: Any) -> None:
    """Raise what PyTorch raises for a call that this group does not take."""
    kind = call.device.partition(":")[0]
    if kind not in group.backends:
        raise RuntimeError(f"No backend type associated with device type {kind}")
