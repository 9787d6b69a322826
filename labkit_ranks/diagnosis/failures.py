"""Turn the error that ended a run into a finding."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType

from labkit.base.language import series
from labkit.base.ours import is_our_module, is_torch_module
from labkit_diagnose.errors import short_text
from labkit_diagnose.findings import list_some
from labkit_diagnose.result import Finding

from ..calls.call import format_place
from ..calls.faults import Report, format_ranks
from ..rank.own_modules import is_installed_code
from .kinds import KINDS, PHRASES, topic_of
from .loop_exits import loop_exits
from .records import RankRecord


def find_failure(records: Sequence[RankRecord], rank: int, error: BaseException) -> Finding:
    """Return the finding for ``error``; if the script waits for an old launcher's argument, with that advice."""
    finding = _find_failure(records, rank, error)
    return (
        replace(finding, fix=f"{finding.fix} {PHRASES['local_rank']()}")
        if _asks_local_rank(error)
        else finding
    )


def _asks_local_rank(error: BaseException) -> bool:
    """Whether a file of the user's reads the argument ``--local_rank`` of ``torch.distributed.launch``."""
    texts = ["".join(linecache.getlines(code.co_filename)) for code, _ in user_frames(error)]
    return any(re.search(r"--local[_-]rank", text) and "LOCAL_RANK" not in text for text in texts)


def _find_failure(records: Sequence[RankRecord], rank: int, error: BaseException) -> Finding:
    report = getattr(error, "report", None)
    if isinstance(report, Report):
        if (left := _find_left_loop(records, report, error)) is not None:
            return left
        reason = "\n  ".join(filter(None, [*report.lines, report.real]))
        topic = topic_of(report.fault)
        taught_in = topic.lesson, topic.heading()
        return Finding(report.fault, "error", _report_places(report), reason, report.advice, *taught_in)
    if "Expected to have finished reduction in the prior iteration" in str(error):  # PyTorch's words
        return KINDS["unused_parameters"](which=_list_unused(records))
    return KINDS["script_fails"](raising_line(error), who=format_ranks([rank]), problem=describe_error(error))


def _report_places(report: Report) -> str:
    """Return the lines that a report names, without the functions' names."""
    return list_some(list(dict.fromkeys(re.findall(r"[\w.\-]+\.py:\d+", "\n".join(report.places)))))


def _find_left_loop(records: Sequence[RankRecord], report: Report, error: BaseException) -> Finding | None:
    """Return the finding of ranks that left their loop on their own, before their batches ran out."""
    waits = getattr(error, "waits", None)
    if report.fault != "uneven_inputs" or waits is None:
        return None
    waiting = [one.rank for one in waits.ranks if one.state == "waits"]
    gone = [one.rank for one in waits.ranks if one.state == "ended"]
    exits = dict.fromkeys(text for code, line in user_frames(error) for text in loop_exits(code, line))
    if not exits or not gone or not waiting:
        return None
    latest = [loader.epochs for rank in gone for loader in records[rank].loaders if loader.epochs]
    begun = [sum(len(loader.epochs) for loader in records[rank].loaders) for rank in (*gone, *waiting)]
    if latest and all(epochs[-1].whole for epochs in latest) and min(begun[: len(gone)]) >= max(begun):
        return None  # their batches had run out
    facts = {"who": format_ranks(gone), "others": format_ranks(waiting), "exits": series(exits)}
    found = KINDS["loop_left_early"](_report_places(report), **facts)
    reason = "\n  ".join(filter(None, [*report.lines[:-1], found.reason, report.real]))
    return replace(found, reason=reason)


def describe_error(error: BaseException) -> str:
    return short_text(error) if isinstance(error, Exception) else repr(error)


def raising_line(error: BaseException) -> str:
    """Return the last line of the user's own code on the way to ``error``, or else of an installed library."""
    frames = user_frames(error)
    own = [frame for frame in frames if not is_installed_code(frame[0].co_filename)] or frames
    return format_place(*own[-1]) if own else ""


def user_frames(error: BaseException) -> list[tuple[CodeType, int]]:
    """Return the user's frames in the traceback of ``error``, as code and line."""
    return [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_our_module(name := frame.f_globals.get("__name__")) and not is_torch_module(name)
    ]


def _list_unused(records: Sequence[RankRecord]) -> str:
    """Return the parameters of replicated models that got no gradient, with the ranks."""
    missed: dict[tuple[str, ...], list[int]] = {}
    for rank, one in enumerate(records):
        names = one.unused or one.without_gradient()
        if names:
            missed.setdefault(tuple(names), []).append(rank)
    where = PHRASES["unused_parameters.where"]
    return "; ".join(where(names=list_some(list(n)), ranks=format_ranks(r)) for n, r in missed.items())
