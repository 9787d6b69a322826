"""Broken scripts that hang because of a missing call or the order of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import series
from labkit.base.texts import Text
from labkit.base.tree import tensors
from labkit_course.judging import Hints, Named
from labkit_ranks.calls.faults.mismatch import Mismatch

from ..repairs.comparing import is_alike, is_close
from .judging import CostHint, ScriptRun, Setting, repaired, replace_source, script, scripts
from .running import lines_of

Batches = list[tuple[Tensor, Tensor]]


def model_of(setting: Setting) -> nn.Sequential:
    """Return two layers, equal on all ranks, with weights large enough to show a missing term."""
    made, generator = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), setting.generator()
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.6
    return made


def batches_of(setting: Setting, rank: int, sizes: list[int]) -> Batches:
    """Return batches of these sizes, different on each rank."""
    generator = setting.generator(rank + 1)
    made = [torch.randn(size, 5, generator=generator) for size in sizes]
    return [(part[:, :3], part[:, 3:]) for part in made]


def draw_numbers(setting: Setting, least: int, most: int, count: int) -> list[int]:
    """Return ``count`` whole numbers, equal on all ranks."""
    return torch.randint(least, most + 1, (count,), generator=setting.generator()).tolist()


# Validation in rank 0 alone.


def _to_validate(setting: Setting, rank: int) -> tuple[Any, ...]:
    shares = [[3, 3]] * setting.ranks
    if not setting.plain:
        shares = [[4] * many + [1] for many in draw_numbers(setting, 0, 3, setting.ranks)]
        shares[0] = [4]
    train = batches_of(setting, rank, [3, 3])
    return model_of(setting), train, batches_of(setting, rank + 100, shares[rank])


def _read_losses(result: Any) -> Any:
    """Return a tensor of one number for each epoch from floats, tensors of one number, or one tensor of all."""
    try:
        return [torch.tensor([float(loss)]) for loss in result]
    except (TypeError, ValueError, RuntimeError):
        return result


@script("validate", scripts.validate, repaired.validate, _to_validate, read=_read_losses)
def _validate(seen: ScriptRun) -> Hints:
    if seen.hangs:
        yield Named("in_the_loop" if not seen.setting.plain else "still_some")
    if seen.failure:
        return
    if tensors(seen.results[0], "") and not tensors(seen.results[-1], ""):
        yield Named("only_rank_0")
    if not seen.is_wrong or not seen.has_right_shapes:
        return
    if seen.ranks_differ:
        yield Named("own_share")
    yield from _guess_mean(seen)


def _guess_mean(seen: ScriptRun) -> Hints:
    both = "        dist.all_reduce(total)\n        dist.all_reduce(rows)\n"
    row, each = " * len(x)\n", "                rows += len(x)\n"

    def loss(*changes: tuple[str, str]) -> list[Tensor]:
        """Return each rank's losses with the reference changed like this."""
        return [
            torch.cat(one)
            for one in seen.problem.run(replace_source(repaired.validate, *changes), seen.setting).results
        ]

    got, means = torch.cat(seen.results[0]), loss((both, ""))
    if is_close(got, means[0]) and seen.setting.ranks > 1:
        yield Named("rank_0s_share")
    if is_close(got, torch.stack(means).mean(dim=0)):
        yield Named("mean_of_means")
    if is_close(got, torch.stack(means).sum(dim=0)):
        yield Named("added")
    in_loop = both.replace("        dist", "                dist")
    if seen.setting.plain and is_close(got, loss((both, ""), (each, each + in_loop))[0]):
        yield Named("each_batch")
    batches = ((row, "\n"), (each, each.replace("len(x)", "1")))
    of_ranks = (
        both,
        "        total, rows = total / rows, 1\n        dist.all_reduce(total, op=dist.ReduceOp.AVG)\n",
    )
    if any(is_close(got, loss(*batches, *more)[0]) for more in ((), (of_ranks,))):
        yield Named("mean_of_batches")


# All send first.


def _to_shift(setting: Setting, rank: int) -> tuple[Tensor, Tensor]:
    numel = 1_200_000 if setting.plain else 64
    query, block = (torch.randn(numel, generator=setting.generator(2 * rank + at)) for at in (1, 2))
    block[0] = rank * numel  # so that sums over many numbers still differ
    query[0] = 1.0
    return query, block


_SMALL, _LARGE = Text(", blocks of 256 B", "，每块 256 B"), Text(", blocks of 4.8 MB", "，每块 4.8 MB")


@script(
    "shift",
    scripts.shift,
    repaired.shift,
    _to_shift,
    (Setting(4, plain=False, note=_SMALL), Setting(2, note=_LARGE), Setting(4, note=_LARGE)),
)
def _shift(seen: ScriptRun) -> Hints:
    stuck = {event.name for event in seen.got.events if event.phase == "stuck"}
    waits = getattr(seen.failure and seen.failure.error, "waits", None)
    if waits is not None and "recv" in stuck and {wait.call for wait in waits.ranks} == {"send"}:
        yield Named("in_order")  # recv is stuck behind the rank's own send
    if seen.hangs and stuck in ({"send"}, {"recv"}):
        yield Named("all_send" if stuck == {"send"} else "all_receive")
    if seen.hangs:
        yield Named("unpaired")
    if seen.failure:
        return
    if seen.is_wrong and seen.has_right_shapes:
        yield from _guess_blocks(seen)
    if (
        not seen.is_wrong
        and seen.setting.ranks > 1
        and (kinds := seen.got.call_kinds())
        and not {"send", "recv"} & set(kinds)
    ):
        yield CostHint("gathered", kind=kinds[0])


def _guess_blocks(seen: ScriptRun) -> Hints:
    """Find which rank's block each rank had in each step, and yield hints."""
    size = seen.setting.ranks
    given = [_to_shift(seen.setting, rank) for rank in range(size)]
    found: list[list[int | None]] = []
    for rank, scores in enumerate(seen.results):
        known = torch.stack([(given[rank][0] * block).mean() for _, block in given])
        nearest = [int((known - one).abs().argmin()) for one in scores]
        found.append([b if is_close(known[b], one) else None for b, one in zip(nearest, scores, strict=True)])
    steps = range(size)
    if any(None in row for row in found):
        yield Named("too_soon")
    if (
        found == [[(rank + k) % size for k in steps] for rank in range(size)]
        and "send" in seen.got.call_kinds()
    ):
        yield Named("wrong_way")
    if size > 2 and all(len(set(row[1:])) == 1 for row in found):
        yield Named("same_block")
    if all(sorted(b for b in row if b is not None) == list(steps) for row in found):
        yield Named("other_order", blocks=series(found[0]))


# Unequal numbers of batches.


def _to_finish(setting: Setting, rank: int) -> tuple[Any, ...]:
    many = [2 + rank for rank in range(setting.ranks)]
    if not setting.plain:
        many = draw_numbers(setting, 1, 4, setting.ranks)
        many[0] = 6
    return model_of(setting), batches_of(setting, rank, [3] * many[rank])


def _with_steps(op: str, batches: str) -> Callable[..., Any]:
    """Return the repair without ``join``: the number of steps is the ``op`` (MIN, MAX) over ranks, on ``batches``."""
    head = (
        f"    steps = torch.tensor(len(batches)).cuda()\n    dist.all_reduce(steps, op=dist.ReduceOp.{op})\n"
    )
    return replace_source(
        repaired.finish, ("    with model.join():\n", f"{head}    batches = {batches}\n    if True:\n")
    )


_by_those_left = replace_source(repaired.finish, ("join()", "join(divide_by_initial_world_size=False)"))


@script("finish", scripts.finish, repaired.finish, _to_finish, also=(_by_those_left,))
def _finish(seen: ScriptRun) -> Hints:
    if seen.hangs:
        yield Named("still_uneven")
    if seen.failure:
        if "early termination" in seen.failure.words or "exhausted" in seen.failure.words:
            yield Named("thrown")
        return
    if not seen.is_wrong or not seen.has_right_shapes:
        return
    if seen.ranks_differ:
        yield Named("apart")
    if seen.matches(_with_steps("MIN", "batches[:steps]")):
        yield Named("dropped")
    if seen.matches(_with_steps("MAX", "[batches[at % len(batches)] for at in range(steps)]")):
        yield Named("repeated")


# Groups made by their members alone.


def _size(setting: Setting) -> int:
    fits = [size for size in range(2, setting.ranks) if setting.ranks % size == 0]
    if setting.plain or not fits:
        return fits[0] if fits else setting.ranks
    return fits[draw_numbers(setting, 0, len(fits) - 1, 1)[0]]


def _to_teams(setting: Setting, rank: int) -> tuple[Any, ...]:
    return torch.randn(3, generator=setting.generator(rank + 1)), _size(setting)


@script("teams", scripts.teams, repaired.teams, _to_teams, (Setting(4), Setting(6)))
def _teams(seen: ScriptRun) -> Hints:
    size, ranks = _size(seen.setting), seen.setting.ranks
    if seen.failure and not seen.setting.plain:
        yield Named("fixed", size=size, ranks=ranks)
    if seen.failure and seen.hangs and "new_group" in "\n".join(lines_of(seen.failure)):
        yield Named("own_lists" if isinstance(seen.failure.error, Mismatch) else "leaders_only")
    if seen.failure and "is not part of group" in seen.failure.words:
        yield Named("source")
    if seen.failure and "Invalid process group specified" in seen.failure.words:
        yield Named("not_member")
    if not seen.failure and not seen.is_wrong and _gathers_everything(seen):
        yield CostHint("all_gathered", ranks=ranks)
    if seen.failure or not seen.is_wrong or not seen.has_right_shapes:
        return
    x = torch.stack([_to_teams(seen.setting, rank)[0] for rank in range(ranks)])
    means = [result[0] for result in seen.results]
    if all(is_close(mean, x.mean(dim=0)) for mean in means) and size < ranks:
        yield Named("everybody", ranks=ranks)
    if any(is_close(mean, x[rank] / size) or is_close(mean, x[rank]) for rank, mean in enumerate(means)):
        yield Named("not_member")
    if all(
        is_close(mean, x[rank % (ranks // size) :: ranks // size].mean(dim=0))
        for rank, mean in enumerate(means)
    ):
        yield Named("strided", size=size)
    if all(is_alike(mean, want[0]) for mean, want in zip(means, seen.want.results, strict=True)):
        yield Named("best")


def _gathers_everything(seen: ScriptRun) -> bool:
    """Return whether every rank receives the tensors of all ranks, where each team needs a sum and a maximum."""
    ranks = seen.setting.ranks
    calls = (event for event in seen.got.events if event.name.startswith("all_gather"))
    return _size(seen.setting) < ranks and any(len(event.ranks) == ranks for event in calls)
