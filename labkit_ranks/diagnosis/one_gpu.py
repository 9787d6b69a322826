"""Compare ranks with one GPU on their joined batches, and name the first tensor that differs.

Each rank keeps a tensor's size, sum and sum of squares. Those of the pieces add up to those of the whole, however the
ranks cut it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.base.tree import children, leaves, map_tensors, rebuild
from labkit_diagnose.result import Finding

from ..calls.faults import format_ranks
from ..group.slot import PlainTensors
from .failures import describe_error, raising_line
from .kinds import KINDS, PHRASES
from .records import Fingerprint, RankRecord, fingerprint, readable_name


def join_batches(batches: Sequence[Any]) -> Any:
    """Join the distinct batches among ``batches``."""
    different: dict[Any, Any] = {}
    for batch in batches:
        different.setdefault(batch_key(batch), batch)
    return _join(list(different.values()))


def batch_key(batch: Any) -> Any:
    """Return the fingerprints of a batch: equal batches have equal keys."""
    return tuple(fingerprint(leaf, "") for _, leaf in leaves(batch) if isinstance(leaf, Tensor))


def _join(batches: Sequence[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches)) if first.dim() else first
    inside = [children(batch) for batch in batches]
    if inside[0] is None:
        return first
    each = zip(*(filter(None, inside)), strict=True)
    return rebuild(first, [_join([item for _, item in items]) for items in each])


def copy_batch(batch: Any) -> Any:
    """Return a copy of ``batch`` that belongs to no simulated machine."""
    with PlainTensors():
        return map_tensors(batch, lambda _, tensor: tensor.detach().clone())


def compare_with_one_gpu(
    records: Sequence[RankRecord], one: RankRecord
) -> tuple[list[Finding], list[str], list[str]]:
    """Compare the ranks with ``one``, which had their batches: findings, comparisons made, reasons against others."""
    lost = _find_lost_pieces(records, one)
    if lost is not None:
        return [lost], [], []
    if any(record.drew for record in records):
        return [], [], [PHRASES["not_compared.random"]()]
    if any(record.norms for record in records):
        return [], [], [PHRASES["not_compared.norms"]()]
    if not any(loader.given for loader in one.loaders) and not _have_same_data(records):
        return [], [], [PHRASES["not_compared.data"]()]
    # A value computed in float16 is rounded to float16, whatever its own dtype.
    eps = max(seen.eps for record in (one, *records) for seen in record.seen.values())
    largest = max((seen.squares for key, seen in one.seen.items() if key[1] == "gradient"), default=0.0)
    count = 0
    for key, seen in one.seen.items():
        step, what, name, _ = key
        many = [record.seen[key] for record in records if key in record.seen]
        if len(many) < len(records):
            continue
        given = what in ("weight", "input")  # copied, not computed: the same to the last bit
        rounding = torch.finfo(torch.float32).eps if given else eps
        ways = set(
            matching_ways(seen, many, rounding, (10 * eps) ** 2 * largest if what == "gradient" else 0.0)
        )
        if given and not ways & {"alike", "parts"}:
            return [], [], [PHRASES["not_compared.data" if what == "input" else "not_compared.weights"]()]
        if not ways or (what == "gradient" and not ways & {"alike", "parts"} and not seen.partial):
            facts = {"step": step, "what": PHRASES[f"tensor.{what}"](name=readable_name(name))}
            scaled = _find_scaled_gradient(seen, many, records, eps, facts) if what == "gradient" else None
            if scaled is not None:
                return [scaled], [], []
            if "sum" in ways:
                return [KINDS["gradients_not_reduced"](seen.place, **facts)], [], []
            off = 100 * max(_relative_gap(seen, other) for other in many)
            return [KINDS["differs_from_one_gpu"](seen.place, ranks=len(records), off=off, **facts)], [], []
        count += not given
    return [], [PHRASES["compared.one_gpu"](count=count, steps=len(one.steps))] if count else [], []


def _find_scaled_gradient(
    one: Fingerprint, many: Sequence[Fingerprint], records: Sequence[RankRecord], eps: float, facts: dict[str, Any]
) -> Finding | None:  # fmt: skip
    """Return the finding of a gradient that is too large or too small by the number of ranks."""
    first = records[0]
    for ranks in {len(first.replicas), len(records)} - {1} if one.squares and first.replicas else ():
        for key, by in (("divided", 1 / ranks), ("summed", ranks)):
            scaled = Fingerprint(*one[:6], one.total * by, one.squares * by**2, one.weighed * by)
            if {"alike", "parts"} & set(matching_ways(scaled, many, eps)):
                places = [reduced.place for reduced in first.by_hand.values()] * (key == "summed")
                where = [*places, first.steps[facts["step"] - 1].place][0]
                return KINDS[f"gradient_scale.{key}"](where, ranks=ranks, **facts)
    return None


def _find_lost_pieces(records: Sequence[RankRecord], one: RankRecord) -> Finding | None:
    """Return the finding of a parameter whose pieces on the ranks are less than one GPU's whole."""
    for key, seen in one.seen.items():
        many = [record.seen[key].local for record in records if key in record.seen]
        alike = len({len(shape) for shape in (seen.shape, *many)}) == 1
        if key[1] != "weight" or len(many) < len(records) or not alike:
            continue
        for whole, *pieces in zip(seen.shape, *many, strict=True):
            # Several ranks may hold the same piece, and padding makes the sum larger.
            if whole and sum(pieces) < whole:
                facts = {"name": readable_name(key[2]), "whole": whole, "pieces": pieces, "got": sum(pieces)}
                return KINDS["cut_with_a_remainder.lost"](one.first_call_line(key[2]), **facts)
    return None


def find_cut_remainder(
    records: Sequence[RankRecord], one: RankRecord, rank: int, error: BaseException
) -> Finding | None:
    """Find an error of shapes in ``rank`` that one GPU doesn't have, in a module cut among the ranks."""
    record = records[rank]
    for key, seen in one.seen.items():
        if key[1] == "weight" and key in record.seen and key[2].startswith(record.raised):
            for whole, piece in zip(seen.shape, record.seen[key].local, strict=False):
                if piece < whole:
                    return KINDS["cut_with_a_remainder.fails"](
                        raising_line(error), who=format_ranks([rank]), problem=describe_error(error),
                        name=readable_name(key[2]), whole=whole, piece=piece, ranks=len(records),
                    )  # fmt: skip
    return None


def _have_same_data(records: Sequence[RankRecord]) -> bool:
    """Whether all ranks had the same inputs and the same losses."""
    first = {key: seen for key, seen in records[0].seen.items() if key[1] in ("input", "loss")}
    return bool(first) and all(
        key in other.seen and "alike" in matching_ways(seen, [other.seen[key]], seen.eps)
        for key, seen in first.items()
        for other in records
    )


def matching_ways(
    one: Fingerprint, many: Sequence[Fingerprint], eps: float, least: float = 0.0
) -> Iterator[str]:
    """Yield how ``many`` can make up ``one``: each equal to it ("alike"), its "parts", or terms of its "sum" or "mean".

    eps     the relative rounding of the numbers; ``least`` is the sum of squares below which values are noise.
    """
    off, length = eps**0.6, math.sqrt(one.squares)
    near = off * length + 16 * eps * length * math.sqrt(one.size) + math.sqrt(least) + 1e-15
    room = {"total": near, "weighed": near, "squares": 4 * off * one.squares + least + 1e-30}

    def same(parts: Collection[Fingerprint], share: float = 1.0, what: str = "weighed") -> bool:
        return all(
            abs(share * sum(float(getattr(part, sums)) for part in parts) - float(getattr(one, sums)))
            <= room[sums]
            for sums in ("total", what)
        )

    if all(same([other]) for other in many):
        yield "alike"
    for parts in (many, {(other.total, other.squares): other for other in many}.values()):
        if same(parts, what="squares"):
            yield "parts"
        if same(parts):
            yield "sum"
    if same(many, 1 / len(many)):
        yield "mean"


def _relative_gap(one: Fingerprint, other: Fingerprint) -> float:
    """Return a lower bound of the difference of ``other``, relative to the size of ``one``."""
    size, there = math.sqrt(one.squares), math.sqrt(other.squares)
    return max(abs(there - size), abs(one.total - other.total) / math.sqrt(one.size or 1)) / (size or 1.0)
