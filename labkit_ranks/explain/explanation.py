"""Explain dumps: where each rank waits, which call was skipped or differs, since when, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from labkit.base.language import say
from labkit.base.texts import texts_beside
from labkit.base.units import duration

from ..calls import faults
from ..calls.faults import RankState, Report, explain_fault, format_ranks
from .dumps import Dump, DumpedCall

_TEXTS = texts_beside(__file__)


@dataclass(frozen=True)
class Explained:
    """An explanation in the language in use; ``str(explained)`` is the whole text.

    ranks      the ranks that left a dump; ``absent`` are members of their groups that left none.
    fault      the name of the fault, as in a check-up; "" if nothing is wrong.
    culprits   the ranks that did not come, or whose call differs from most.
    call       the number of the call in ``group``; None if nothing is wrong.
    lines      where each rank waits, and the meaning.
    """

    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    fault: str = ""
    culprits: tuple[int, ...] = ()
    group: str = ""
    call: int | None = None
    lines: tuple[str, ...] = ()
    advice: str = ""

    def __str__(self) -> str:
        advice = say(en=f"Do: {self.advice}", zh=f"怎么办：{self.advice}")
        return "\n".join([*self.lines, *([advice] * bool(self.advice))])


# The time of the first call of a problem, and its explanation.
_Problem = tuple[int, Explained]
_Key = tuple[str, tuple[int, ...]]  # a group's name and its members
_Calls = Mapping[int, Mapping[int, DumpedCall]]  # by rank and number


def explain(dumps: Mapping[int, Dump]) -> Explained:
    """Explain why the ranks of ``dumps`` hang. Any rank's dump may be missing."""
    broken = [dump.broken for dump in dumps.values() if dump.broken]
    dumps = {rank: dump for rank, dump in dumps.items() if not dump.broken}
    ranks = tuple(sorted(dumps))
    members = {rank for dump in dumps.values() for group in dump.groups.values() for rank in group}
    absent = tuple(sorted(members - set(ranks)))
    head = _TEXTS["head"](dumps=len(ranks), calls=sum(len(dump.calls) for dump in dumps.values()))
    if absent:
        head += _TEXTS["absent"](ranks=format_ranks(absent))
    head = "\n".join([head, *(_TEXTS["broken"](why=why) for why in broken)])
    looked = [_group_problem(key, calls, ranks) for key, calls in _group_calls(dumps).items()]
    problems = list(filter(None, looked)) or list(filter(None, [_find_unpaired_messages(dumps)]))
    if not problems:
        return Explained(ranks, absent, lines=(head, str(_TEXTS["nothing"])))
    _, first = min(problems, key=lambda pair: pair[0])
    return replace(first, ranks=ranks, absent=absent, lines=(head, *first.lines))


def _group_calls(dumps: Mapping[int, Dump]) -> dict[_Key, dict[int, dict[int, DumpedCall]]]:
    """Return the collectives of each group, by rank and number."""
    found: dict[_Key, dict[int, dict[int, DumpedCall]]] = {}
    for rank, dump in dumps.items():
        for name, members in dump.groups.items():
            found.setdefault((name, members), {})[rank] = {}
        for call in dump.calls:
            if not call.is_message:
                found.setdefault((call.group, call.ranks), {}).setdefault(rank, {})[call.seq] = call
    for (_, members), calls in found.items():  # a rank without calls in a group may not list the group
        for rank in set(members) & set(dumps):
            calls.setdefault(rank, {})
    return found


def _group_problem(key: _Key, calls: _Calls, ranks: Sequence[int]) -> _Problem | None:
    """Return a group's first problem; None without problems."""
    there = {rank: own for rank, own in calls.items() if rank in key[1]}
    # Recorders keep the last calls only: begin with the first call that all ranks still have.
    first = max((min(own) for own in there.values() if own), default=1)
    held = None
    for number in sorted({number for own in there.values() for number in own if number >= first}):
        here = {rank: own[number] for rank, own in there.items() if number in own}
        first_of_all, *others = here.values()
        if what := next(filter(None, (_conflict(first_of_all, one) for one in others)), ""):
            return _describe_conflict(there, here, what)
        if any(not call.met for call in here.values()):
            if any(number > max(own, default=0) for own in there.values()):
                return _describe_missing(there, number, here)
            held = held or here
    return None if held is None else _describe_slow_call(held, sorted(set(key[1]) - set(ranks)))


# Kinds whose members may send or get different sizes: sizes in a dump prove nothing.
_UNEVEN = {"all_to_all", "scatter", "gather", "all_gather_v", "reduce_scatter_v", "broadcast"}


def _conflict(a: DumpedCall, b: DumpedCall) -> str:
    if a.kind != b.kind:
        return "kind"
    if set(a.dtypes) != set(b.dtypes) and a.kind not in ("scatter", "gather"):
        return "dtype"
    sent, got = a.shapes != b.shapes, a._shapes(a.outputs) != b._shapes(b.outputs)
    uneven = a.kind in _UNEVEN - {"broadcast"}
    return "shape" if not uneven and (sent or got) else ""


def _describe_conflict(there: _Calls, here: Mapping[int, DumpedCall], what: str) -> _Problem:
    """Explain calls that met with different ``what``."""
    calls = [here[rank] for rank in sorted(here)]
    report = faults.mismatch_report(calls, what)
    usual = Counter(map(_call_form, calls)).most_common(1)[0][0]
    culprits = tuple(call.rank for call in calls if _call_form(call) != usual)
    return _make_problem(report, calls[0], culprits, (*report.lines, *_describe_drift(there)))


def _describe_missing(there: _Calls, number: int, here: Mapping[int, DumpedCall]) -> _Problem:
    """Explain a call in which ranks wait for others that did not come."""
    standings, quiet = [], {}
    for rank, own in sorted(there.items()):
        last = own[max(own)] if own else None
        came = Counter((call.short_place, call.kind) for call in own.values() if call.seq <= number)
        seqs = {call.group: call.seq for call in own.values()}
        standings.append(RankState(rank, here.get(rank), came=came, seqs=seqs, last=last, counted=False))
        if rank not in here:  # its line in the text
            quiet[rank] = str(_TEXTS["no-call"]) if last is None else _TEXTS["quiet"](**_call_facts(last))
    call = here[min(here)]
    key, facts = faults.cause_of_absence(call, standings)
    if key == "uneven":
        facts = {**facts, "ended": ""}
    elif key == "ended_before":
        key = "quiet_before"
    meaning, advice = explain_fault(key, **facts)
    fault = faults.FAULT_OF.get(key, "deadlock")
    lines = [*faults.state_lines(standings, quiet), *_describe_drift(there), meaning]
    # The first rank has waited until the last call of any rank.
    seen = max(call.created for own in there.values() for call in own.values())
    if (seconds := (seen - min(call.created for call in here.values())) / 1e9) >= 1:
        lines.append(_TEXTS["since"](time=duration(seconds)))
    return _make_problem(Report(fault, (), advice, ()), call, tuple(quiet), lines)


def _describe_slow_call(here: Mapping[int, DumpedCall], gone: Sequence[int]) -> _Problem:
    """Explain an incomplete call that all ranks with a dump have made."""
    key, facts = ("no_dump", {"names": format_ranks(gone)}) if gone else ("not_over", {})
    meaning, advice = explain_fault(key, **facts)
    standings = [RankState(rank, call, seqs={call.group: call.seq}) for rank, call in sorted(here.items())]
    known = dict.fromkeys(gone, str(_TEXTS["no-dump"]))
    lines = (*faults.state_lines([*standings, *map(RankState, gone)], known), meaning)
    return _make_problem(Report("deadlock", (), advice, ()), here[min(here)], tuple(gone), lines)


def _find_unpaired_messages(dumps: Mapping[int, Dump]) -> _Problem | None:
    """Find sends and receives without their other half."""
    halves: dict[tuple[str, int, int, int], list[DumpedCall]] = {}
    for dump in dumps.values():
        for call in dump.calls:
            if call.is_message and call.root is not None and call.root < len(call.ranks):
                a, b = call.pair
                halves.setdefault((call.group, a, b, call.seq), []).append(call)
    alone = [found[0] for found in halves.values() if len(found) == 1 and not found[0].met]
    if not alone:
        return None
    first = min(alone, key=lambda call: call.created)
    culprits = tuple(sorted({call.ranks[call.root or 0] for call in alone}))
    head, advice = explain_fault("messages_unpaired")
    return _make_problem(
        Report("calls_never_met", (), advice, ()), first, culprits, (*faults.call_table(alone), head)
    )


def _make_problem(
    report: Report, call: DumpedCall, culprits: tuple[int, ...], lines: Sequence[str]
) -> _Problem:
    group = faults.group_label(call)
    found = Explained((), (), report.fault, culprits, group, call.seq, tuple(lines), report.advice)
    return call.created, found


def _call_facts(call: DumpedCall) -> dict[str, object]:
    return {"kind": call.kind, "number": call.seq, "place": call.short_place}


def _call_form(call: DumpedCall) -> tuple[object, ...]:
    return call.kind, call.shapes, call.dtypes, call.short_place


def _describe_drift(there: _Calls) -> Iterator[str]:
    """Yield a line for each rank that is a call ahead or behind, with the skipped or repeated call."""
    usual = {
        number: Counter(_call_form(own[number]) for own in there.values() if number in own).most_common(1)[0]
        for number in sorted({number for own in there.values() for number in own})
    }
    forms = {number: form for number, (form, _) in usual.items()}
    # Predict the next call of the waiting ranks: the one that followed the same call before.
    next_of = {form: forms[number + 1] for number, form in forms.items() if number + 1 in forms}
    for rank, own in sorted(there.items()):
        strays = (n for n in sorted(own) if _call_form(own[n]) != forms[n] and usual[n][1] > len(there) / 2)
        odd = next(strays, None)
        if odd is None:
            continue
        later = [number for number in own if number >= odd]
        behind = [(own[n], forms.get(n + 1) or next_of.get(forms[n])) for n in later]
        ahead = [(own[n], forms.get(n - 1)) for n in later]
        skipped, more = (all(_call_form(call) == form for call, form in pairs) for pairs in (behind, ahead))
        kind, *_, place = forms[odd]
        texts = [_TEXTS["skipped"](number=odd, kind=kind, place=place)]
        texts.append(_TEXTS["once-more"](**_call_facts(own[odd])))
        either = [text for text, is_so in zip(texts, (skipped, more), strict=True) if is_so]
        if either:
            what = say(en=", or ", zh="，或者").join(either)
            yield _TEXTS["drift"](rank=rank, what=what)
