"""Parameters that have to stay alike in several ranks, and whether they do.

DDP, a DTensor or a reduction by the script says so of some. Of others the values say so: they begin alike in ranks that
work together, are not constant (each rank's own biases begin with zeros, too), and nothing marks them as a rank's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from ...diagnosis.findings import listed
from ...diagnosis.result import Finding
from ..calls.faults import ranks_text
from ..group.slot import Plain
from .kinds import KINDS
from .records import RankRecord, Watched

# Names and attributes by which libraries tell what each rank has for itself.
_OWN = re.compile(r"(^|[._])experts?(_|\.|\d|$)|_parallel$|^(allreduce|skip_allreduce|expert\w*|dp_comm)$")
_SHARED = re.compile(r"shared|router|(^|\.)(gate|wg)\.")
# The relative difference of values that replicas compute each for itself, by rounding.
_ROUNDING = 1e-6


class Replica(NamedTuple):
    """A parameter or buffer that ``group`` has to have alike: ``each`` of the ranks', and who says so.

    by   "ddp", "hand", "mesh", "norm" (which all ranks of tensor parallelism hold), or "" if only its values do.
    """

    group: tuple[int, ...]
    name: str
    each: list[Watched]
    by: str

    def alike(self, step: int) -> bool:
        """Whether all have the same value after ``step``."""
        return len({one.values.get(step) for one in self.each}) == 1

    def steps(self) -> list[int]:
        return sorted(set[int].intersection(*(set(one.values) for one in self.each)))

    def is_compared(self) -> bool:
        """Whether it has to be alike after some step: not if ranks mix their weights, as gossip does."""
        _, *steps = self.steps() or [0]
        return any(map(self.alike, steps)) or bool(steps and not any(one.moved for one in self.each))

    def parted(self) -> int:
        """Return the step after which the values differ for good; 0 if they don't, or are averaged now and then."""
        _, *steps = self.steps() or [0]
        first = next((step for step in steps if not self.alike(step)), 0)
        later = any(self.alike(step) for step in steps if step > first)
        if later or any(one.moved for one in self.each) or len({one.latest for one in self.each}) == 1:
            return 0
        return 0 if not self.by and self._is_rounding() else first

    def _is_rounding(self) -> bool:
        with Plain():
            first, *others = (
                getattr(w.tensor, "_local_tensor", w.tensor).detach().double() for w in self.each
            )
            return all(float((first - other).norm()) <= _ROUNDING * float(first.norm()) for other in others)


def replicas(records: Sequence[RankRecord]) -> Iterator[Replica]:
    """Yield what groups of ranks have to have alike."""
    claims = [{name: _claim(one, watched) for name, watched in one.watched.items()} for one in records]
    sure = {ranks for names in claims for ranks, _ in names.values() if len(ranks) > 1}
    working, norms = _working(records), [one.whole_norms() for one in records]
    peers = {tuple(sorted(ranks)) for one in records for ranks in one.peers if len(ranks) > 1}
    for group in sorted(sure | working.keys() | peers):
        shared = [name for name in claims[group[0]] if all(name in claims[rank] for rank in group)]
        found = list[Replica]()
        for name in shared:
            each = [records[rank].watched[name] for rank in group]
            known = {claims[rank][name] for rank in group}
            if {ranks for ranks, _ in known} == {group}:
                yield Replica(group, name, each, next(by for _, by in known))
            elif _is_whole(each) and all(
                id(watched.tensor) in norms[rank] for rank, watched in zip(group, each)
            ):
                found += [Replica(group, name, each, "norm")] if group in peers else []
            elif group in working and _is_whole(each) and not any(one.constant for one in each):
                found.append(Replica(group, name, each, ""))
        began = [replica for replica in found if replica.alike((replica.steps() or [0])[0])]
        if len(began) == len(found) or not working.get(group, False):
            chosen = group in sure and group in _exchanging(records)  # the script reduces what it means to
            for replica in began:
                named = _SHARED.search(replica.name)
                if replica.by or named or not (chosen or _is_own(replica)):
                    yield replica


def _claim(record: RankRecord, watched: Watched) -> tuple[tuple[int, ...], str]:
    """Return the ranks in which a parameter is known to be alike, and by what."""
    reduced = record.by_hand.get(id(watched.tensor))
    if reduced is not None:
        return tuple(sorted(reduced.ranks)), "hand"
    return watched.among, "mesh" if hasattr(watched.tensor, "_local_tensor") else "ddp"


def _exchanging(records: Sequence[RankRecord]) -> set[tuple[int, ...]]:
    """Return the groups that exchange rows in forward and backward, as those of experts do."""
    return {tuple(sorted(ranks)) for one in records for ranks in one.exchanges if len(ranks) > 1}


def _working(records: Sequence[RankRecord]) -> dict[tuple[int, ...], bool]:
    """Return the groups whose ranks train one model together, and whether all they hold has to begin alike for that.

    Where only a wrapper, a sampler or a metric says that they do, a model cut among them is none of their replicas.
    """
    everyone = tuple(range(len(records)))
    found = dict.fromkeys(_exchanging(records), False)
    found |= {tuple(sorted(one.replicas)): False for one in records if len(one.replicas) > 1}
    alone = all((one.models or one.sharded) and len(one.replicas) < 2 for one in records)
    sampled = all(one.loaders and all(loader.share for loader in one.loaders) for one in records)
    metered = all(everyone in one.calls and () not in one.calls for one in records)
    alike = len({str(one.settings[:1]) for one in records}) == 1  # others are runs of their own
    if alone or ((sampled or metered) and alike and not any(one.peers or one.replicas for one in records)):
        found.setdefault(everyone, True)
    return found


def _is_whole(each: Sequence[Watched]) -> bool:
    """Whether each rank has all of it, as far as tensors know."""
    tensors = [one.tensor for one in each]
    local = [getattr(tensor, "_local_tensor", tensor).shape for tensor in tensors]
    return all(tensor.shape == own == local[0] for tensor, own in zip(tensors, local, strict=True))


def _is_own(replica: Replica) -> bool:
    marks = (key for one in replica.each for key, value in vars(one.tensor).items() if value is not None)
    return any(_OWN.search(text) for text in (replica.name.partition(".")[2] or replica.name, *marks))


def drifting(records: Sequence[RankRecord]) -> Iterator[Finding]:
    """Yield a finding of what begins or becomes different in ranks that have to have it alike, the surest first."""
    found = list(replicas(records))
    for one in found:
        if one.by in ("hand", "mesh") and one.steps() and not one.alike(one.steps()[0]):
            yield KINDS["weights_differ_from_the_start"](one.name, who=one.name)
    for by in ("hand", "mesh", "ddp", "", "norm"):
        parted = [(one, step) for one in found if one.by == by and (step := one.parted())]
        for one, step in parted:
            names = [other.name for other, _ in parted if other.group == one.group]
            yield _finding(records, one, step, names)


def _finding(records: Sequence[RankRecord], replica: Replica, step: int, names: list[str]) -> Finding:
    first, watched = records[replica.group[0]], replica.each[0]
    line = next((one.line for one in first.steps[step - 1 : step]), "")
    facts = {"step": step, "who": re.sub(r"#\d+", "", listed(names))}
    ranks = {"ranks": ranks_text(replica.group)}
    hand = first.by_hand.get(id(watched.tensor))
    if replica.by == "norm":
        return KINDS["norm_gradients_not_reduced"](first.called(replica.name) or replica.name, **facts)
    if hand is not None and hand.late:
        return KINDS["weights_drift.late"](hand.place, **facts, line=line)
    if not replica.by:
        alone = len(watched.among) == 1
        return KINDS[f"weights_drift.{'alone' if alone else 'unreduced'}"](line, **facts, **ranks)
    added = replica.by == "ddp" and isinstance(watched.tensor, nn.Parameter)
    if added and id(watched.tensor) not in first.wrapped:
        return KINDS["weights_drift.added"](line, **facts)
    return KINDS["weights_drift.replicas"](line, **facts)
