"""The exercises of lesson 18 that code judges: bytes after a step, the share of the peak, a plan of one's own."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from typing import Any

from labkit.base.texts import Text
from labkit.cost.hardware import ACCELERATORS
from labkit.cost.plan import Plan, forecast
from labkit.cost.search import every, plans
from labkit.cost.sizes import MODELS
from labkit.course.exercise import judge
from labkit.course.judging import Hints, Named, Unreadable
from labkit.course.kinds import A_NUMBER, a_function, returned

_CASES = ((8_030_261_248, 8), (1_000_000, 1), (15_650_000_000, 32))


@judge("18.allocated", a_function("allocated"))
def _allocated(function: Callable[..., Any]) -> Hints:
    for parameters, ranks in _CASES:
        found = returned(function(parameters, ranks), A_NUMBER)
        facts = {"parameters": parameters, "ranks": ranks, "each": found / parameters}
        if isclose(found, parameters * (4 + 12 / ranks), rel_tol=1e-6):
            continue
        for each, name in (
            (16, "nothing"), (16 / ranks, "everything"), (2 + 14 / ranks, "gradients_too"), (4, "gone"),
            (2 + 12 / ranks, "no_gradients"), (8 + 8 / ranks, "float32"),
        ):  # fmt: skip
            if isclose(found, parameters * each, rel_tol=1e-6):
                yield Named(name, **facts)
        yield Named("other", **facts)


@judge("18.mfu", a_function("mfu"))
def _mfu(function: Callable[..., Any]) -> Hints:
    for tokens, gpus, flops in ((59_560, 8, 51.4e9), (7_445, 1, 51.4e9), (400_000, 64, 13.2e9)):
        found = returned(function(tokens, gpus, flops), A_NUMBER)
        right = tokens * flops / (gpus * 989e12)
        facts = {"tokens": tokens, "gpus": gpus, "found": f"{found:.1%}", "right": f"{right:.1%}"}
        if isclose(found, right, rel_tol=0.01):
            continue
        for wrong, name in ((right / 2, "sparse"), (right * gpus, "total"), (right * 100, "percent")):
            if isclose(found, wrong, rel_tol=0.02):
                yield Named(name, **facts)
        yield Named("other", **facts)


def _a_plan(answer: object) -> Plan:
    if not isinstance(answer, Plan):
        raise Unreadable(
            Text(en="a plan, labkit.Plan(dp=…, tp=…, …)", zh="一个方案：labkit.Plan(dp=…, tp=…, …)")
        )
    return answer


@judge("18.beat", _a_plan)
def _beat(plan: Plan) -> Hints:
    sizes, gpu, gpus, batch = MODELS["70B"], ACCELERATORS["h100"], 64, 512
    facts = {"gpus": plan.gpus, "rows": plan.dp * plan.micro * plan.many}
    if plan.gpus != gpus:
        yield Named("product", **facts)
        return
    if plan.dp * plan.micro * plan.many != batch:
        yield Named("batch", **facts)
        return
    if plan not in set(every(sizes, gpus, gpu, batch)):
        yield Named("cannot", **facts)
        return
    mine, best = forecast(sizes, plan, gpu), plans(sizes, gpus, gpu, batch).best
    if not mine.fits:
        most = mine.largest
        yield Named(f"full_{most}" if most in ("activations", "optimizer") else "full", why=mine.why_not)
    elif mine.seconds > 1.1 * best.seconds:
        slow = max((k for k in mine.parts if k != "compute"), key=lambda k: mine.parts[k])
        name = {"bubble": "bubble", "tensor": "tensor"}.get(slow, "slow")
        yield Named(
            "again" if plan.recompute and not best.plan.recompute else name,
            over=f"{mine.seconds / best.seconds - 1:.0%}",
        )
