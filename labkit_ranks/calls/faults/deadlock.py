"""Reports of calls that ranks wait in forever: deadlocks, calls unmet at the end of a program, timeouts.

Timeouts are told in the words of NCCL's watchdog (ProcessGroupNCCL.cpp, WorkNCCL::checkTimeout).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from torch.distributed import DistBackendError, DistStoreError

from labkit.base.language import say, series
from labkit.base.texts import texts_beside

from ..call import CollectiveCall
from ..wait_graph import Wait, WaitForGraph
from .report import (
    Report,
    align_columns,
    call_table,
    describe_call,
    describe_group,
    explain_fault,
    format_ordinal,
    format_ranks,
    group_label,
)

_TEXTS = texts_beside(__file__)

# Causes of deadlocks with a fault of their own in a check-up.
_IN_SOME = "collective_in_some_ranks"
FAULT_OF = {
    "uneven": "uneven_inputs",
    "alone": _IN_SOME,
    "alone_in_backward": "backward_in_some_ranks",
    "split_alone": _IN_SOME,
    "skipped": _IN_SOME,
}


class Unmet(RuntimeError):
    """All ranks have ended, and some calls were never completed."""


@dataclass(frozen=True)
class RankState:
    """The state of one rank in a deadlock.

    call    the collective or message that the rank waits in.
    what    something else that it waits for: ``"Lock.acquire at train.py:12"``.
    error   the name and text of the error that ended the rank.
    came    how often the rank has come to each (line of code, kind of call).
    seqs    the number of the rank's last call in each group.
    last    the rank's last call.
    passes  how often a wrapped model's forward has run in training.
    reads   the line at which the host waits for the GPU; "" if it waits in the call itself.
    counted whether ``came`` counts visits; dumps of NCCL's recorder only know calls.
    """

    rank: int
    call: CollectiveCall | None = None
    what: str = ""
    error: tuple[str, str] | None = None
    came: Mapping[tuple[str, str], int] = field(default_factory=dict)
    seqs: Mapping[str, int] = field(default_factory=dict)
    last: CollectiveCall | None = None
    passes: int = 0
    reads: str = ""
    counted: bool = True

    @property
    def has_ended(self) -> bool:
        return self.call is None and not self.what


def deadlock_report(standings: Sequence[RankState], timeout: timedelta | None = None) -> Report:
    """Return the report of a deadlock. After ``timeout``, NCCL would end the group."""
    key, facts = _find_cause(standings)
    meaning, advice = explain_fault(key, **facts)
    lines = (str(_TEXTS["nobody"]), *state_lines(standings), meaning)
    places = tuple(filter(None, map(_last_place, standings)))
    stuck, real = next((call for one in standings if (call := one.call) and call.backend == "nccl"), None), ""
    if stuck is not None and not stuck.makes_a_group:
        limit = timeout or stuck.timeout or timedelta(minutes=10)
        seconds = f"{limit.total_seconds():g}"
        if stuck.is_connected:  # ranks that are processes don't record who reads the result
            unread = stuck.waits_on_gpu and not any(one.reads for one in standings)
            text = "if-read" if unread else "on-real-gpus"
            real = _TEXTS[text](seconds=seconds, said=watchdog_text(stuck, limit))
        else:
            real = _first_call_text(standings, seconds)
    return Report(FAULT_OF.get(key, "deadlock"), lines, advice, places, real)


def _first_call_text(standings: Sequence[RankState], seconds: str) -> str:
    """Return how long real ranks wait in calls that would connect them, each with a key from its group's first rank."""
    calls = [
        call for one in standings if (call := one.call) and not (call.is_connected or call.makes_a_group)
    ]
    without = {call.rank: first for call in calls if (first := call.missing_first) is not None}
    if not without:
        return str(_TEXTS["on-first-call"])
    if len(without) == len(calls) and len(firsts := {*without.values()}) == 1:
        return _TEXTS["on-first-call-without-a-key"](first=firsts.pop(), seconds=seconds)
    return _TEXTS["on-first-call-some-without-a-key"](names=format_ranks([*without]), seconds=seconds)


def _last_place(one: RankState) -> str:
    """Return the user's line where a rank waits, or made its last call."""
    if one.what or one.error is not None:
        return one.what
    call = one.call or one.last
    return "" if call is None else call.short_place


def wait_graph(standings: Sequence[RankState]) -> WaitForGraph:
    return WaitForGraph(tuple(_wait(one, standings) for one in standings))


def _wait(one: RankState, standings: Sequence[RankState]) -> Wait:
    call = one.call
    if call is not None:
        if call.is_of_store:
            return Wait(one.rank, "waits", call.kind, place=call.short_place)
        awaited = missing_ranks(call, standings)
        return Wait(one.rank, "waits", call.kind, awaited, describe_group(call), call.seq, call.short_place)
    if one.what:
        return Wait(one.rank, "waits", one.what)
    if one.error is not None:
        return Wait(one.rank, "failed", one.error[0])
    return Wait(one.rank, "ended")


def missing_ranks(call: CollectiveCall, standings: Sequence[RankState]) -> tuple[int, ...]:
    """Return the ranks that have not come to ``call``."""
    if call.is_message:
        return () if call.root is None else (call.ranks[call.root],)
    others = frozenset(call.ranks) - {call.rank}
    behind = [one.rank for one in standings if one.seqs.get(call.group, 0) < call.seq]
    return tuple(rank for rank in behind if rank in others)


def state_lines(standings: Sequence[RankState], known: Mapping[int, str] | None = None) -> list[str]:
    """Return a line for each group of ranks in the same state.

    known   texts to use for some ranks instead.
    """
    found: dict[str, list[int]] = {}
    for one in standings:
        text = (known or {}).get(one.rank) or _describe_state(one, standings)
        found.setdefault(text, []).append(one.rank)
    rows = [
        (format_ranks(ranks), _to_plural(text) if len(ranks) > 1 else text) for text, ranks in found.items()
    ]
    return [f"  {line}" for line in align_columns(rows)]


def _to_plural(text: str) -> str:
    """Put a text about one rank into the plural."""
    for one, several in (
        ("waits ", "wait "),
        ("has made no call", "have made no call"),
        ("has ended; its", "have ended; their"),
        ("has ended", "have ended"),
        ("made no call in this cell, and has run to its", "made no call in this cell, and have run to their"),
    ):
        if text.startswith(one):
            return several + text.removeprefix(one)
    return text


def _describe_state(one: RankState, standings: Sequence[RankState]) -> str:
    call, last = one.call, one.last
    if one.reads:
        return _describe_state(replace(one, reads=""), standings) + _TEXTS["reads"](place=one.reads)
    if call is not None and (call.is_message or call.is_of_store):
        what = f"{call.kind}({call.group})" if call.is_of_store else describe_call(call)
        return _TEXTS["message"](what=what, place=call.short_place)
    if call is not None:
        awaited = missing_ranks(call, standings)
        whom = format_ranks(awaited) if awaited else _TEXTS["others"]
        facts = _call_facts(call, describe_group(call))
        return _TEXTS["collective"](whom=whom, what=describe_call(call), **facts).replace("） ", "）")
    if one.what:
        return _TEXTS["own"](what=one.what)
    if one.error is not None:
        return _TEXTS["failed"](kind=one.error[0], problem=one.error[1])
    if last is None:
        return str(_TEXTS["no-call-here" if one.seqs else "no-call"])
    if last.is_message:  # its number counts messages of the pair, not the group's calls
        return _TEXTS["ended-message"](what=describe_call(last), place=last.short_place)
    return _TEXTS["ended"](kind=last.kind, **_call_facts(last))


def _call_facts(call: CollectiveCall, group: str = "") -> dict[str, object]:
    return {"number": call.seq, "group": group or group_label(call), "place": call.short_place}


# The cause of a deadlock: a key of faults.txt, and its facts.
_Cause = tuple[str, dict[str, object]]


def _find_cause(standings: Sequence[RankState]) -> _Cause:
    calls = [one.call for one in standings if one.call is not None]
    others = [one for one in standings if one.what]
    if any(call.is_of_store for call in calls):
        return "keys_never_set", {}
    if others and not calls:
        return "own_things", {}
    if others:
        return "something_else", {"names": format_ranks([one.rank for one in others])}
    if all(call.is_message for call in calls):
        return _find_cause_of_messages(calls, standings)
    collectives = [call for call in calls if not call.is_message]
    if len(collectives) < len(calls):
        return "message_and_collective", {}
    group = {call.rank: call.group for call in collectives}
    awaited = [(call.group, rank) for call in collectives for rank in missing_ranks(call, standings)]
    if all(group.get(rank, own) != own for own, rank in awaited):
        return "groups_crossed", {}
    return cause_of_absence(collectives[0], standings)


def cause_of_absence(call: CollectiveCall, standings: Sequence[RankState]) -> _Cause:
    """Find out why some ranks have not come to ``call``: fewer batches, or a line that only some ranks run."""
    by = {one.rank: one for one in standings}
    away = [by[rank] for rank in missing_ranks(call, standings) if rank in by]
    names = format_ranks([one.rank for one in away])
    line = (call.short_place, call.kind)
    times = by[call.rank].came.get(line, 0)
    never = [one.rank for one in away if not one.came.get(line)]
    ended = [one.rank for one in away if one.has_ended]
    through = f" (`{via}`)" if (via := call.via) else ""
    group = {"kind": call.kind, "members": format_ranks(call.ranks)}
    forward = all(one.last is not None and not one.last.backward for one in away)
    if call.backward and away and not by[call.rank].passes and (never or forward):
        here = format_ranks([one.rank for one in standings if one not in away])
        return "alone_in_backward", {"names": names, "kind": call.kind, "here": here}
    if away and not never and times > 1:
        over = say(en=" and ended", zh="，然后结束了") if len(ended) == len(away) else ""
        rounds, passes = series(sorted({str(one.came[line]) for one in away})), by[call.rank].passes
        # Outside of backward, what torch does in one visit of a line may be several collectives.
        visits = not via or (call.backward and by[call.rank].counted)
        what = say(en="this line", zh="这一行")
        if not visits:
            what = say(en="a collective of this line", zh="这一行里的集合通信")
        facts: dict[str, object] = {
            "names": names, "what": what, "through": through, "rounds": rounds, "rank": call.rank, "times": times,
        }  # fmt: skip
        if passes and all(one.passes >= passes for one in away):
            return "skipped", facts
        return "uneven", facts | {"ended": over, "time": format_ordinal(times)}
    if never and call.makes_a_group:
        return "split_alone", {"names": format_ranks(never), **group}
    if never:
        here = format_ranks([one.rank for one in standings if one.came.get(line)])
        return "alone", {"names": format_ranks(never), "through": through, "here": here, **group}
    if ended:
        return "ended_before", {"names": format_ranks(ended)}
    return "elsewhere", {"names": names if away else _TEXTS["others"], "rank": call.rank}


def _find_cause_of_messages(calls: Sequence[CollectiveCall], standings: Sequence[RankState]) -> _Cause:
    kinds = {call.kind for call in calls}
    ended = {one.rank for one in standings if one.has_ended}
    gone = sorted({call.ranks[call.root] for call in calls if call.root is not None} & ended)
    if gone:
        return "peer_ended", {"names": format_ranks(gone)}
    for held, first in (call.memo["held"] for call in calls if "held" in call.memo):
        if "behind" in held.memo:  # both messages were posted before the rank waited
            break
        facts = {"first": first.name, "then": held.name, "place": held.short_place}
        return "in_order", {"rank": held.rank, **facts}
    return {"recv": "all_receive", "send": "all_send"}.get("".join(kinds), "messages_unpaired"), {}


def unmet_error(calls: Sequence[CollectiveCall], standings: Sequence[RankState] = ()) -> Unmet:
    """Return the error for calls that are still pending when all ranks have ended."""
    (head, advice), fault = explain_fault("unmet"), "calls_never_met"
    lines = [head, *call_table(calls)]
    if standings:
        first = {call.rank: call for call in reversed(calls)}
        key, facts = _find_cause([replace(one, call=first.get(one.rank)) for one in standings])
        meaning, advice = explain_fault(key, **facts)
        places = [] if calls[0].is_message else state_lines(standings)
        lines, fault = [*lines, *places, meaning], FAULT_OF.get(key, fault)
    real = str(_TEXTS["at-exit"]) if all(call.backend == "nccl" for call in calls) else ""
    report = Report(fault, tuple(lines), advice, tuple(call.short_place for call in calls), real)
    return report.attach_to(Unmet(str(report)))


# torch/csrc/distributed/c10d/Work.cpp, opTypeToString; NCCL's barrier is an all-reduce of one number.
_OP_TYPES = {
    "all_reduce": "ALLREDUCE", "barrier": "ALLREDUCE", "broadcast": "BROADCAST", "reduce": "REDUCE",
    "all_gather": "ALLGATHER", "all_gather_single": "_ALLGATHER_BASE", "gather": "GATHER", "scatter": "SCATTER",
    "reduce_scatter": "REDUCE_SCATTER", "reduce_scatter_single": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL",
    "all_to_all_single": "ALLTOALL_BASE", "send": "SEND", "recv": "RECV",
}  # fmt: skip


def watchdog_text(call: CollectiveCall, timeout: timedelta) -> str:
    """Return the message of NCCL's watchdog after ``timeout``."""
    limit = round(timeout.total_seconds() * 1000)
    brought, got = call.inputs or call.outputs, call.outputs or call.inputs
    numel_in, numel_out = (sum(t.numel() for t in tensors) for tensors in (brought, got))
    if call.kind == "barrier":
        numel_in = numel_out = 1
    return (
        f"[Rank {call.at}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call.seq}, "
        f"OpType={_OP_TYPES.get(call.kind, call.kind.upper())}, NumelIn={numel_in}, NumelOut={numel_out}, "
        f"Timeout(ms)={limit}) ran for {limit} milliseconds before timing out."
    )


def late_error(calls: Sequence[CollectiveCall]) -> DistBackendError | None:
    """Return the error if a rank called later than the first one's timeout allows; else None."""
    first = min(calls, key=lambda call: call.arrived)
    if first.timeout is None:
        return None
    end = first.arrived + first.timeout.total_seconds()
    away = [call.rank for call in calls if call.arrived > end]
    return timeout_error(first, first.timeout, away) if away else None


def store_timeout_error(keys: Iterable[str], timeout: timedelta) -> DistStoreError:
    """Return the error of a store's function that has waited for ``keys`` (c10d/TCPStore.cpp, doWait)."""
    ms = int(timeout.total_seconds() * 1000)
    return DistStoreError(f"wait timeout after {ms}ms, keys: {', '.join(keys)}")


def timeout_error(call: CollectiveCall, timeout: timedelta, ranks: Iterable[int] = ()) -> DistBackendError:
    """Return the error of ``call`` after it has waited for ``timeout`` on its rank's clock, in vain for ``ranks``."""
    names = format_ranks(ranks) if ranks else _TEXTS["others"]
    return DistBackendError(
        watchdog_text(call, timeout)
        + say(
            en=f"\nrank {call.rank} waited in {describe_call(call)} at {call.short_place} for the whole timeout of the "
            f"group, {timeout.total_seconds():g} s, but {names} did not come.\n"
            "Do: if some ranks have long work of their own (download, tokenise, evaluate), pass a longer `timeout=` to "
            "`init_process_group`, or don't let the others wait in a collective meanwhile.",
            zh=f"\nrank {call.rank} 停在 {call.short_place} 的 {describe_call(call)}，等满了组的超时 "
            f"{timeout.total_seconds():g} 秒，{names} 还没有到。\n"
            "怎么办：只有部分 rank 要做很久的事（下载、分词、评估），就在 `init_process_group` 里把 `timeout=` "
            "设得更长，或者不要让其他 rank 在集合通信里等它。",
        )
    )
