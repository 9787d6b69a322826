"""Run one training under several layouts and compare the runs (``labkit.parity``)."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import Tensor

from labkit.base.display import Drawn
from labkit.base.language import say
from labkit.base.numbers import integer
from labkit.base.tree import tensors_in
from labkit.view import picture_registry
from labkit_diagnose.findings import list_some
from labkit_diagnose.result import finding_lines

from ..diagnosis.one_gpu import batch_key, join_batches
from ..rank.rank import Rank
from ..rank.system_calls import RankExit
from ..threads.world import RanksFailed, World
from ..torchrun.script import RankProgram
from .judging import LayoutComparison, LayoutRun, ParityLayout
from .layouts import RunLayout, read_layouts
from .recording import TrainingObserver


@dataclass(frozen=True, repr=False)
class Parity(Drawn):
    """The result of :func:`parity`: ``layouts`` of ``script``; the first is the reference.

    A notebook shows the curves of all layouts, and beside them their differences on a logarithmic scale.
    """

    script: str
    layouts: tuple[ParityLayout, ...]

    @property
    def same(self) -> bool | None:
        """Whether all layouts are the same training; None if none differs and something was not compared."""
        found = [one.same for one in self.layouts]
        return False if False in found else None if None in found else True

    @property
    def exit_code(self) -> int:
        """0: the same training. 1: a layout differs, fails or does not train. 3: something was not compared."""
        return {True: 0, False: 1, None: 3}[self.same]

    def to_json(self) -> str:
        facts = {"script": self.script, "same": self.same, "layouts": [asdict(one) for one in self.layouts]}
        return json.dumps(facts, indent=1, ensure_ascii=False)

    def summary(self) -> str:
        """Return the verdict in one line."""
        every, count = len(self.layouts), sum(one.same is False for one in self.layouts)
        verb = "is" if count == 1 else "are"
        texts = {
            True: say(en=f"{every} layouts train the same, up to rounding",
                      zh=f"{every} 种布局是同样的训练，只差舍入误差"),
            None: say(en="not everything could be compared", zh="有的没有比较"),
            False: say(en=f"{count} of {every} layouts {verb} not the same training",
                       zh=f"{every} 种布局里有 {count} 种不是同样的训练"),
        }  # fmt: skip
        return self.script + say(en=": ", zh="：") + texts[self.same]

    def __repr__(self) -> str:
        """Return one page: verdicts, loss and norm of up to eight steps, the differences, and what was not compared."""
        lines, colon = [self.summary(), ""], say(en=": ", zh="：")
        lines += [f"  [{at}] {one.name}{colon}{one.verdict()}" for at, one in enumerate(self.layouts, 1)]
        last = max(len(one.losses) for one in self.layouts) - 1
        shown = sorted({round(at * last / 7) for at in range(8)} if last >= 0 else ())
        rows = [[say(en="step", zh="步"), *(f"{at + 1}" for at in shown)]]
        loss, norm = say(en="loss", zh="损失"), say(en="norm", zh="范数")
        for number, one in enumerate(self.layouts, 1):
            for word, values in ((loss, one.losses), (norm, one.norms)):
                cells = (f"{values[at]:.6g}" if at < len(values) else "-" for at in shown)
                rows.append([f"{word} [{number}]", *cells])
        columns = rows if len(self.layouts) > 4 else zip(*rows, strict=True)
        lines += ["", *("  " + "".join(f"{cell:>12}" for cell in row) for row in columns)] if shown else []
        for finding in dict.fromkeys(one.finding for one in self.layouts if one.finding is not None):
            names = [one.name for one in self.layouts if one.finding == finding]
            lines += ["", list_some(names), *finding_lines(finding)]
        for title, parts in (
            (say(en="Not compared:", zh="没有比较的："), [one.uncompared for one in self.layouts]),
            (say(en="Made equal:", zh="改成相同的："), [one.notes for one in self.layouts]),
        ):
            lines += ["", title, *(f"  {text}" for part in parts for text in part)] if any(parts) else []
        return "\n".join(lines)


def _picture(found: Parity) -> Any:
    from ..pictures.parity_curves import parity_picture

    return parity_picture({one.name: one.losses for one in found.layouts if one.losses}, found.summary())


picture_registry.pictures[f"{__name__}.Parity"] = _picture


def parity(
    script: str | os.PathLike[str] | Callable[[Rank], Any],
    layouts: Sequence[int | str] = (1, 2),
    *,
    ranks: Sequence[int] = (),
    steps: int = 10,
    module: bool = False,
) -> Parity:
    """Run one training under several layouts of simulated ranks, and say whether it is the same training.

    Run up to ``steps`` optimizer steps. If layouts start from other weights, or their DataLoaders read batches of
    another size, run them again with the first layout's weights, and with their shares of the largest batch. Compare
    loss, rows and each gradient of the first two steps; then updates, replicas, printed norms and later steps.

    script    the path of a script for torchrun, or with ``module`` the name of a module; or a function that takes a
              :class:`Rank`, and may read ``sys.argv``.
    layouts   numbers of ranks, or the script's arguments in each layout: ``["--tp 1", "--tp 2", "--cp 2 --ep 2"]``. The
              first is the reference: take one GPU if the model fits.
    ranks     the numbers of ranks of the layouts, if their arguments don't tell.

    Raises ValueError for layouts that cannot be read, FileNotFoundError if there is no script.
    """
    steps, chosen = integer("steps", steps, 1), read_layouts(layouts, ranks)
    if callable(script):
        name = getattr(script, "__name__", "?")
    else:
        program = RankProgram(os.fspath(script), module=module)
        program.check_exists()
        name = program.name
    run = partial(_run, script, module, steps)
    runs, start = list[LayoutRun](), dict[str, Tensor]()
    for layout in chosen:
        runs.append(run(layout, start))
        start = start or runs[0].wholes(0, "weights")
    for at, source, shares in _share_rows(runs) if all(run.trains for run in runs) else ():
        runs[at] = run(chosen[at], start, source, shares)
    return Parity(name, tuple(LayoutComparison(run, runs[0]).result() for run in runs))


def _share_rows(runs: Sequence[LayoutRun]) -> list[tuple[int, LayoutRun, list[tuple[int, int]]]]:
    """Return which runs need rows of another: the one whose DataLoaders read most, and each rank's part of how many."""
    sizes, shares = list[int](), list[list[tuple[int, int]]]()
    for run in runs:
        loaders = [one.loaders[0] for one in run.trainings if one.loaders]
        batches = [loader.batches[0] for loader in loaders if loader.batches]
        if len(batches) < len(run.trainings):
            return []  # rows that no DataLoader reads
        keys = [batch_key(batch) for batch in batches]
        different = list(dict.fromkeys(keys))
        # Ranks that reduce gradients and read the same rows are a fault: don't hide it.
        copied = any(len({keys[rank] for rank in one.replicas}) < len(one.replicas) for one in run.trainings)
        shares.append([] if copied else [(different.index(key), len(different)) for key in keys])
        sizes.append(max(len(one) for one in tensors_in(join_batches(batches)) if one.dim()))
    source = runs[sizes.index(max(sizes))]
    smaller = [at for at, share in enumerate(shares) if share and sizes[at] < max(sizes)]
    return [(at, source, shares[at]) for at in smaller if not runs[at].reads_rows_of(source)]


def _run(
    script: Any, module: bool, steps: int, layout: RunLayout, start: dict[str, Tensor],
    source: LayoutRun | None = None, shares: Sequence[tuple[int, int]] = (),
) -> LayoutRun:  # fmt: skip
    """Run the script in ``layout`` to its end or ``steps`` optimizer steps, without output."""
    logging.getLogger(__name__).info(str(layout))
    program = RankProgram(os.fspath(script), layout.arguments, module) if not callable(script) else script
    observer = TrainingObserver(layout.ranks, steps, start, source.trainings if source else (), shares)
    world, printed, failure = World(layout.ranks, memory="16 TiB"), io.StringIO(), None

    def run(rank: Rank) -> None:
        sys.argv = [str(script), *layout.arguments]
        program(rank)

    with world, observer, redirect_stdout(printed), redirect_stderr(printed):
        try:
            world.run(run, to_end=True)
        except RanksFailed as failed:
            if not isinstance(failed.error, RankExit) or failed.error.code:
                failure = failed.rank, failed.error
    return LayoutRun(layout, observer.trainings, printed.getvalue(), failure, source.who if source else "")
