"""Explain why ranks hang from a job's log alone: the lines of NCCL's watchdog, and the errors of ranks.

A watchdog's line has the number of the call that timed out, and the numbers of the last calls of its group that its
rank has enqueued and completed. They show a rank that did not come, or came with another call, if its lines are in the
log too. Where they show neither, the explanation says so and names the evidence to collect.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit.base.texts import texts_beside

from ..calls.faults import explain_fault, format_ranks
from .explanation import Explained

_TEXTS = texts_beside(__file__)
_MOST_BYTES = 1 << 30
# ``\s+`` for each space: consoles wrap these long lines.
_EVENT = re.compile(
    r"Watchdog\s+caught\s+collective\s+operation\s+timeout:\s*Work\w*\(SeqNum=(?P<call>\d+),\s*OpType=(?P<kind>\w+)"
    r"(?:,\s*NumelIn=(?P<sent>\d+),\s*NumelOut=(?P<got>\d+))?"
    r"|(?:(?:at\s+work|NCCL\s+work|sequence\s+id):\s*(?P<at>\d+),?\s+(?:PG\s+status:\s+)?)?"
    r"last\s+enqueued\s+(?:NCCL\s+)?work:\s*(?P<enqueued>\d+),"
    r"\s*last\s+completed\s+(?:NCCL\s+)?work:\s*-?\d+",
    re.IGNORECASE,
)
_PREFIX = 250  # a line's prefixes stand at most that many characters before an event
# "[rank3]:" is a rank of the job, "[PG ID 2 PG GUID 9(tp) Rank 1]" a group and a rank in it.
_RANK_OF_JOB = re.compile(r"\[rank\s?(\d+)\]:", re.IGNORECASE)
_BRACKET = re.compile(
    r"\[(?:PG\s+(?:ID\s+)?(\w+)\s+(?:PG\s+GUID\s+([^\s(]+)\s*)?(?:\(\S*\)\s*)?)?Rank\s+(\d+)\]"
)
_ERROR = re.compile(r"\[rank\s?(\d+)\]:\s+((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
_EXIT = re.compile(r"rank\s+:\s+(\d+) \(local_rank:[^)]*\)\s+exitcode\s+:\s+(-\d+)")
# Errors and signals that follow from another rank's end, or from the timeout itself.
_FOLLOWS = re.compile(
    r"NCCL|Watchdog|[Cc]onnection|Broken pipe|Dist\w+Error|gloo|recvValue|ChildFailed|Signal"
)
_ABORTED = (-6, -15)
# Collectives to which all ranks bring the same number of elements.
_EVEN = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")


@dataclass
class _RankInGroup:
    """A rank in the lines about one group: the calls that timed out, and the furthest numbers.

    timed_out   number of the call: its kind, and the numbers of elements sent and received where the log has them.
    enqueued    the last call that was enqueued; None if no line says so.
    own_rank    the rank's number within the group.
    """

    timed_out: dict[int, tuple[str, ...]] = field(default_factory=dict)
    enqueued: int | None = None
    own_rank: int = -1


_Group = dict[int, _RankInGroup]


def read_logs(paths: Iterable[str | Path]) -> str:
    """Return the text of files, and of all files in folders such as torchrun's ``--log-dir``, up to 1 GiB each."""
    found = [sorted(path.rglob("*")) if path.is_dir() else [path] for path in map(Path, paths)]
    files = [
        file for files in found for file in files if file.is_file() and file.stat().st_size <= _MOST_BYTES
    ]
    return "\n".join(file.read_text("utf-8", errors="replace") for file in files)


def explain_log(text: str) -> Explained | None:
    """Explain the log of a job. Without evidence of a fault, ``fault`` is "" and ``advice`` names what to collect.

    Return None if the text has neither lines of a watchdog nor an error of a rank.
    """
    groups, errors = _read_groups(text), _read_own_errors(text)
    ranks = tuple(sorted({*errors, *(rank for group in groups.values() for rank in group)}))
    if not ranks:
        return None
    head = [_TEXTS["head"](ranks=format_ranks(ranks))]
    if errors:
        head += [_TEXTS["error"](rank=rank, error=error) for rank, error in errors.items()]
        head.append(_TEXTS["ended"](ranks=format_ranks(list(errors))))
        return Explained(
            ranks, (), "script_fails", tuple(errors), "", None, tuple(head), str(_TEXTS["ended-do"])
        )
    explained = [_explain_group(name, group, ranks) for name, group in groups.items()]
    found = next((one for one in explained if one.fault), explained[0])
    return replace(found, ranks=ranks, lines=(*head, *found.lines))


def _read_groups(text: str) -> dict[str, _Group]:
    """Return the groups with a call that timed out, by name ("" for lines that name no group), in order of the log."""
    groups: dict[str, _Group] = {}
    calls: dict[tuple[int, int], tuple[str, ...]] = {}
    for event in _EVENT.finditer(text):
        before = text[max(0, event.start() - _PREFIX) : event.start()]
        brackets, numbers = _BRACKET.findall(before), _RANK_OF_JOB.findall(before)
        if not brackets and not numbers:
            continue
        number, guid, own_rank = brackets[-1] if brackets else ("", "", numbers[-1])
        rank = int(numbers[-1] if numbers else own_rank)
        if event["call"]:
            sizes = (event["sent"], event["got"]) if event["sent"] else ()
            calls.setdefault((rank, int(event["call"])), (event["kind"], *sizes))
            continue
        state = groups.setdefault(guid or number, {}).setdefault(rank, _RankInGroup(own_rank=int(own_rank)))
        state.enqueued = max(state.enqueued or 0, int(event["enqueued"]))
        if event["at"]:
            state.timed_out.setdefault(int(event["at"]), ())
    for (rank, number), call in calls.items():
        of = next(
            (group[rank] for group in groups.values() if rank in group and number in group[rank].timed_out),
            None,
        )
        of = of or groups.setdefault("", {}).setdefault(rank, _RankInGroup(own_rank=rank))
        of.timed_out[number] = call
    return {
        name: group for name, group in groups.items() if any(state.timed_out for state in group.values())
    } or groups


def _read_own_errors(text: str) -> dict[int, str]:
    """Return the errors and signals that ended ranks, by rank, without those that followed from another rank's end."""
    found: dict[int, str] = {}
    for rank, error in _ERROR.findall(text):
        if not _FOLLOWS.search(error):
            found.setdefault(int(rank), error.strip())
    for rank, code in _EXIT.findall(text):
        if int(code) not in _ABORTED:
            found.setdefault(int(rank), _TEXTS["signal"](signal=signal.Signals(-int(code)).name))
    return found


def _explain_group(name: str, group: _Group, ranks: Sequence[int]) -> Explained:
    late = {rank: state for rank, state in group.items() if state.timed_out}
    if not late:
        return _cannot_tell("no-timeout", (), ())
    number = min(min(state.timed_out) for state in late.values())
    waiting = {rank: state.timed_out[number] for rank, state in late.items() if number in state.timed_out}
    behind = [rank for rank, state in group.items() if state.enqueued is not None and state.enqueued < number]
    elsewhere = [rank for rank in late if rank not in waiting]
    usual, _ = Counter(waiting.values()).most_common(1)[0]
    lines = [
        _TEXTS["waits"](ranks=format_ranks(of), number=number, call=_describe_call(call), group=name or "?")
        for call in dict.fromkeys(waiting.values())
        if (of := [rank for rank in sorted(waiting) if waiting[rank] == call])
    ]
    lines += [_TEXTS["behind"](rank=rank, number=group[rank].enqueued) for rank in sorted(behind)]
    different = [rank for rank, call in sorted(waiting.items()) if _differs(call, usual)]
    # Without "PG GUID", several groups of a job may have the same number: their own ranks then repeat.
    one_group = len({state.own_rank for state in group.values()}) == len(group)
    if different and one_group:
        key = "kind" if any(waiting[rank][0] != usual[0] for rank in different) else "shape"
        meaning, advice = explain_fault(key)
        fault = "calls_differ" if key == "kind" else "shapes_differ"
        return Explained((), (), fault, tuple(different), name, number, (*lines, meaning), advice)
    if behind and name and one_group:
        lines.append(_TEXTS["missing"](ranks=format_ranks(sorted(behind)), number=number))
        advice = str(_TEXTS["missing-do"])
        return Explained((), (), "deadlock", tuple(sorted(behind)), name, number, tuple(lines), advice)
    if elsewhere or not one_group:
        return _cannot_tell("scattered", lines, ())
    if len(waiting) == 1:
        return _cannot_tell("alone", lines, ())
    if number <= 1:
        return _cannot_tell("first-call", lines, (), "first-call-do")
    silent = sorted(set(range(max(ranks) + 1)) - set(ranks))
    return _cannot_tell("all-came", lines, silent)


def _cannot_tell(key: str, lines: Iterable[str], silent: Sequence[int], advice: str = "collect") -> Explained:
    lines = [*lines, str(_TEXTS[key])]
    if silent:
        lines.append(_TEXTS["silent"](ranks=format_ranks(silent)))
    return Explained((), (), lines=tuple(lines), advice=str(_TEXTS[advice]))


def _describe_call(call: tuple[str, ...]) -> str:
    kind, *sizes = call or ("?",)
    return kind if not sizes else _TEXTS["sizes"](kind=kind, sent=sizes[0], received=sizes[1])


def _differs(call: tuple[str, ...], usual: tuple[str, ...]) -> bool:
    """Return whether two calls that should be one differ; sizes may differ in calls with uneven parts."""
    if not call or not usual:
        return False
    return call[0] != usual[0] or call != usual and call[0] in _EVEN
