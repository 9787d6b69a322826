"""Estimate memory and speed of a training run before booking machines.

For a torchrun script, run it on tensors without data; for a model's sizes, estimate every plan; with ``--check``,
compare estimates with measured runs.
"""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path

from labkit.base.language import wrong
from labkit.cost.hardware import accelerator
from labkit.cost.search import plans
from labkit.cost.sizes import read_sizes

from .measured_runs import Errors, errors, read_rows
from .usage import UsageError, at_least, bad_usage, check_script_exists
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
    check={"type": Path},
    program={"nargs": argparse.REMAINDER},
)


def run(options: argparse.Namespace) -> int:
    with bad_usage(ValueError):
        if options.check is not None:
            skipped: dict[str, list[str]] = {}
            print(_format_errors(errors(read_rows(options.check, skipped))))
            for reason, places in skipped.items():
                listed = ", ".join(places[:3]) + " …" * (len(places) > 3)
                print(WORDING["skipped"](count=len(places), reason=reason, places=listed))
            return 0
        kind = accelerator(options.hardware)
        if options.model is not None:
            if not options.gpus:
                raise wrong(en="--model needs --gpus N", zh="--model 还要加上 --gpus N")
            found = plans(read_sizes(options.model), options.gpus, kind, options.batch)
            print(str(found).split("\n")[0], found.table(options.top), sep="\n")
            return 0 if found.fitting else 1
    if not options.program:
        raise UsageError(
            en="no script given: labkit plan --nproc-per-node 8 train.py",
            zh="没有给出脚本：labkit plan --nproc-per-node 8 train.py",
        )
    script, *arguments = options.program
    check_script_exists(script)
    from labkit_ranks.planning.script_plan import plan  # slow: imports torch
    from labkit_ranks.threads.world import RanksFailed

    try:
        each = options.nproc_per_node or kind.links.machine_size
        result = plan(
            script, *arguments, gpus=each * options.nnodes, nodes=options.nnodes, hardware=options.hardware,
            steps=options.steps,
        )  # fmt: skip
    except RanksFailed as failure:
        frames = traceback.extract_tb(failure.error.__traceback__)
        lines = [one.lineno for one in frames if Path(one.filename).name == Path(script).name]
        line = f" ({Path(script).name}:{lines[-1]})" if lines else ""
        raise UsageError(f"{failure}{line}") from None
    print(result)
    return 0 if result.fits else 1  # type: ignore[union-attr]  # a script's plan has `fits`


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
