"""``labkit.plan``: the memory and speed of a training run, as an object that shows itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.base.display import Drawn
from labkit.base.language import say, wrong
from labkit.base.texts import texts_beside
from labkit.base.units import bytes_text, duration
from labkit.cost.configs import read_model
from labkit.cost.hardware import Accelerator, accelerator
from labkit.cost.plan import KINDS
from labkit.cost.search import Plans, plans
from labkit.cost.sizes import Sizes
from labkit.view import picture_registry
from labkit.view.picture import Picture

from ..pictures.captions import caption
from ..torchrun.script import RankProgram
from .measuring import measure
from .memory_account import RankPlan

_TEXTS = texts_beside(__file__)


@dataclass(frozen=True)
class ScriptPlan(Drawn):
    """The memory of each rank's GPU after at most ``steps`` steps of ``script``, to compare with ``gpu``."""

    script: str
    gpu: Accelerator
    ranks: tuple[RankPlan, ...]
    steps: int

    @property
    def fits(self) -> bool:
        return all(one.peak <= self.gpu.memory for one in self.ranks)

    @property
    def run(self) -> tuple[RankPlan, ...]:
        """The ranks that were run."""
        return tuple(one for one in self.ranks if one.like == one.rank)

    def label_equivalent_ranks(self, rank: int) -> str:
        """Return ``rank`` and the ranks taken to be equal: "0–31"."""
        same = [one.rank for one in self.ranks if one.like == rank]
        return f"{same[0]}" + f"–{same[-1]}" * (len(same) > 1)

    def __str__(self) -> str:
        most = max(self.ranks, key=lambda one: one.peak)
        gpu, peak = self.gpu.name, bytes_text(most.peak)
        verdict = _TEXTS["fits"](gpu=gpu)
        if not self.fits:
            verdict = _TEXTS["too-much"](gpu=gpu, rank=most.rank, peak=peak)
        size, steps = bytes_text(int(self.gpu.memory)), max(one.steps for one in self.ranks)
        facts = {"script": self.script, "ranks": len(self.ranks), "steps": steps}
        lines = [_TEXTS["head"](verdict=verdict, size=size, **facts)]
        for one in self.run:
            kinds = [f"{KINDS[kind]} {bytes_text(held)}" for kind, held in one.at_peak.items() if held]
            words = _TEXTS["rank"](
                ranks=self.label_equivalent_ranks(one.rank), after=bytes_text(sum(one.allocated.values())),
                line=one.line, peak=bytes_text(one.peak), phase=_TEXTS.get(("phase", one.phase), ""),
            )  # fmt: skip
            lines += [f"  {words}", f"    {_join(kinds)}"]
            if one.elsewhere:
                lines.append(f"    {_TEXTS['elsewhere'](gpu=one.elsewhere)}")
        if most.steps == 1 and most.at_peak.get("optimizer", 0) < most.allocated.get("optimizer", 0):
            lines.append(f"  {_TEXTS['first'](states=bytes_text(most.allocated['optimizer']))}")
        if any(one.routed for one in self.ranks):
            lines.append(f"  {_TEXTS['routed']}")
        return "\n".join(lines + self._time())

    def _time(self) -> list[str]:
        """Return lines about the step of the slowest rank."""
        slow = max(self.ranks, key=lambda one: sum(one.parts.values()))
        took = sum(slow.parts.values())
        if not took:
            return []
        parts = [f"{caption('plan', k)} {duration(s)}" for k, s in slow.parts.items() if s > took / 1000]
        reached = slow.operations / took / self.gpu.flops
        return [
            f"  {_TEXTS['step'](took=duration(took), parts=_join(parts))}",
            f"    {_TEXTS['reached'](reached=reached, peak=self.gpu.flops / 1e12)}",
        ]

    __repr__ = __str__


def _join(parts: list[str]) -> str:
    return say(en=", ", zh="、").join(parts)


def _picture(found: ScriptPlan) -> Picture:
    from ..pictures.plan_stacks import ranks_memory_picture

    rows = [(f"rank {found.label_equivalent_ranks(one.rank)}", one.at_peak) for one in found.run]
    return ranks_memory_picture(rows, found.gpu.memory, str(found).split("\n")[0])


picture_registry.pictures[f"{__name__}.ScriptPlan"] = _picture


def plan(
    what: Sizes | str | Path, *arguments: str, gpus: int = 8, hardware: str = "h100", nodes: int = 1,
    batch: int | None = None, steps: int = 2, seq: int = 0, solve: bool = False, module: bool = False, **layout: Any,
) -> Plans | ScriptPlan:  # fmt: skip
    """Plan a training run on ``gpus`` GPUs; the returned object shows itself in a notebook.

    what       the sizes of a model (a :class:`labkit.Sizes`, a TOML file, or Hugging Face's config.json): plan from
               sizes, fastest plans first. Or a script for torchrun (with ``module``, the name of a module), with its
               ``arguments``: measure the memory of each rank.
    hardware   "h100", "h200", "b200", "a100", "a100-40", "h800", "h20", "a800", "l20", "4090".
    nodes      the number of machines for a script's ranks.
    batch      sequences per step on all GPUs together (for sizes). ``seq``: tokens in a sequence.
    solve      whether to find the largest micro-batch that fits, for each layout.
    layout     fields of :class:`labkit.Plan` that are given, such as tp=2, or lora=16.
    steps      optimizer steps after which a script is ended.

    Raises ValueError for impossible plans, FileNotFoundError if there is no such file, RanksFailed if the script fails.
    """
    kind = accelerator(hardware)
    if isinstance(what, Sizes):
        return plans(what, gpus, kind, batch, solve=solve, **layout)
    program = RankProgram(str(what), arguments, module)
    program.check_exists()
    path = Path(what)
    if path.suffix in (".toml", ".json") or path.is_dir():
        return plans(read_model(path, seq), gpus, kind, batch, solve=solve, **layout)
    if gpus % nodes:
        en, zh = f"{gpus} GPUs cannot be {nodes} equal nodes", f"{gpus} 块 GPU 分不成 {nodes} 个相同的节点"
        raise wrong(en=en, zh=zh)
    found = measure(program, gpus, nodes, memory=int(kind.memory), steps=steps, times=kind)
    return ScriptPlan(program.name, kind, tuple(found), steps)
