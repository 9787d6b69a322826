"""Turn the records of all ranks into findings: each function here looks for one kind of fault."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from labkit.base.language import series
from labkit_diagnose.findings import list_some
from labkit_diagnose.probes.one_gpu import FEW
from labkit_diagnose.result import Finding

from ..calls.faults import format_ranks
from .failures import describe_error, find_failure, raising_line
from .kinds import KINDS, PHRASES
from .records import LoaderRecord, LossRecord, RankRecord, StepRecord
from .replicas import find_drift, replicas

# Relative difference below which weights of elements, and norms, are equal.
_ALIKE = 1e-3


def find_faults(records: Sequence[RankRecord], failure: tuple[int, BaseException] | None) -> list[Finding]:
    """Return all findings, in no order. ``failure`` is the rank whose error ended the run, and the error."""
    ended_by = [find_failure(records, *failure)] if failure is not None else []
    # Unused parameters keep their DDP bucket from being reduced, so its weights drift: don't report both.
    unreduced = any(finding.name == "unused_parameters" for finding in ended_by)
    looks = [
        _find_wrong_scale, _find_missing_no_sync, _find_second_reduction, _find_own_clipping, _find_early_use,
        _find_shared_files, _find_loads_to_one_gpu, _find_repeated_draws, _find_stale_parameters,
        _find_small_batch_norm, *([] if unreduced else [find_drift]),
    ]  # fmt: skip
    return [
        *ended_by,
        *_merge_loaders(_find_same_rows(records)),
        *_merge_loaders(_find_forgotten_set_epoch(records)),
        *_merge_loaders(_find_padded_rows(records)),
        *(found for look in looks for found in islice(look(records), 1)),  # the first of each
    ]


# Data.


def _pair_loaders(records: Sequence[RankRecord]) -> Iterator[list[LoaderRecord]]:
    """Yield the first loaders of all ranks, then the second loaders, and so on."""
    for loaders in zip(*(one.loaders for one in records), strict=False):
        yield list(loaders)


# A loader's number, the loader, the key of the finding, and its facts.
_Found = Iterator[tuple[int, LoaderRecord, str, dict[str, Any]]]


def _merge_loaders(found: _Found) -> Iterator[Finding]:
    """Yield one finding for the same fault of several loaders; name the first loader and list the others."""
    for number, loader, key, facts in found:
        where = ", ".join(filter(None, [loader.place, _loader_name(number, loader)]))
        if others := [_loader_name(number, other) for number, other, *_ in found]:
            where = PHRASES["also"](where=where, others=list_some(others))
        yield KINDS[key](where, **facts)


def _replica_groups(records: Sequence[RankRecord]) -> list[tuple[int, ...]]:
    """Return the groups of ranks that reduce gradients together."""
    return sorted({tuple(sorted(one.replicas)) for one in records} - {()})


def _find_same_rows(records: Sequence[RankRecord]) -> _Found:
    # With a model cut over groups, all groups read alike: one is enough.
    ranks = next(iter(_replica_groups(records)), ())
    for number, loaders in enumerate(_pair_loaders([records[rank] for rank in ranks])):
        for epoch, parts in enumerate(zip(*(loader.epochs for loader in loaders), strict=False), 1):
            if not all(part.steps and part.rows for part in parts):
                continue  # not every rank trained
            read = sum(len(part.rows) for part in parts)
            distinct = len({row for part in parts for row in part.rows})
            # A sampler that pads repeats fewer rows than there are ranks.
            if read - distinct >= len(ranks) and read > 1.5 * distinct:
                one, key = loaders[0], "same_rows.all"
                facts = {"who": format_ranks(ranks), "epoch": epoch, "read": read, "distinct": distinct}
                facts["times"] = f"{read / distinct:.3g}"
                if one.share and one.share[0] > 1 and {loader.share for loader in loaders} == {one.share}:
                    key = "same_rows.part"
                    facts |= {"part": one.share[1], "parts": one.share[0]}
                yield number, one, key, facts
                break


def _find_forgotten_set_epoch(records: Sequence[RankRecord]) -> _Found:
    for number, loaders in enumerate(_pair_loaders(records)):
        if not all(loader.by_epoch and len(loader.epochs) > 1 for loader in loaders):
            continue
        for first in range(min(len(loader.epochs) for loader in loaders) - 1):
            pairs = [(loader.epochs[first].rows, loader.epochs[first + 1].rows) for loader in loaders]
            if all(rows == again and len(rows) > 1 for rows, again in pairs):
                facts = {"first": first + 1, "second": first + 2}
                yield number, loaders[0], "set_epoch_forgotten", facts
                break


def _find_padded_rows(records: Sequence[RankRecord]) -> _Found:
    for number, loaders in enumerate(_pair_loaders(records)):
        for parts in zip(*(loader.epochs for loader in loaders), strict=False):
            rows = [row for part in parts for row in part.rows]
            size = loaders[0].size
            if size is None or any(part.steps for part in parts) or not any(one.steps for one in records):
                continue
            twice = sorted({row for row in rows if isinstance(row, int) and rows.count(row) > 1})
            # If every row is read twice, each rank evaluates for itself.
            if len(set(rows)) == size < len(rows) < 2 * size and twice:
                which = list_some([str(row) for row in twice])
                facts = {"read": len(rows), "rows": size, "which": which}
                yield number, loaders[0], "rows_counted_twice", facts
                break


def _loader_name(number: int, loader: LoaderRecord) -> str:
    return PHRASES["loader"](number=number + 1, sampler=loader.sampler)


# Gradients.


def _pair_steps(records: Sequence[RankRecord]) -> Iterator[tuple[int, list[StepRecord]]]:
    for number, steps in enumerate(zip(*(one.steps for one in records), strict=False), 1):
        yield number, list(steps)


def _find_wrong_scale(records: Sequence[RankRecord]) -> Iterator[Finding]:
    if not all((one.models or one.sharded) and not one.by_hand for one in records):
        return  # a script that reduces by hand may scale as it likes
    for number, steps in _pair_steps(records):
        losses = [[loss for loss in step.losses if loss.weight is not None] for step in steps]
        if not all(losses) or any(len(one) != len(losses[0]) for one in losses):
            continue
        # The user chooses how to weigh several losses of one pass.
        if any(len(one) != len(step.reduced) for one, step in zip(losses, steps, strict=True)):
            continue
        weights = [loss.weight or 0.0 for one in losses for loss in one]
        counts = [sum(loss.count for loss in one) for one in losses]
        total = sum((loss.weight or 0.0) * loss.count for one in losses for loss in one)
        if min(weights) <= 0:
            continue
        if max(weights) > (1 + _ALIKE) * min(weights):
            mean = total / sum(counts)
            low, high = _rank_of_weight(losses, min(weights)), _rank_of_weight(losses, max(weights))
            yield KINDS["gradient_scale.unequal"](
                step=number, counts=series(f"{count:g}" for count in counts), low=format_ranks([low]),
                high=format_ranks([high]), lowest=min(weights) / mean, highest=max(weights) / mean,
            )  # fmt: skip
        elif (passes := len(steps[0].reduced)) > 1 and not any(one.scaled for one in records):
            for factor in (passes, 1 / passes):
                if abs(total / len(records) / factor - 1) < 0.01:
                    yield KINDS["gradient_scale.passes"](step=number, times=passes, factor=factor)


def _rank_of_weight(losses: list[list[LossRecord]], weight: float) -> int:
    return next(rank for rank, one in enumerate(losses) if any(loss.weight == weight for loss in one))


def _find_missing_no_sync(records: Sequence[RankRecord]) -> Iterator[Finding]:
    for number, steps in _pair_steps(records):
        reduced = [count for count in steps[0].reduced if count]
        if len(reduced) > 1:
            place = next((one.unsynced for one in records if one.unsynced), "")
            facts = {"step": number, "times": len(reduced), "calls": sum(reduced), "enough": max(reduced)}
            kind = "backward_only" if place else "none"
            yield KINDS[f"accumulation_without_no_sync.{kind}"](place or steps[0].place, **facts)


def _find_second_reduction(records: Sequence[RankRecord]) -> Iterator[Finding]:
    for one in records:
        if one.again is not None:
            kind, facts = ("summed", {"times": one.times}) if one.times > 1 else ("averaged", {})
            if one.sharded or one.flat:  # ranks hold shards of different parameters
                kind, facts = "shards", {}
            yield KINDS[f"gradients_reduced_twice.{kind}"](one.again[0], **facts)


def _find_own_clipping(records: Sequence[RankRecord]) -> Iterator[Finding]:
    for clips in zip(*(one.clips for one in records), strict=False):
        norms = [norm for _, norm in clips]
        # Ranks without calls in forward and backward train separate models.
        shared = any(one.replicas or one.peers for one in records)
        if shared and max(norms) - min(norms) > _ALIKE * max(norms):
            kind = "flat" if any(one.flat for one in records) else "own"
            text = series(f"{norm:.3g}" for norm in norms)
            yield KINDS[f"clipped_by_own_norm.{kind}"](clips[0][0], norms=text)


# Calls, files, random numbers.


def _find_early_use(records: Sequence[RankRecord]) -> Iterator[Finding]:
    for one in records:
        for place, changed, call in one.early:
            kind = "changed" if changed else "read"
            yield KINDS[f"used_before_wait.{kind}"](place, call=call.kind, line=call.short_place)


def _shared_entries(kept: Iterable[list[tuple[Any, str]]]) -> Iterator[tuple[Any, list[int], str]]:
    """Yield each entry that several ranks have, with the ranks and the first rank's line."""
    found: dict[Any, dict[int, str]] = {}
    for rank, one in enumerate(kept):
        for key, place in one:
            found.setdefault(key, {}).setdefault(rank, place)
    for key, places in found.items():
        if len(places) > 1:
            yield key, list(places), next(iter(places.values()))


def _find_shared_files(records: Sequence[RankRecord]) -> Iterator[Finding]:
    for (path, _), ranks, place in _shared_entries(one.saved for one in records):
        if os.path.isfile(path) and os.path.getsize(path):
            file = os.path.basename(path)
            yield KINDS["one_file_by_several"](place, who=format_ranks(ranks), file=file)


def _find_loads_to_one_gpu(records: Sequence[RankRecord]) -> Iterator[Finding]:
    for gpu, ranks, place in _shared_entries(one.loaded for one in records):
        yield KINDS["loaded_to_one_gpu"](place, who=format_ranks(ranks), gpu=gpu.device)


def _find_repeated_draws(records: Sequence[RankRecord]) -> Iterator[Finding]:
    """Find ranks that draw the same numbers for different inputs; for equal inputs, equal draws are right."""
    for draw, ranks, place in _shared_entries(one.draws for one in records):
        inputs = {tuple(records[rank].inputs.get(draw.step, ())) for rank in ranks}
        shapes = {one.shape for given in inputs for one in given if one and one.shape}
        # Ranks may draw a whole tensor alike, and then take their parts along some dimension.
        whole = draw.shape and draw.shape[0] not in {shape[0] for shape in shapes}
        if whole or any(_is_part(shape, draw.shape) for shape in shapes):
            continue
        if len(inputs) > 1 and records[ranks[0]].replicas.issuperset(ranks[:2]):
            facts = {"function": draw.function, "step": draw.step}
            yield KINDS["same_random_numbers"](place, who=format_ranks(ranks), **facts)


def _is_part(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a tensor of shape ``part`` can be a piece of one of shape ``whole``, cut along one dimension."""
    sizes = [(a, b) for a, b in zip(part, whole, strict=False) if a != b]
    return len(part) == len(whole) and len(sizes) == 1 and sizes[0][1] % (sizes[0][0] or 1) == 0


# Weights.


def _find_stale_parameters(records: Sequence[RankRecord]) -> Iterator[Finding]:
    names = next((one.stale for one in records if one.stale), [])
    if names:
        yield KINDS["optimizer_before_sharding"](which=list_some(names))


def _find_small_batch_norm(records: Sequence[RankRecord]) -> Iterator[Finding]:
    if not all(one.norms and one.models for one in records):
        return
    values, rows = min(norm for one in records for norm in one.norms)
    if values >= FEW:
        return
    running = [one.running for one in records if isinstance(one.running, torch.Tensor)]
    means = [mean.detach().reshape(-1)[0].item() for mean in running]
    statistics = ""
    if len(means) == len(records) and len({round(mean, 6) for mean in means}) > 1:
        statistics = PHRASES["batch_norm_of_few.means"](means=series(f"{mean:.3g}" for mean in means))
    yield KINDS["batch_norm_of_few"](values=values, rows=rows, statistics=statistics)


def find_node_faults(nodes: int, error: BaseException) -> Iterator[Finding]:
    """Find the fault of a run that failed on several nodes."""
    if "invalid device ordinal" in str(error):  # PyTorch's words
        yield KINDS["rank_for_local_rank"](raising_line(error), nodes=nodes, problem=describe_error(error))


def describe_comparisons(records: Sequence[RankRecord]) -> list[str]:
    """Return a line of text for each comparison that was made."""
    lines = []
    steps = min(len(one.steps) for one in records)
    alike = [one for one in replicas(records) if one.is_compared()]
    if alike and steps:
        names, ranks = len({one.name for one in alike}), len({rank for one in alike for rank in one.group})
        lines.append(PHRASES["compared.weights"](names=names, ranks=ranks, steps=steps))
    for number, loaders in enumerate(_pair_loaders(records) if _replica_groups(records) else ()):
        read = [sum(len(epoch.rows) for epoch in loader.epochs) for loader in loaders]
        loader, epochs = _loader_name(number, loaders[0]), len(loaders[0].epochs)
        lines.append(PHRASES["compared.rows"](loader=loader, read=read, epochs=epochs))
    weighed = sum(loss.weight is not None for one in records for step in one.steps for loss in step.losses)
    if weighed and all(one.models or one.sharded for one in records):
        lines.append(PHRASES["compared.losses"](count=weighed))
    return lines


def reasons_not_compared(records: Sequence[RankRecord]) -> list[str]:
    """Return the reason for not comparing the ranks' weights; nothing if they were compared."""
    together = any(one.peers or one.exchanges or one.calls or one.replicas for one in records)
    why = "steps" if not all(one.steps for one in records) else "pieces" if together else "alone"
    return [] if any(one.is_compared() for one in replicas(records)) else [PHRASES[f"not_compared.{why}"]()]
