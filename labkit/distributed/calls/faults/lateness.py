"""Calls that came too late, in the words of NCCL's watchdog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from torch.distributed import DistBackendError

from ....base.language import say
from ..call import Call
from .words import described, ranks_text

# torch/csrc/distributed/c10d/Work.cpp, opTypeToString; NCCL's barrier is an all-reduce of one number.
_OP_TYPES = {
    "all_reduce": "ALLREDUCE", "barrier": "ALLREDUCE", "broadcast": "BROADCAST", "reduce": "REDUCE",
    "all_gather": "ALLGATHER", "all_gather_single": "_ALLGATHER_BASE", "gather": "GATHER", "scatter": "SCATTER",
    "reduce_scatter": "REDUCE_SCATTER", "reduce_scatter_single": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL",
    "all_to_all_single": "ALLTOALL_BASE", "send": "SEND", "recv": "RECV",
}  # fmt: skip


def watchdog(call: Call, timeout: timedelta, ran: timedelta | None = None) -> str:
    """The text that NCCL's watchdog writes after ``timeout`` (WorkNCCL::checkTimeout in ProcessGroupNCCL.cpp)."""
    limit = round(timeout.total_seconds() * 1000)
    spent = limit if ran is None else round(ran.total_seconds() * 1000)
    numel_in, numel_out = (
        (1, 1)
        if call.kind == "barrier"
        else (
            sum(t.numel() for t in call.inputs or call.outputs),
            sum(t.numel() for t in call.outputs or call.inputs),
        )
    )
    return (
        f"[Rank {call.at}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call.seq}, "
        f"OpType={_OP_TYPES.get(call.kind, call.kind.upper())}, NumelIn={numel_in}, NumelOut={numel_out}, "
        f"Timeout(ms)={limit}) ran for {spent} milliseconds before timing out."
    )


def late(calls: Sequence[Call]) -> DistBackendError | None:
    """The error to be raised if the last of a collective's calls came too late for the first; else None."""
    first = min(calls, key=lambda call: call.arrived)
    if first.timeout is None:
        return None
    end = first.arrived + first.timeout.total_seconds()
    away = [call.rank for call in calls if call.arrived > end]
    return timeout_error(first, first.timeout, away) if away else None


def timeout_error(call: Call, timeout: timedelta, ranks: Iterable[int] = ()) -> DistBackendError:
    """The error to be raised where ``call`` has waited for ``timeout`` by its rank's clock, in vain for ``ranks``."""
    names = ranks_text(ranks) if ranks else say(en="the others", zh="其他 rank")
    return DistBackendError(
        watchdog(call, timeout)
        + say(
            en=f"\nrank {call.rank} stood in {described(call)} at {call.short_place} for the whole timeout of the "
            "group, "
            f"{timeout.total_seconds():g} s; {names} had not come.\n"
            "Do: what only some ranks do for long (download, tokenise, evaluate) needs a longer `timeout=` in "
            "`init_process_group`, or the others must not wait in a collective for it.",
            zh=f"\nrank {call.rank} 停在 {call.short_place} 的 {described(call)}，等满了组的超时 "
            f"{timeout.total_seconds():g} 秒，{names} 还没有到。\n"
            "怎么办：只有部分 rank 要做很久的事（下载、分词、评估），就在 `init_process_group` 里把 `timeout=` "
            "设得更长，"
            "或者不要让其他 rank 在集合通信里等它。",
        )
    )
