"""Find parameters that must stay equal on several ranks, and whether they do.

DDP, a DTensor or the script's own reduction declares some of them. Others show it by their values: they start equal on
ranks that train one model, are not constant (separate biases start with zeros, too), and no mark makes them separate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from labkit_diagnose.findings import list_some
from labkit_diagnose.result import Finding

from ..calls.faults import format_ranks
from .kinds import KINDS
from .records import RankRecord, WatchedTensor, readable_name

# Names and attributes by which DeepSpeed, fairscale, Megatron and Tutel mark a rank's own parameters, and names of the
# shared parameters beside them.
_OWN = re.compile(r"(^|[._])experts?(_|\.|\d|$)")
_MARKS = {"allreduce": False, "skip_allreduce": True, "expert": True, "tensor_model_parallel": True}
_SHARED = re.compile(r"shared|router|(^|\.)(gate|wg)\.")
_Group = tuple[int, ...]


class ReplicatedTensor(NamedTuple):
    """A tensor that a group of ranks must keep equal.

    by      the evidence: "hand", "mesh", "ddp", "norm" (of tensor parallelism), or "" for equal values alone.
    looks   step -> whether the ranks' values were equal after the step; step 0 is before the first.
    """

    group: _Group
    name: str
    each: list[WatchedTensor]
    by: str
    looks: dict[int, bool]

    def is_compared(self) -> bool:
        """Whether the ranks' values can be compared after a step: not if ranks mix their weights, as gossip does."""
        later = [alike for step, alike in self.looks.items() if step]
        return any(later) or bool(later and not any(one.moved for one in self.each))

    def drift_step(self) -> int:
        """Return the step after which the values stay different; 0 if they are equal or get averaged later."""
        steps = [step for step, alike in self.looks.items() if step and not alike]
        healed = any(alike for step, alike in self.looks.items() if steps and step > steps[0])
        healed |= any(one.moved for one in self.each) or len({one.latest for one in self.each}) == 1
        return steps[0] if steps and not healed else 0


def replicas(records: Sequence[RankRecord]) -> Iterator[ReplicatedTensor]:
    """Yield the tensors that groups of ranks must keep equal."""
    claims = [{name: _claim(one, watched) for name, watched in one.watched.items()} for one in records]
    sure = {ranks for names in claims for ranks, _ in names.values()}
    peers, exchanging = (_groups(getattr(one, key) for one in records) for key in ("peers", "exchanges"))
    working, norms = _groups_of_one_model(records, exchanging), [one.ids_of_whole_norms() for one in records]
    for group in sorted(one for one in {*sure, *peers, *working} if len(one) > 1):
        found, alike = list[ReplicatedTensor](), True
        for name in claims[group[0]]:
            if not all(name in claims[rank] for rank in group):
                continue
            each = [records[rank].watched[name] for rank in group]
            steps = sorted(set[int].intersection(*(set(one.values) for one in each)))
            looks = {step: len({one.values[step] for one in each}) == 1 for step in steps}
            if all(claims[rank][name][0] == group for rank in group):
                yield ReplicatedTensor(group, name, each, claims[group[0]][name][1], looks)
            elif _are_whole(each) and steps:
                places = zip(group, each, strict=True)
                norm = group in peers and all(id(one.tensor) in norms[at] for at, one in places)
                if norm or (group in working and not any(one.constant for one in each)):
                    alike &= looks[steps[0]]
                    if looks[steps[0]]:
                        found.append(ReplicatedTensor(group, name, each, "norm" if norm else "", looks))
        chosen = group in sure and group in exchanging  # the script chooses what to reduce
        for one in found if alike or not working.get(group) else ():
            if one.by or _SHARED.search(one.name) or not (chosen or _is_own(one)):
                yield one


def _claim(record: RankRecord, watched: WatchedTensor) -> tuple[_Group, str]:
    """Return the ranks declared to hold the same parameter, and the evidence."""
    reduced = record.by_hand.get(id(watched.tensor))
    if reduced is not None:
        return tuple(sorted(reduced.ranks)), "hand"
    return watched.among, "mesh" if hasattr(watched.tensor, "_local_tensor") else "ddp"


def _groups(groups: Any) -> set[_Group]:
    return {tuple(sorted(ranks)) for one in groups for ranks in one}


def _groups_of_one_model(records: Sequence[RankRecord], exchanging: set[_Group]) -> dict[_Group, bool]:
    """Return the groups whose ranks train one model; True for weak evidence, which needs all tensors to start equal.

    Evidence is weak if only a wrapper, a sampler or a metric suggests one model: the ranks may hold pieces of it.
    """
    everyone = tuple(range(len(records)))
    cut = _groups(one.cut for one in records)  # pieces may have been seeded alike, as in PartialFC
    found = dict.fromkeys([*exchanging, *_groups([one.replicas] for one in records) - cut], False)
    alone = all((one.models or one.sharded) and len(one.replicas) < 2 for one in records)
    sampled = all(one.loaders and all(loader.share for loader in one.loaders) for one in records)
    metered = all(everyone in one.calls for one in records)
    alike = len({str(one.settings[:1]) for one in records}) == 1  # different settings are separate runs
    apart = any(one.peers or one.replicas or () in one.calls for one in records)  # pieces, or messages
    if alone or ((sampled or metered) and alike and not apart):
        found.setdefault(everyone, True)
    return found


def _are_whole(each: Sequence[WatchedTensor]) -> bool:
    """Whether each rank holds the whole tensor, judging by the shapes."""
    return len({one.tensor.shape for one in each} | {one.local.shape for one in each}) == 1


def _is_own(replica: ReplicatedTensor) -> bool:
    tensors = [one.tensor for one in replica.each]
    marked = any(getattr(one, key, None) == mark for one in tensors for key, mark in _MARKS.items())
    return marked or _OWN.search(re.sub(r"^\w+#\d+\.", "", replica.name)) is not None


def find_drift(records: Sequence[RankRecord]) -> Iterator[Finding]:
    """Yield the findings of tensors that start or become different, those with the best evidence first."""
    found, first = list(replicas(records)), records[0]
    for one in found:
        if one.by in ("hand", "mesh") and not next(iter(one.looks.values()), True):
            hand = first.by_hand.get(id(one.each[0].tensor))
            place = hand.place if hand else ""
            yield KINDS["weights_differ_from_the_start"](place, who=readable_name(one.name))
    for by in ("hand", "mesh", "ddp", "", "norm"):
        parted = [one for one in found if one.by == by and one.drift_step()]
        for one in parted:
            first, step = records[one.group[0]], one.drift_step()
            names = list_some([readable_name(other.name) for other in parted if other.group == one.group])
            line, facts = first.steps[step - 1].line, {"step": step, "who": names}
            hand = first.by_hand.get(id(one.each[0].tensor))
            if by == "norm":
                place = first.first_call_line(one.name) or line
                yield KINDS["norm_gradients_not_reduced"](place, **facts)
            elif hand is not None and hand.late:
                yield KINDS["weights_drift.late"](hand.place, line=line, **facts)
            elif by:
                yield KINDS["weights_drift.replicas"](line, **facts)
            else:
                yield KINDS["weights_drift.unreduced"](line, ranks=format_ranks(one.group), **facts)
