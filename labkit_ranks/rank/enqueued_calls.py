"""Calls that wait on the GPU of a rank: NCCL's functions return, and the host goes on.

torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: ``WorkNCCL::wait`` makes the stream wait. The host waits only in a
barrier, for ``wait(timeout)``, and with TORCH_NCCL_BLOCKING_WAIT. ``shutdown`` (destroy_process_group) flushes
everything; ``~ProcessGroupNCCL``, at the end of a process, aborts.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from labkit.base.language import say
from simgpu import hooks, machine_in_use

from ..calls.call import CollectiveCall
from .clock import TimedRank
from .rank import current_rank

_ranks_with_calls: set[TimedRank] = set()  # ranks that have enqueued calls


hooks.is_followed.add(lambda _: bool(_ranks_with_calls))


def enqueue(rank: TimedRank, work: Any) -> None:
    """Let ``rank`` go on before ``work`` has run, and watch from now on for anything that makes its host wait."""
    rank.enqueued.append(work)
    if work.call.from_cpp:
        work.call.memo["used"] = True  # C++ may use the values unseen
    _update_watched(rank)


def forget_enqueued(*ranks: TimedRank) -> None:
    """Forget the calls of ranks whose run has ended."""
    for rank in _ranks_with_calls.intersection(ranks):
        rank.enqueued.clear()
        _update_watched(rank)


def _update_watched(rank: TimedRank) -> None:
    """Watch for waits on the host while any rank has enqueued calls; stop when none has."""
    (_ranks_with_calls.add if rank.enqueued else _ranks_with_calls.discard)(rank)
    if (machine := machine_in_use()) is not None:
        for opened in hooks.machine_opened:
            opened(machine)


def wait_on_host(rank: TimedRank | None, wait: Callable[[], object]) -> None:
    """Call ``wait()``, in which the host of ``rank`` waits for its GPU at the current line of the user.

    ``rank`` is None in a process that has no number from a launcher.
    """
    if rank is None:
        wait()
        return
    here = CollectiveCall("")
    here.locate()
    if here.code is None:  # no line of the user: a judge of the course reads
        rank.reads = ""
    else:
        source, place = linecache.getline(here.code.co_filename, here.line).strip(), here.short_place
        rank.reads = say(en=f"{place}, `{source}`", zh=f"{place}（`{source}`）") if source else place
    try:
        wait()
    finally:
        rank.reads = None


@hooks.host_waited.add
@hooks.device_waited.add
def _wait_for_gpu(_: Any) -> None:
    """Run the enqueued calls of the current rank, because its host waits for the GPU."""
    rank = current_rank()
    if rank is not None and rank.enqueued:
        wait_on_host(rank, lambda: _drain_queue(rank))
        _update_watched(rank)


def _drain_queue(rank: TimedRank) -> None:
    while rank.enqueued:
        rank.enqueued[0].wait_on_host()
        rank.enqueued.pop(0)


@hooks.operator_ran.add
def _mark_used(_: Any) -> None:
    for work in () if (rank := current_rank()) is None else rank.enqueued:
        work.call.memo["used"] = True
