"""The exercises of lesson 18 that code judges: bytes after a step, the share of the peak, a plan of one's own."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from typing import Any

from labkit.base.texts import Text
from labkit.base.units import bytes_text
from labkit.cost.hardware import ACCELERATORS, Accelerator
from labkit.cost.plan import Forecast, forecast
from labkit.cost.search import plans
from labkit.cost.settings import Plan
from labkit.cost.sizes import MODELS, Sizes
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Praise, Unreadable
from labkit_course.kinds import A_NUMBER, a_function, read_returned

_CASES = ((8_030_261_248, 8), (1_000_000, 1), (15_650_000_000, 32))


@judge("18.allocated", a_function("allocated"))
def _judge_allocated(function: Callable[..., Any]) -> Hints:
    for parameters, ranks in _CASES:
        found = read_returned(function(parameters, ranks), A_NUMBER)
        facts = {"parameters": parameters, "ranks": ranks, "each": found / parameters}
        if isclose(found, parameters * (4 + 12 / ranks), rel_tol=1e-6):
            continue
        if isclose(found, 4 + 12 / ranks, rel_tol=1e-6):
            yield Named("one", **facts)
        if found < parameters / 1e6:
            yield Named("giga", **facts)
        for each, name in (
            (16, "nothing"), (16 / ranks, "everything"), (2 + 14 / ranks, "gradients_too"), (4, "gone"),
            (2 + 12 / ranks, "no_gradients"), (8 + 8 / ranks, "float32"),
        ):  # fmt: skip
            if isclose(found, parameters * each, rel_tol=1e-6):
                yield Named(name, **facts)
        yield Named("other", **facts)


# Mistaken FLOPs per parameter and token, numbers of GPUs and peaks. (4 of 1,979 nearly equals 2 of 989;
# the cases have 16 and 64 GPUs because with 8, 2 on one GPU at 1,979 would equal 8 on all at 989.)
_COUNTED = tuple(
    (each, alone, peak) for peak in (989e12, 1979e12) for alone in (False, True) for each in (6, 2, 8, 4, 3)
)


@judge("18.mfu", a_function("mfu"))
def _mfu(function: Callable[..., Any]) -> Hints:
    for parameters, tokens, gpus in (
        (8_030_261_248, 170_500, 16),
        (70_553_706_496, 71_526, 64),
        (10**9, 50_000, 1),
    ):
        found = read_returned(function(parameters, tokens, gpus), A_NUMBER)
        right = 6 * parameters * tokens / (gpus * 989e12)
        if isclose(found, right, rel_tol=0.01):
            continue
        facts = {"tokens": tokens, "gpus": gpus, "found": f"{found:.1%}", "right": f"{right:.1%}"}
        if isclose(found, right * 100, rel_tol=0.02):
            yield Named("percent", **facts)
        shares = {
            each * parameters * tokens / ((1 if alone else gpus) * peak): (each, alone, peak)
            for each, alone, peak in _COUNTED
        }
        nearest = min(shares, key=lambda share: abs(share - found))
        if isclose(found, nearest, rel_tol=0.01):
            each, alone, peak = shares[nearest]
            counted = "again" if each > 6 else "three" if each == 3 else "there"
            name = "total" if alone and gpus > 1 else "sparse" if peak > 1e15 else counted
            yield Named(name, **facts, each=each)
        yield Named("other", **facts)


def _read_plan(answer: object) -> Plan:
    if not isinstance(answer, Plan):
        raise Unreadable(
            Text(
                en="this asks for a plan: labkit.Plan(dp=…, tp=…, …)",
                zh="这道题要的是一个方案：labkit.Plan(dp=…, tp=…, …)",
            )
        )
    return answer


@judge("18.beat", _read_plan)
def _beat(plan: Plan) -> Hints:
    sizes, gpu, gpus, batch = MODELS["70B"], ACCELERATORS["h100"], 64, 512
    facts = {"gpus": plan.gpus, "rows": plan.dp * plan.micro * plan.many}
    if plan.gpus != gpus:
        yield Named("product", **facts)
        return
    if plan.dp * plan.micro * plan.many != batch:
        yield Named("batch", **facts)
        return
    if plan.tp > gpu.links.machine_size:
        yield Named("machine")
    elif sizes.layers % (plan.pp * plan.chunks):
        yield Named("layers")
    elif plan.many < plan.pp:
        yield Named("few", pp=plan.pp, many=plan.many)
    elif plan.pp > 1 and plan.stage > 1:
        yield Named("whole")
    else:
        yield from _fits_and_is_fast(sizes, plan, gpu, plans(sizes, gpus, gpu, batch).best)


def _fits_and_is_fast(sizes: Sizes, plan: Plan, gpu: Accelerator, best: Forecast) -> Hints:
    mine = forecast(sizes, plan, gpu)
    if not mine.fits:
        most = mine.largest
        name = f"full_{most}" if most in ("activations", "optimizer") else "full"
        if name == "full_activations" and plan.micro == 1:
            name = "full_activations_of_one"
        yield Named(name, why=mine.no_fit_reason)
    elif mine.seconds > 1.1 * best.seconds:
        slow = max((k for k in mine.parts if k != "compute"), key=lambda k: mine.parts[k])
        name = {"bubble": "bubble", "tensor": "tensor"}.get(slow, "slow")
        if slow == "data" and plan.stage == 3 and plan.many > 1:
            name = "gathers"
        yield Named(
            "again" if plan.recompute and not best.plan.recompute else name,
            over=f"{mine.seconds / best.seconds - 1:.0%}",
            many=plan.many,
        )
    elif mine.verdict == "close":
        yield Praise("close", needed=bytes_text(int(mine.peak)), there=bytes_text(int(gpu.usable)))
