"""Ranks of which none can go on, and calls that nobody came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ....base.language import say, series
from ..call import Call
from ..waits import Wait, WaitForGraph
from .lateness import watchdog
from .report import Report, explained
from .words import described, group_of, ordinal, ranks_text, table

# The faults that have a name of their own in a check-up, by why none can go on.
_IN_SOME = "collective_in_some_ranks"
_FAULTS = {"uneven": "uneven_inputs", "alone": _IN_SOME, "split_alone": _IN_SOME, "skipped": _IN_SOME}


class Unmet(RuntimeError):
    """All ranks have ended, and some calls were never met by the others'."""


@dataclass(frozen=True)
class Standing:
    """The place of one rank when none can go on.

    call    the collective or message that it waits in.
    what    what else it waits for: ``"Lock.acquire at train.py:12"``; "" if it has ended.
    error   the name and the text of what it raised, if it has ended by that.
    came    how often it has come to a line with a call of a kind: (line of code, kind) -> times.
    seqs    how many calls of a group it has made: group -> number of its last.
    last    the last call that it made.
    passes  how often it has run a wrapped model's forward in training.
    """

    rank: int
    call: Call | None = None
    what: str = ""
    error: tuple[str, str] | None = None
    came: Mapping[tuple[str, str], int] = field(default_factory=dict)
    seqs: Mapping[str, int] = field(default_factory=dict)
    last: Call | None = None
    passes: int = 0

    @property
    def ended(self) -> bool:
        return self.call is None and not self.what


def deadlock(standings: Sequence[Standing], timeout: timedelta | None = None) -> Report:
    """The report of a deadlock, when all ranks that live wait: for each where it stands; what it means; what to do.

    standings   of all ranks, in their order.
    timeout     of the group, after which NCCL would end it.
    """
    key, facts = _cause(standings)
    meaning, advice = explained(key, **facts)
    head = say(
        en="no rank can go on: each that is left waits for another.",
        zh="所有 rank 都走不下去了：剩下的每一个都在等别的 rank。",
    )
    lines = (head, *standing_lines(standings), meaning)
    places = tuple(filter(None, map(_place, standings)))
    stuck = next((call for one in standings if (call := one.call) and call.backend == "nccl"), None)
    real = (
        "" if stuck is None or stuck.makes_a_group else _on_real_gpus(stuck, timeout or timedelta(minutes=10))
    )
    return Report(_FAULTS.get(key, "deadlock"), lines, advice, places, real)


def _on_real_gpus(call: Call, timeout: timedelta) -> str:
    said, seconds = watchdog(call, timeout), f"{timeout.total_seconds():g}"
    return say(
        en=f"On real GPUs they stand for {seconds} s, until: {said}",
        zh=f"在真实的 GPU 上会一直卡 {seconds} 秒，然后才报：{said}",
    )


def _place(one: Standing) -> str:
    """The line of the user's code where a rank stands, or made its last call."""
    if one.what or one.error is not None:
        return one.what
    call = one.call or one.last
    return "" if call is None else call.short_place


def graph(standings: Sequence[Standing]) -> WaitForGraph:
    """The same as data, which draws itself."""
    return WaitForGraph(tuple(_wait(one, standings) for one in standings))


def _wait(one: Standing, standings: Sequence[Standing]) -> Wait:
    call = one.call
    if call is not None:
        return Wait(
            one.rank, "waits", call.kind, missing(call, standings), group_of(call), call.seq, call.short_place
        )
    if one.what:
        return Wait(one.rank, "waits", one.what)
    if one.error is not None:
        return Wait(one.rank, "failed", one.error[0])
    return Wait(one.rank, "ended")


def missing(call: Call, standings: Sequence[Standing]) -> tuple[int, ...]:
    """The ranks that have not come to ``call``."""
    if call.is_message:
        return () if call.root is None else (call.ranks[call.root],)
    members = frozenset(call.ranks)
    return tuple(
        one.rank
        for one in standings
        if one.rank in members and one.rank != call.rank and one.seqs.get(call.group, 0) < call.seq
    )


def standing_lines(standings: Sequence[Standing], known: Mapping[int, str] | None = None) -> list[str]:
    """A line for ranks that stand alike; ``known``: what is said of some, by rank."""
    found: dict[str, list[int]] = {}
    for one in standings:
        text = (known or {}).get(one.rank) or _standing(one, standings)
        found.setdefault(text, []).append(one.rank)
    names = [ranks_text(ranks) for ranks in found.values()]
    wide = max(map(len, names), default=0)
    return [
        f"  {name:<{wide}}  {_several(text) if len(ranks) > 1 else text}"
        for name, (text, ranks) in zip(names, found.items(), strict=True)
    ]


def _several(text: str) -> str:
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


def _standing(one: Standing, standings: Sequence[Standing]) -> str:
    call = one.call
    if call is not None:
        awaited = missing(call, standings)
        whom = ranks_text(awaited) if awaited else say(en="the others", zh="其他 rank")
        what = described(call)
        if call.is_message:
            return say(en=f"waits in {what} at {call.short_place}", zh=f"停在 {call.short_place} 的 {what}")
        return say(
            en=f"waits for {whom} in {what}, call {call.seq} of group {group_of(call)}, at {call.short_place}",
            zh=f"在等 {whom}：停在 {call.short_place} 的 {what}，组 {group_of(call)} 的第 {call.seq} 次调用",
        )
    if one.what:
        return say(en=f"waits for {one.what}", zh=f"在等 {one.what}")
    if one.error is not None:
        return say(
            en=f"failed with {one.error[0]}: {one.error[1]}",
            zh=f"出错退出：{one.error[0]}：{one.error[1]}",
        )
    last = one.last
    if last is None and one.seqs:
        return say(
            en="made no call in this cell, and has run to its end",
            zh="在这个单元格里没有做过调用，已经运行完",
        )
    if last is None:
        return say(en="has ended without a call", zh="已经结束，没有做过任何调用")
    return say(
        en=f"has ended; its last call was {last.kind}, call {last.seq} of group {group_of(last)}, "
        f"at {last.short_place}",
        zh=f"已经结束；最后一次调用是 {last.short_place} 的 {last.kind}，组 {group_of(last)} 的第 {last.seq} 次",
    )


# Why none can go on: a key of faults.txt, and its facts.
_Cause = tuple[str, dict[str, object]]


def _cause(standings: Sequence[Standing]) -> _Cause:
    calls = [one.call for one in standings if one.call is not None]
    others = [one for one in standings if one.what]
    if others and not calls:
        return "own_things", {}
    if others:
        return "something_else", {"names": ranks_text([one.rank for one in others])}
    if all(call.is_message for call in calls):
        return _cause_of_messages(calls, standings)
    collectives = [call for call in calls if not call.is_message]
    if len(collectives) < len(calls):
        return "message_and_collective", {}
    elsewhere = {call.rank: call.group for call in collectives}
    if all(
        elsewhere.get(rank, call.group) != call.group
        for call in collectives
        for rank in missing(call, standings)
    ):
        return "groups_crossed", {}
    return cause(collectives[0], standings)


def cause(call: Call, standings: Sequence[Standing]) -> _Cause:
    """Why some have not come to ``call``: fewer batches, or only some ranks run this line."""
    by = {one.rank: one for one in standings}
    away = [by[rank] for rank in missing(call, standings) if rank in by]
    names = ranks_text([one.rank for one in away])
    line = (call.short_place, call.kind)
    times = by[call.rank].came.get(line, 0)
    never = [one.rank for one in away if not one.came.get(line)]
    ended = [one.rank for one in away if one.ended]
    through = f" (`{via}`)" if (via := call.via) else ""
    if away and not never and times > 1:
        over = say(en=" and ended", zh="，然后结束了") if len(ended) == len(away) else ""
        rounds, passes = series(sorted({str(one.came[line]) for one in away})), by[call.rank].passes
        facts: dict[str, object] = {
            "names": names, "through": through, "rounds": rounds, "rank": call.rank, "times": times,
        }  # fmt: skip
        if passes and all(one.passes >= passes for one in away):
            return "skipped", facts
        return "uneven", facts | {"ended": over, "time": ordinal(times)}
    if never and call.makes_a_group:
        return "split_alone", {
            "names": ranks_text(never),
            "kind": call.kind,
            "members": ranks_text(call.ranks),
        }
    if never:
        here = ranks_text([one.rank for one in standings if one.came.get(line)])
        return "alone", {
            "names": ranks_text(never), "through": through, "here": here, "kind": call.kind,
            "members": ranks_text(call.ranks),
        }  # fmt: skip
    if ended:
        return "ended_before", {"names": ranks_text(ended)}
    return "elsewhere", {"names": names if away else say(en="the others", zh="其他 rank"), "rank": call.rank}


def _cause_of_messages(calls: Sequence[Call], standings: Sequence[Standing]) -> _Cause:
    kinds = {call.kind for call in calls}
    ended = {one.rank for one in standings if one.ended}
    gone = sorted({call.ranks[call.root] for call in calls if call.root is not None} & ended)
    if gone:
        return "peer_ended", {"names": ranks_text(gone)}
    return {"recv": "all_receive", "send": "all_send"}["".join(kinds)] if len(
        kinds
    ) == 1 else "messages_unpaired", {}


def unmet(calls: Sequence[Call]) -> Unmet:
    """The error to be raised for calls that were made and never met, when all ranks have ended."""
    head, advice = explained("unmet")
    places = tuple(call.short_place for call in calls)
    report = Report("calls_never_met", (head, *table(calls)), advice, places)
    return report.on(Unmet(str(report)))
