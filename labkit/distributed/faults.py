"""Calls that do not fit together. (Stand-in, until the full one is merged.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed

from ..base.language import say
from .call import Call


class Mismatch(RuntimeError):
    """Ranks that meet in one collective called different things."""


def mismatch(calls: Sequence[Call]) -> str | None:
    """What does not fit in the calls of one collective, in words; None if all does."""
    first = calls[0]
    if first.kind in ("send", "recv"):
        return None
    for other in calls[1:]:
        if (other.kind, other.op, other.root) != (first.kind, first.op, first.root):
            return say(en="different calls meet:", zh="不同的调用碰在一起：") + f"\n  {first!r}\n  {other!r}"
    return None


def timeout_error(call: Call, timeout: Any, slot: Any) -> Exception:
    """What NCCL's watchdog says when the others do not come in time."""
    ms = int(timeout.total_seconds() * 1000)
    return torch.distributed.DistBackendError(
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call.seq}, OpType={call.kind.upper()}, "
        f"Timeout(ms)={ms}) ran for {ms} milliseconds before timing out."
    )
