"""Calls that meet and do not fit together; several ranks on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch.distributed import DistBackendError

from ....base.language import say
from ..call import Call
from ..checks.nccl import nccl_error
from ..waits import Wait, WaitForGraph
from .report import Report, explained
from .words import group_of, ranks_text, table


class Mismatch(RuntimeError):
    """Ranks that meet in one collective called different things; ``waits`` shows who waits in what."""

    waits: WaitForGraph


def fault(calls: Sequence[Call]) -> Exception | None:
    """The error to be raised in the ranks that made these calls, if they do not fit together; else None."""
    what = _difference(calls)
    if not what:
        return on_one_gpu(calls)
    report = report_of(calls, what)
    error = report.on(Mismatch(str(report)))
    error.waits = WaitForGraph(
        tuple(_wait(call, calls) for call in sorted(calls, key=lambda call: call.rank))
    )
    return error


def _wait(call: Call, calls: Sequence[Call]) -> Wait:
    others = tuple(sorted(other.rank for other in calls if _conflict(call, other)))
    return Wait(call.rank, "waits", call.kind, others, group_of(call), call.seq, call.short_place)


def fit(a: Call, b: Call) -> bool:
    """Whether nothing would be raised in the ranks that made two calls, as :func:`fault` says."""
    return not _conflict(a, b) and (a.place_of_gpu != b.place_of_gpu or on_one_gpu((a, b)) is None)


def _difference(calls: Sequence[Call]) -> str:
    first = calls[0]
    return next((what for other in calls[1:] if (what := _conflict(first, other))), "")


def _conflict(a: Call, b: Call) -> str:
    """In what two calls differ, "kind", "op", "root", "number", "dtype" or "shape"; "" if they fit."""
    if a.kind != b.kind:
        return "" if {a.kind, b.kind} == {"send", "recv"} and _lengths(a) == _lengths(b) else _of_kinds(a, b)
    if a.members != b.members:
        return "members"
    if a.op != b.op:
        return "op"
    if a.root != b.root and not a.is_message:
        return "root"
    one, other = _brought(a), _brought(b)
    if len(one) != len(other):
        return "number"
    for x, y in zip(one, other, strict=True):
        if x.dtype != y.dtype:
            return "dtype"
        if x.numel() != y.numel() and a.kind not in _UNEVEN:
            return "shape"
    uneven = _UNEVEN.get(a.kind)
    return "" if uneven is None or (uneven(a, b) and uneven(b, a)) else "shape"


def _of_kinds(a: Call, b: Call) -> str:
    if {a.kind, b.kind} != {"send", "recv"}:
        return "kind"
    one, other = (a.inputs or a.outputs)[0], (b.inputs or b.outputs)[0]
    return "dtype" if one.dtype != other.dtype else "shape"


def _lengths(call: Call) -> list[tuple[int, Any]]:
    return [(tensor.numel(), tensor.dtype) for tensor in call.inputs or call.outputs]


def _brought(call: Call) -> list[Any]:
    """The tensors of which every member has alike."""
    if call.kind in ("broadcast", "scatter"):
        return call.outputs
    return call.inputs


def _gathers(to: Call, of: Call) -> bool:
    """Whether ``to`` has room for what ``of`` brings (all_gather: pieces may differ in size)."""
    return bool(to.outputs[of.at].numel() == of.inputs[0].numel())


def _scatters(of: Call, to: Call) -> bool:
    return bool(of.inputs[to.at].numel() == to.outputs[0].numel())


def _sends(of: Call, to: Call) -> bool:
    return bool(of.inputs[to.at].numel() == to.outputs[of.at].numel())


def _sends_rows(of: Call, to: Call) -> bool:
    return _rows(of.inputs[0], of.splits and of.splits[0], len(of.ranks), to.at) == _rows(
        to.outputs[0], to.splits and to.splits[1], len(to.ranks), of.at
    )


def _rows(tensor: Any, sizes: list[int] | None, members: int, at: int) -> int:
    """The number of elements of ``tensor`` that are for member ``at``."""
    rows = sizes[at] if sizes else (tensor.size(0) if tensor.dim() else 1) // members
    return int(rows * prod(tensor.shape[1:]))


# Where members may bring pieces of different sizes: whether what one sends is what the other has room for.
_UNEVEN: dict[str, Callable[[Call, Call], bool]] = {
    "all_gather": _gathers,
    "reduce_scatter": _scatters,
    "all_to_all": _sends,
    "all_to_all_single": _sends_rows,
}


def report_of(calls: Sequence[Call], what: str) -> Report:
    """The report of calls that meet and differ in ``what``."""
    first = calls[0]
    if first.is_message:
        head = say(
            en="a message and its receiver do not fit together:",
            zh="发送（send）和接收（recv）对不上：",
        )
    elif what == "members":
        head = say(
            en="ranks that make a group together do not name the same members:",
            zh="各 rank 一起创建一个组，写的成员却不一样：",
        )
    else:
        head = say(
            en=f"ranks that meet in call {first.seq} of group {group_of(first)} do not call the same:",
            zh=f"组 {group_of(first)} 的第 {first.seq} 次调用，各 rank 对不上：",
        )
    if what == "shape":
        key = "shape_of_message" if first.is_message else "shape_of_pieces" if first.kind in _UNEVEN else what
    else:
        key = what
    facts: dict[str, object] = {}
    if what == "kind" and (split := next((call for call in calls if call.makes_a_group), None)):
        away = [call.rank for call in calls if not call.makes_a_group]
        key = "split_alone"
        facts = {"names": ranks_text(away), "kind": split.kind, "members": ranks_text(split.ranks)}
    meaning, advice = explained(key, **facts)
    fault = "shapes_differ" if what in ("shape", "dtype") else "calls_differ"
    return Report(fault, (head, *table(calls), meaning), advice, tuple(call.short_place for call in calls))


def on_one_gpu(calls: Sequence[Call]) -> DistBackendError | None:
    """NCCL's error if two ranks of one node bring tensors on one GPU, with what to do; None if none do."""
    if calls[0].backend != "nccl" or calls[0].kind == "barrier" or calls[0].makes_a_group:
        return None
    seen: dict[tuple[int, int | str], Call] = {}
    for call in calls:
        other = seen.setdefault(call.place_of_gpu, call)
        if other.rank != call.rank:  # a message to oneself
            return _duplicate(calls, other, call)
    return None


def _duplicate(calls: Sequence[Call], one: Call, two: Call) -> DistBackendError:
    alike = [call for call in calls if call.place_of_gpu == one.place_of_gpu]
    ranks = ranks_text([call.rank for call in alike])
    # The machine's GPU k has the bus number k (NCCL: src/init.cc, initTransportsRank).
    bus = (one.bus or 0) << 12
    last = f"Duplicate GPU detected : rank {two.at} and rank {one.at} both on CUDA device {bus:x}"
    meaning, advice = explained(
        "one_gpu", ranks=ranks, device=one.device, kind=one.kind, place=one.short_place
    )
    error = str(nccl_error("invalid usage", last))
    report = Report("all_on_one_gpu", (*error.splitlines(), meaning), advice, (one.short_place,))
    return report.on(DistBackendError(str(report)))
