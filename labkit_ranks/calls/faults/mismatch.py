"""Reports of mismatched calls, and of several ranks on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch.distributed import DistBackendError

from labkit.base.texts import texts_beside

from ..call import CollectiveCall
from ..checks.nccl import nccl_error
from ..wait_graph import Wait, WaitForGraph
from .report import Report, call_table, describe_call, describe_group, explain_fault, format_ranks

_TEXTS = texts_beside(__file__)
# Calls whose members may bring pieces of different sizes.
_UNEVEN = frozenset(("all_gather", "reduce_scatter", "all_to_all", "all_to_all_single"))


class Mismatch(RuntimeError):
    """Ranks made different calls where all must make the same. ``waits`` shows who waits in which call."""

    waits: WaitForGraph


def mismatch_error(calls: Sequence[CollectiveCall]) -> Exception | None:
    """Return the error to raise in the ranks of these calls if they differ; else None."""
    firsts = calls if calls[0].own_group else calls[:1]
    what = next((what for one in firsts for other in calls if (what := _difference(one, other))), "")
    if not what:
        return duplicate_gpu_error(calls)
    report = mismatch_report(calls, what)
    error = report.attach_to(Mismatch(str(report)))
    waits = []
    for call in sorted(calls, key=lambda call: call.rank):
        others = tuple(sorted(other.rank for other in calls if _difference(call, other)))
        place = describe_group(call), call.seq, call.short_place
        waits.append(Wait(call.rank, "waits", call.kind, others, *place))
    error.waits = WaitForGraph(tuple(waits))
    return error


def calls_fit(a: CollectiveCall, b: CollectiveCall) -> bool:
    """Whether two calls match, so that :func:`mismatch_error` finds nothing."""
    return not _difference(a, b) and (a.place_of_gpu != b.place_of_gpu or duplicate_gpu_error((a, b)) is None)


def _difference(a: CollectiveCall, b: CollectiveCall) -> str:
    """Return how two calls differ: "kind", "members", "op", "root", "number", "dtype" or "shape"; "" if they match."""
    if a.kind != b.kind:
        if {a.kind, b.kind} != {"send", "recv"}:
            return "kind"
        one, other = (call.inputs or call.outputs for call in (a, b))
        if [(t.numel(), t.dtype) for t in one] == [(t.numel(), t.dtype) for t in other]:
            return ""
        return "dtype" if one[0].dtype != other[0].dtype else "shape"
    # Groups of one rank connect nobody: ranks may make different ones. ncclCommSplit makes a group of each color, for
    # which PyTorch takes a hash of the members (distributed_c10d.py, _process_group_color).
    split = a.own_group and b.own_group and not {*a.members} & {*b.members}
    if a.members != b.members and len(a.members + b.members) > 2 and not split:
        return "members"
    if a.op != b.op:
        return "op"
    if a.root != b.root and not a.is_message:
        return "root"
    # Compare tensors that every member must bring alike.
    one, other = (call.outputs if call.kind in ("broadcast", "scatter") else call.inputs for call in (a, b))
    if len(one) != len(other):
        return "number"
    for x, y in zip(one, other, strict=True):
        if x.dtype != y.dtype:
            return "dtype"
        if x.numel() != y.numel() and a.kind not in _UNEVEN:
            return "shape"
    return "" if a.kind not in _UNEVEN or (_has_room(a, b) and _has_room(b, a)) else "shape"


def _has_room(of: CollectiveCall, to: CollectiveCall) -> bool:
    """Whether the output of ``to`` has room for the piece from ``of``."""
    if of.kind == "all_to_all_single":
        sent = _count_elements(of.inputs[0], of.splits and of.splits[0], len(of.ranks), to.at)
        return sent == _count_elements(to.outputs[0], to.splits and to.splits[1], len(to.ranks), of.at)
    piece = of.inputs[0 if of.kind == "all_gather" else to.at]
    room = to.outputs[0 if of.kind == "reduce_scatter" else of.at]
    return piece.numel() == room.numel()


def _count_elements(tensor: Any, sizes: list[int] | None, members: int, at: int) -> int:
    """Count the elements of ``tensor`` that are for member ``at``."""
    rows = sizes[at] if sizes else (tensor.size(0) if tensor.dim() else 1) // members
    return int(rows * prod(tensor.shape[1:]))


def mismatch_report(calls: Sequence[CollectiveCall], what: str) -> Report:
    """Return the report of calls with a difference in ``what``."""
    first = calls[0]
    if first.is_message or what == "members":
        head = str(_TEXTS["message" if first.is_message else what])
    else:
        head = _TEXTS["collective"](number=first.seq, group=describe_group(first)).replace("） ", "）")
    key = what
    if what == "shape":
        apart = first.root is None and len({(call.code, call.line) for call in calls}) > 1
        key = "shape_of_pieces" if first.kind in _UNEVEN else what
        key = "shape_of_message" if first.is_message else "other_lines" if apart else key
    facts: dict[str, object] = {}
    if what == "kind" and (split := next((call for call in calls if call.makes_a_group), None)):
        away = [call.rank for call in calls if not call.makes_a_group]
        key = "split_alone"
        facts = {"names": format_ranks(away), "kind": split.kind, "members": format_ranks(split.ranks)}
    fault = "shapes_differ" if what in ("shape", "dtype") and key != "other_lines" else "calls_differ"
    cut = next((call.kind for call in calls if call.backward and call.kind.startswith("all_to_all")), None)
    if what == "kind" and cut:
        here, away = ([call.rank for call in calls if (call.kind == cut) == same] for same in (True, False))
        key, fault = "alone_in_backward", "backward_in_some_ranks"
        facts = {"names": format_ranks(away), "kind": cut, "here": format_ranks(here)}
    meaning, advice = explain_fault(key, **facts)
    lines = head, *call_table(calls), meaning
    return Report(fault, lines, advice, tuple(call.short_place for call in calls))


def duplicate_gpu_error(calls: Sequence[CollectiveCall]) -> DistBackendError | None:
    """Return NCCL's error, with advice, if two ranks of a node bring tensors on the same GPU; else None."""
    if calls[0].backend != "nccl" or calls[0].kind == "barrier" or calls[0].makes_a_group:
        return None
    seen: dict[tuple[int, int | str], CollectiveCall] = {}
    for call in calls:
        one = seen.setdefault(call.place_of_gpu, call)
        if one.rank == call.rank:  # a message to oneself
            continue
        # The machine's GPU k has the bus number k (NCCL: src/init.cc, initTransportsRank).
        bus = (one.bus or 0) << 12
        last = f"Duplicate GPU detected : rank {call.at} and rank {one.at} both on CUDA device {bus:x}"
        ranks = format_ranks([other.rank for other in calls if other.place_of_gpu == one.place_of_gpu])
        facts = {"device": one.device, "kind": one.kind, "place": one.short_place}
        meaning, advice = explain_fault("one_gpu", ranks=ranks, **facts)
        lines = *str(nccl_error("invalid usage", last)).splitlines(), meaning
        report = Report("all_on_one_gpu", lines, advice, (one.short_place,))
        return report.attach_to(DistBackendError(str(report)))
    return None


def early_use_error(calls: Sequence[CollectiveCall]) -> Exception | None:
    """Return the error if a rank has used the result of a call before the others came to it; else None.

    The rank has computed with other values than a GPU, which computes in the order of its stream.
    """
    early = next((call for call in calls if "used" in call.memo), None)
    if early is None:
        return None
    facts = {"what": describe_call(early), "place": early.short_place}
    meaning, advice = explain_fault("used_before", rank=early.rank, **facts)
    report = Report("deadlock", (meaning,), advice, (early.short_place,))
    return report.attach_to(RuntimeError(str(report)))
