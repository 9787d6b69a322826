"""Estimate memory and speed of a training run before booking machines.

For a torchrun script, run it on tensors without data; for a model's sizes, estimate every plan; with ``--check``,
compare estimates with measured runs.
"""

from __future__ import annotations

import argparse
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

from labkit.base.language import wrong
from labkit.cost.configs import read_model
from labkit.cost.hardware import accelerator
from labkit.cost.search import plans
from labkit.cost.settings import Plan

from .measured_runs import Errors, errors, parse_value, read_rows
from .usage import MODULE, UsageError, at_least, bad_usage, split_program
from .wording import Wording

_NUMBER = {"type": at_least(1)}
WORDING = Wording(
    "plan",
    hardware={"default": "h100"},
    nproc_per_node=_NUMBER,
    nnodes=_NUMBER | {"default": 1},
    steps=_NUMBER | {"default": 2},
    model={"type": Path},
    gpus=_NUMBER,
    batch=_NUMBER,
    top=_NUMBER | {"default": 12},
    seq=_NUMBER | {"default": 0},
    solve={"choices": ("batch",)},
    layout={"default": ""},
    lora={"default": ""},
    check={"type": Path},
    m=MODULE,
    program={"nargs": argparse.REMAINDER},
)


# Names of a layout's parts on the command line, where they differ from those of labkit.Plan's fields.
_PARTS = {"zero": "stage"}


def run(options: argparse.Namespace) -> int:
    with bad_usage(ValueError):
        _refuse_mixed(options)
        if options.check is not None:
            print(_format_errors(errors(read_rows(options.check))))
            return 0
        kind = accelerator(options.hardware)
        if options.model is not None:
            if not options.gpus:
                raise wrong(en="--model needs --gpus N", zh="--model 还要加上 --gpus N")
            sizes, layout = read_model(options.model, options.seq), _parse_layout(options)
            found = plans(sizes, options.gpus, kind, options.batch, solve=bool(options.solve), **layout)
            print(str(found).split("\n")[0], found.table(options.top), sep="\n")
            return 0 if found.fitting else 1
    if not options.program:
        raise UsageError(
            en="no script given: labkit plan --nproc-per-node 8 train.py",
            zh="没有给出脚本：labkit plan --nproc-per-node 8 train.py",
        )
    script, arguments, module = split_program(options.program, options.module)
    from labkit_ranks.planning.script_plan import plan  # slow: imports torch
    from labkit_ranks.threads.world import RanksFailed

    try:
        each = options.nproc_per_node or kind.links.machine_size
        result = plan(
            script, *arguments, gpus=each * options.nnodes, nodes=options.nnodes, hardware=options.hardware,
            steps=options.steps, module=module,
        )  # fmt: skip
    except RanksFailed as failure:
        frames = traceback.extract_tb(failure.error.__traceback__)
        lines = [one.lineno for one in frames if Path(one.filename).name == Path(script).name]
        line = f" ({Path(script).name}:{lines[-1]})" if lines else ""
        raise UsageError(f"{failure}{line}") from None
    print(result)
    return 0 if result.fits else 1  # type: ignore[union-attr]  # a script's plan has `fits`


def _refuse_mixed(options: argparse.Namespace) -> None:
    """Raise ValueError for options that the chosen kind of plan does not use."""
    source = "--model" if options.model is not None else "--check" if options.check is not None else ""
    if source and options.program:
        script = " ".join(options.program)
        raise wrong(
            en=f"{source} plans without a script: leave out {script!r}, or {source}",
            zh=f"{source} 不需要脚本：请去掉 {script!r}，或者去掉 {source}",
        )
    for name in ("gpus", "batch", "seq", "solve", "layout", "lora", "load_in_4bit"):
        if getattr(options, name) and options.model is None:
            option = "--" + name.replace("_", "-")
            raise wrong(en=f"{option} needs --model FILE", zh=f"{option} 要和 --model 文件 一起用")


def _parse_layout(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a plan that ``--layout``, ``--lora`` and ``--load-in-4bit`` give."""
    layout: dict[str, Any] = {}
    known = [field.name for field in fields(Plan)]
    for part in filter(None, options.layout.split(",")):
        name, _, text = part.partition("=")
        name = _PARTS.get(name, name)
        if name not in known or name in ("many", "lora", "adapted", "bits") or not text:
            parts = "dp, tp, pp, ep, zero, micro, recompute, sp, group, chunks, flash, grads, no_sync, spread"
            raise wrong(
                en=f"--layout: {part!r} is not one of {parts} with a value, such as tp=2",
                zh=f"--layout：{part!r} 不对，应是 {parts} 之一加上值，例如 tp=2",
            )
        layout[name] = parse_value(text)
    if options.lora:
        rank, *names = options.lora.split(",")
        if not rank.isdecimal() or not int(rank):
            raise wrong(
                en=f"--lora must begin with a rank of at least 1, such as 16,q_proj,v_proj, got {options.lora!r}",
                zh=f"--lora 要以不小于 1 的秩开头，例如 16,q_proj,v_proj，现在是 {options.lora!r}",
            )
        layout |= {"lora": int(rank), "adapted": tuple(names)}
    elif options.load_in_4bit:
        raise wrong(
            en="--load-in-4bit needs --lora RANK: weights of 4 bits cannot be trained themselves",
            zh="--load-in-4bit 要和 --lora RANK 一起用：4 位的权重本身不能训练",
        )
    return layout | ({"bits": 4} if options.load_in_4bit else {})


def _format_errors(found: list[Errors]) -> str:
    """Return the errors by set, as a table."""
    lines = [WORDING["errors"]()]
    for one in found:
        time, peak = (
            f"{pair[0]:>10.1%} {pair[1]:>7.1%}" if pair else f"{'-':>10} {'-':>7}"
            for pair in (one.time, one.peak)
        )
        fit = ("/".join(map(str, counts)) if any(counts) else "-" for counts in (one.failed, one.ran))
        regret = f"{one.regret[0]:>12.1%} ({one.regret[1]})" if one.regret else f"{'-':>12}"
        lines.append(f"{one.set:<18} {one.rows:>5} {time}  {peak}  {{:>9}} {{:>11}} {regret}".format(*fit))
        if left := one.contradictory:
            lines.append(WORDING["contradictory"](set=one.set, count=len(left), lines=", ".join(left)))
    return "\n".join(lines)
