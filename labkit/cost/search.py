"""Try all plans for a model on a number of GPUs: those that fit, fastest first, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..base.display import Drawn
from ..base.language import wrong
from ..base.numbers import integer
from ..base.texts import texts_beside
from ..base.units import bytes_text, time_unit
from .hardware import Accelerator
from .plan import KINDS, Forecast, forecast
from .settings import Plan
from .sizes import Sizes

_TEXTS = texts_beside(__file__)
_MICRO = (1, 2, 4, 8, 16)
_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Plans(Drawn):
    """Plans for ``gpus`` GPUs and a batch of ``batch`` sequences: ``fitting``, fastest first, and ``others``."""

    sizes: Sizes
    gpus: int
    gpu: Accelerator
    batch: int
    fitting: tuple[Forecast, ...]
    others: tuple[Forecast, ...]

    @property
    def best(self) -> Forecast:
        """The fastest that fits. Raises ValueError if none does."""
        if not self.fitting:
            raise ValueError(self.no_fit_reason)
        return self.fitting[0]

    @property
    def no_fit_reason(self) -> str:
        """The text for when no plan fits: the smallest plan and its need."""
        least = min(self.others, key=lambda one: one.peak)
        facts = {"count": len(self.others), "gpus": self.gpus, "gpu": self.gpu.name}
        return _TEXTS["none"](**facts, plan=least.plan, needs=least.no_fit_reason)

    why_none = no_fit_reason  # the former name

    @property
    def front(self) -> tuple[Forecast, ...]:
        """The Pareto front of the fitting plans: no other is both faster and smaller. Smallest first."""
        found: list[Forecast] = []
        for one in sorted(self.fitting, key=lambda one: (one.peak, one.seconds)):
            if not found or one.seconds < found[-1].seconds:
                found.append(one)
        return tuple(found)

    def table(self, most: int = 12) -> str:
        """Return the fastest plans as a table, and below why the others do not fit."""
        experts, cut = bool(self.sizes.experts), any(one.plan.sp for one in self.fitting[:most])
        lines = [f"  {_TEXTS['head'](ep='  ep' * experts, sp='  sp      ' * cut)}"]
        for one in self.fitting[:most]:
            plan, (scale, unit) = one.plan, time_unit(one.seconds)
            time = f"{one.seconds * scale:#.3g}".removesuffix(".")
            sp = f"  {plan.sp!s:<8}"
            lines.append(
                f"{plan.dp:>4}{plan.tp:>4}{plan.pp:>4}" + f"{plan.ep:>4}" * experts + f"{plan.stage:>6}  "
                f"{f'{plan.micro}×{plan.many}':<7}{bool(plan.recompute)!s:<9}{sp * cut}"
                f"{one.peak / 2**30:>6.1f}{'?' if one.verdict == 'close' else ' '}"
                f"{one.tokens:>13,.0f}  {one.mfu:>5.1%}  {time} {unit}"
            )
        if len(self.fitting) > most:
            lines.append(f"  {_TEXTS['more'](count=len(self.fitting) - most)}")
        if any(one.verdict == "close" for one in self.fitting[:most]):
            lines.append(f"  {_TEXTS['close']}")
        for kind, called in KINDS.items() if self.others else ():
            found = [one for one in self.others if one.largest == kind]
            if found:
                least = min(found, key=lambda one: one.peak)
                needed, there = bytes_text(int(least.peak)), bytes_text(int(self.gpu.usable))
                facts = {"count": len(found), "plan": least.plan, "needed": needed, "there": there}
                lines.append(_TEXTS["why"](kind=called, **facts))
        return "\n".join(lines if self.fitting else [self.no_fit_reason, *lines[1:]])

    def __str__(self) -> str:
        head = _TEXTS["plans"](
            what=self.sizes.name or _TEXTS["model"], billions=self.sizes.parameters / 1e9, gpus=self.gpus,
            gpu=self.gpu.name, batch=self.batch, seq=self.sizes.seq, peak=self.gpu.flops / 1e12,
        )  # fmt: skip
        return f"{head}\n{self.table()}"

    __repr__ = __str__


def plans(
    sizes: Sizes, gpus: int, gpu: Accelerator, batch: int | None = None, *, solve: bool = False, **layout: Any
) -> Plans:
    """Try every plan for ``sizes`` on ``gpus`` GPUs.

    batch    sequences a step; by default about four million tokens' worth, at least one a GPU.
    solve    whether to find, for each layout, the largest micro-batch that fits, instead of trying five.
    layout   fields of :class:`.settings.Plan` that are given, such as tp=2.
    """
    gpus = integer("gpus", gpus, 1)
    if batch is None:
        each = max(1, round(4 * 2**20 / sizes.seq / gpus))
        batch = gpus << (each.bit_length() - 1)
    batch = integer("batch", batch, 1)
    forecasts, refused = list[Forecast](), None
    for plan in candidate_plans(sizes, gpus, gpu, batch, solve, layout):
        try:
            forecasts.append(_largest(sizes, plan, gpu, batch) if solve else forecast(sizes, plan, gpu))
        except ValueError as error:  # what cannot be cut
            refused = error
    if not forecasts:
        given = "".join(f", {name}={value}" for name, value in layout.items())
        raise refused or wrong(
            en=f"no plan: {gpus} GPUs cannot share a batch of {batch} sequences evenly{given}",
            zh=f"没有方案：{gpus} 块 GPU 无法均分 {batch} 条序列的批次{given}",
        )
    fitting = sorted((one for one in forecasts if one.fits), key=lambda one: (-one.tokens, one.peak))
    return Plans(sizes, gpus, gpu, batch, tuple(fitting), tuple(one for one in forecasts if not one.fits))


def candidate_plans(
    sizes: Sizes, gpus: int, gpu: Accelerator, batch: int, solve: bool, layout: Mapping[str, Any]
) -> Iterator[Plan]:
    """Yield every plan worth trying: tensor parallelism within a node (with sequence parallelism), whole heads, layers
    and experts; fields of ``layout`` as given.
    """
    fixed = dict(layout)
    names = ("dp", "tp", "pp", "ep", "micro", "stage", "recompute")
    searched = {name: fixed.pop(name) for name in names if name in fixed}

    def values(name: str, usual: Iterable[Any]) -> Iterable[Any]:
        return (searched[name],) if name in searched else usual

    for tp in values("tp", _divisors(gpus)):
        if "tp" not in searched and (tp > gpu.links.machine_size or (sizes.kv_heads or tp) % tp):
            continue
        for pp in values("pp", _divisors(gpus // tp)):
            dp, rest = divmod(gpus, tp * pp)
            if rest or dp != searched.get("dp", dp) or batch % dp:
                continue
            experts = [one for one in _divisors(dp * tp) if one % tp == 0] if sizes.experts else []
            some = "pp" in searched or sizes.layers >= 4 * pp  # a layer more is little to wait for
            uneven = {"spread": "uneven"} if some and sizes.layers % pp else {}
            for ep, micro, stage, recompute in product(
                values("ep", sorted({1, *experts})), values("micro", (1,) if solve else _MICRO),
                values("stage", _STAGES if dp > 1 else (0,)), values("recompute", (False, True)),
            ):  # fmt: skip
                many, left = divmod(batch, dp * micro)
                if many < (pp if pp > 1 else 1) or (left and "micro" not in searched):
                    continue
                if stage > 1 and pp > 1 and "stage" not in searched:
                    continue  # gradients stay whole while a pipeline fills them
                sp = tp > 1 and ("gathered" if stage == 3 else True)  # PyTorch's, or Megatron's
                rest = {"sp": sp, "ep": ep, **uneven, **fixed}
                yield Plan(dp, tp, pp, stage, micro, many, recompute, **rest)


def _largest(sizes: Sizes, plan: Plan, gpu: Accelerator, batch: int) -> Forecast:
    """Forecast ``plan`` with the largest micro-batch that fits, of which each pipeline has at least pp, or with 1."""

    def try_micro(micro: int) -> Forecast:
        return forecast(sizes, replace(plan, micro=micro, many=batch // (plan.dp * micro)), gpu)

    least, most = 1, batch // plan.dp // plan.pp + 1  # the least fits, if any does; the most is too much
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if try_micro(middle).fits else (least, middle)
    return try_micro(least)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
