"""``labkit.plan``: what a training run needs, and how fast it will be."""

from __future__ import annotations

from pathlib import Path

from ...base.language import say
from ...cost.hardware import accelerator
from ...cost.search import Plans, plans
from ...cost.sizes import Sizes, read_sizes
from ..torchrun.script import Program
from .measured import ScriptPlan
from .measuring import measure


def plan(
    what: Sizes | str | Path, *arguments: str, gpus: int = 8, hardware: str = "h100", nodes: int = 1,
    batch: int | None = None, steps: int = 2,
) -> Plans | ScriptPlan:  # fmt: skip
    """Plan a training run on ``gpus`` GPUs; the object that it returns shows itself in a notebook.

    what       the sizes of a model (a :class:`labkit.Sizes`, or a TOML file with them): the plans that fit, fastest
               first. A script for torchrun, with its ``arguments``: the memory of each of its ranks.
    hardware   "h100", "a100", "a100-40", "h200", "b200".
    nodes      over how many machines a script's ranks are spread.
    batch      sequences a step, for all GPUs together (of sizes).
    steps      of the optimizer that a script makes before it is ended.

    Raises ValueError for what cannot be planned, RanksFailed if the script fails.
    """
    kind = accelerator(hardware)
    if isinstance(what, Sizes):
        return plans(what, gpus, kind, batch)
    path = Path(what)
    if not path.exists():
        raise ValueError(say(en=f"no such file: {path}", zh=f"没有文件 {path}"))
    if path.suffix == ".toml":
        return plans(read_sizes(path), gpus, kind, batch)
    if gpus % nodes:
        raise ValueError(
            say(
                en=f"{gpus} GPUs cannot be {nodes} equal nodes",
                zh=f"{gpus} 块 GPU 分不成 {nodes} 个相同的节点",
            )
        )
    found = measure(
        Program(str(path), arguments), gpus, nodes, memory=int(kind.memory), steps=steps, times=kind
    )
    return ScriptPlan(path.name, kind, tuple(found), steps)
