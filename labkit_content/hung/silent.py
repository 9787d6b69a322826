"""Broken scripts that finish but compute wrong results or cost more than necessary.

For each script, a function makes a rank's arguments (``_to_…``), and another judges a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import say, series
from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_alike, is_close, shapes_of
from .judging import CostHint, ScriptRun, Setting, repaired, replace_source, script, scripts
from .stuck import batches_of, draw_numbers, model_of

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
