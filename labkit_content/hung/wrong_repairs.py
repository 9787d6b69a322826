"""The ten broken scripts: the data of each, and the hints on wrong repairs, the likeliest first.

For each script, a function makes a rank's arguments (``_to_…``), and another judges a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import say, series
from labkit.base.texts import Text
from labkit.base.tree import tensors
from labkit_course.judging import Hints, Named
from labkit_ranks.calls.faults.mismatch import Mismatch

from ..repairs.comparing import is_alike, is_close, shapes_of
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


# RANK taken for LOCAL_RANK.


def _to_score(setting: Setting, rank: int) -> tuple[Tensor, Tensor]:
    generator = setting.generator()
    many = 2 if setting.plain else draw_numbers(setting, 1, 4, 1)[0]
    return torch.randn(many * setting.ranks, 3, generator=generator), torch.randn(3, generator=generator)


@script("score", scripts.score, repaired.score, _to_score, (Setting(4, 2), Setting(4), Setting(2)))
def _score(seen: ScriptRun) -> Hints:
    if seen.failure:
        words = seen.failure.words
        if "invalid device ordinal" in words:
            yield Named("ordinal", each=seen.setting.ranks_per_node)
        if "Duplicate GPU" in str(seen.failure.error):
            yield Named("one_gpu")
        if "No backend type associated with device type cpu" in words:
            yield Named("on_cpu")
        return
    right = seen.want.results[0]
    if not all(isinstance(one, Tensor) and one.dim() == 1 for one in seen.results):
        return
    got = seen.results[0]
    if len(got.unique()) < len(right.unique()) and seen.setting.nodes > 1:
        yield Named("same_share", nodes=seen.setting.nodes)
    same_values = len(got) == len(right) and is_close(got.sort().values, right.sort().values)
    if same_values and not is_close(got, right):
        yield Named("order")
    if not seen.is_wrong and seen.setting.ranks > 1 and not seen.got.call_kinds():
        yield CostHint("all_prompts", prompts=len(right))  # without a call, a rank has only its own scores


# Gradients reduced in every pass.

_FULL = "CUDA out of memory: there is room for the activations of one batch"


def _to_accumulate(setting: Setting, rank: int) -> tuple[Any, ...]:
    many = 8 if setting.plain else 4 + draw_numbers(setting, 1, 3, 1)[0]
    return _limit_activations(model_of(setting), 2), batches_of(setting, rank, [2] * many)


def _limit_activations(model: nn.Module, rows: int) -> nn.Module:
    """Let ``model`` run out of memory when a pass has more than ``rows`` rows, or two passes wait for backward."""
    waiting: list[Tensor] = []

    def enter(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given[0].size(0) > rows or len(waiting) > 1:
            raise torch.OutOfMemoryError(_FULL)

    def leave(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            waiting.append(output)
            output.register_hook(lambda gradient: waiting.clear())

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave)
    return model


def _passes(kind: str) -> Callable[[ScriptRun], str]:
    def describe(seen: ScriptRun) -> str:
        got, want = (
            sum(e.rank == 0 and e.name.startswith(kind) for e in ran.events) for ran in (seen.got, seen.want)
        )
        return say(
            en=f"results are right; rank 0 calls {kind} {got} times, {want} would do",
            zh=f"结果正确；rank 0 调用 {kind} {got} 次，本来 {want} 次就够",
        )

    return describe


def _mistaken_windows(function: Any) -> list[tuple[str, Callable[..., Any]]]:
    """Return the usual mistakes about the size of a window of batches, by hint name."""
    return [
        ("sum", replace_source(function, (" / len(window)", ""))),
        ("short_window", replace_source(function, (" / len(window)", " / 4"))),
        ("dropped", replace_source(function, ("len(batches), 4", "len(batches) // 4 * 4, 4"))),
    ]


def _hints_on_memory(seen: ScriptRun) -> Hints:
    if seen.failure and _FULL in seen.failure.words:
        yield Named("joined")


@script("accumulate", scripts.accumulate, repaired.accumulate, _to_accumulate, outcome=_passes("all_reduce"))
def _accumulate(seen: ScriptRun) -> Hints:
    if seen.failure:
        yield from _hints_on_memory(seen)
        return
    if not seen.has_right_shapes:
        return
    got, want = seen.nbytes("all_reduce", "reduce_scatter")
    if seen.ranks_differ:
        yield Named("never" if got < want else "too_early")
    if seen.is_wrong:
        for name, function in _mistaken_windows(repaired.accumulate):
            if seen.matches(function):
                yield Named(name)
    elif got > want and seen.setting.ranks > 1:
        yield Named("every_pass", times=got / want)


@script("defer", scripts.defer, repaired.defer, _to_accumulate, outcome=_passes("reduce_scatter"))
def _defer(seen: ScriptRun) -> Hints:
    if seen.failure:
        if "no_sync" in seen.failure.words:
            yield Named("no_such_name")
        yield from _hints_on_memory(seen)
        return
    got, want = seen.nbytes("reduce_scatter")
    if seen.setting.ranks > 1 and not got and seen.got.call_kinds("all_reduce"):
        yield Named("not_sharded")
    if seen.is_wrong and seen.setting.ranks > 1 and got < want:
        yield Named("never")
    if not seen.has_right_shapes:
        return
    if seen.is_wrong:
        for name, function in _mistaken_windows(repaired.defer):
            if seen.matches(function):
                yield Named(name)
    elif got > want:
        yield Named("every_pass", times=got / want)


# The optimizer made before the parameters were replaced.


def _to_shard(setting: Setting, rank: int) -> tuple[Any, ...]:
    many = 3 if setting.plain else draw_numbers(setting, 2, 5, 1)[0]
    return model_of(setting), batches_of(setting, rank, [2] * many)


def _moved_parameters(seen: ScriptRun) -> list[bool]:
    """Return for each parameter whether training changed it."""
    before = [p.detach() for p in model_of(seen.setting).parameters()]
    return [not torch.equal(one, other) for one, other in zip(before, seen.results[0], strict=True)]


def _describe_moved(seen: ScriptRun) -> str:
    moved = sum(_moved_parameters(seen))
    return say(en=f"{moved} of 4 parameters have moved", zh=f"4 个参数里有 {moved} 个动过")


@script("shard", scripts.shard, repaired.shard, _to_shard, outcome=_describe_moved)
def _shard(seen: ScriptRun) -> Hints:
    if seen.failure or not isinstance(seen.results[0], (list, tuple)):
        return
    if seen.setting.ranks > 1 and not seen.got.call_kinds(
        "reduce_scatter_single", "reduce_scatter", "all_gather_single"
    ):
        yield Named("not_sharded")
    if not seen.has_right_shapes:
        if seen.setting.ranks > 1:
            yield Named("local", shape=shapes_of(seen.results[0]))
        return
    if not seen.is_wrong:
        # The root's unit gathers what the layers' units have left to it.
        got, want = (
            max((event.nbytes for event in ran.events if event.name.startswith("all_gather")), default=0)
            for ran in (seen.got, seen.want)
        )
        if got > want:
            yield CostHint("one_unit")
        return
    moved = _moved_parameters(seen)
    if not any(moved):
        yield Named("unmoved")
    if not all(moved):
        yield Named("some_unmoved", moved=sum(moved))
    for other in (
        "Adam(model.parameters(), lr=0.05)",
        "AdamW(model.parameters())",
        "SGD(model.parameters(), lr=0.05)",
    ):
        if seen.matches(replace_source(repaired.shard, ("AdamW(model.parameters(), lr=0.05)", other))):
            yield Named("optimizer", name=f"`{other}`")
    anew = (
        "        loss = ",
        "        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)\n        loss = ",
    )
    if seen.matches(replace_source(repaired.shard, anew)):
        yield Named("anew")
    if seen.matches(replace_source(repaired.shard, ("        optimizer.zero_grad()\n", ""))):
        yield Named("kept")


# A gradient that is ranks × passes times too large.


def _to_scale(setting: Setting, rank: int) -> tuple[Any, ...]:
    model = nn.Linear(3, 5)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=setting.generator())
    generator = setting.generator(rank + 1)
    many = 4 if setting.plain else draw_numbers(setting, 2, 5, 1)[0]
    batches = []
    for _ in range(many):
        y = torch.randint(0, 5, (6,), generator=generator)
        if not setting.plain:
            y[int(torch.randint(1, 6, (1,), generator=generator)) :] = -100
        batches.append((torch.randn(6, 3, generator=generator), y))
    return model, batches


def _factor(seen: ScriptRun) -> float:
    got, want = (torch.cat([p.flatten() for p in ran.results[0]]).double() for ran in (seen.got, seen.want))
    return float(got @ want / (want @ want))


def _describe_factor(seen: ScriptRun) -> str:
    factor = f"{_factor(seen):.2f}"
    return say(en=f"the gradient is {factor} times that of one GPU", zh=f"梯度是一块 GPU 上的 {factor} 倍")


@script("scale", scripts.scale, repaired.scale, _to_scale, outcome=_describe_factor)
def _scale(seen: ScriptRun) -> Hints:
    if seen.failure or not seen.has_right_shapes or not seen.is_wrong:
        return
    if seen.ranks_differ:
        yield Named("apart")
    ranks, passes, factor = seen.setting.ranks, len(_to_scale(seen.setting, 0)[1]), _factor(seen)
    scaled = [[p * factor for p in ran] for ran in seen.want.results]
    facts = {"factor": factor, "ranks": ranks, "passes": passes}
    if is_alike(seen.results, scaled):
        known = {
            "both": ranks * passes, "by_passes": passes, "by_ranks": ranks,
            "divided_by_ranks": 1 / ranks, "divided_by_passes": 1 / passes, "divided_by_both": 1 / ranks / passes,
        }  # fmt: skip
        for name, value in known.items():
            if abs(factor / value - 1) < 1e-3 and value != 1:
                yield Named(name, **facts)
        # A sum over tokens is well above "both", the largest of the other factors.
        if factor > 10 * ranks * passes / 9 and seen.setting.plain:
            yield Named("undivided", **facts)
        yield Named("factor", **facts)
    mean = ('ignore_index=-100, reduction="sum")', "ignore_index=-100)")
    by_batch = replace_source(repaired.scale, mean, ("loss / tokens * world_size", "loss / len(batches)"))
    own = replace_source(
        repaired.scale, ("    dist.all_reduce(tokens)\n", ""), ("/ tokens * world_size", "/ tokens")
    )
    if seen.matches(by_batch):
        yield Named("mean_of_means")
    if seen.matches(own):
        yield Named("own_tokens")


# The same noise in all ranks.


def _to_denoise(setting: Setting, rank: int) -> tuple[int, Tensor]:
    return setting.seed, torch.randn(8 * setting.ranks, 3, generator=setting.generator())


def _describe_noise(seen: ScriptRun) -> str:
    first = series(f"{float(drawn[0, 0, 0]):.3f}" for _, drawn, _ in seen.results)
    return say(en=f"the first noise of each rank: {first}", zh=f"各 rank 的第一个噪声：{first}")


@script("denoise", scripts.denoise, repaired.denoise, _to_denoise, outcome=_describe_noise, same=False)
def _denoise(seen: ScriptRun) -> Hints:
    if seen.failure or not seen.has_right_shapes:
        return
    read, drawn, weights = zip(*seen.results, strict=True)
    if any(not is_alike(one, weights[0]) for one in weights[1:]):
        yield Named("models_differ")
    rows = 8 * seen.setting.ranks
    for epoch in range(2):
        distinct = len(torch.cat([one[epoch] for one in read]).unique())
        if distinct < rows:
            yield Named("rows_lost", rows=rows, distinct=distinct)
    every = torch.stack(drawn).flatten(2)  # [ranks, steps, numbers]
    ranks, each = seen.setting.ranks, seen.setting.ranks_per_node
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks) if torch.equal(every[a], every[b])]
    if pairs and all((b - a) % each == 0 for a, b in pairs) and each < ranks:
        yield Named("by_local_rank", one=pairs[0][0], other=pairs[0][1])
    if pairs:
        yield Named("same_noise", one=pairs[0][0], other=pairs[0][1])
    if any(torch.equal(own[0], own[1]) for own in every):
        yield Named("same_each_step")
    # Any other repeat: seeds like seed + rank + step meet in another rank and step.
    if len(every.flatten(0, 1).unique(dim=0)) < ranks * every.size(1):
        yield Named("aliased")
    if any(not 0.5 < float(own.std()) < 2 for own in every):
        yield Named("no_noise")
    if all(torch.equal(one[0], one[1]) for one in read):
        yield Named("same_order")
    if seen.setting.plain and ranks == 2:  # a further run takes time: one kind of setting is enough
        again = seen.problem.run(seen.attempt, seen.setting).results
        if not again or not is_alike(again, seen.results):
            yield CostHint("unrepeatable")
        other = seen.problem.run(seen.attempt, replace(seen.setting, seed=seen.setting.seed + 1)).results
        if other and all(torch.equal(a[1], b[1]) for a, b in zip(other, seen.results, strict=True)):
            yield CostHint("seed_ignored")
