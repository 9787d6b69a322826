"""Run one training under several layouts and compare the runs (``labkit.parity``)."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.base.display import Drawn
from labkit.base.language import say, wrong
from labkit.base.numbers import integer
from labkit.base.tree import map_tensors, tensors_in
from labkit.view import picture_registry
from labkit.view.picture import Picture
from labkit_diagnose.findings import list_some
from labkit_diagnose.result import Finding, finding_lines

from ..diagnosis.failures import describe_error, raising_line
from ..diagnosis.one_gpu import batch_key, join_batches
from ..rank.rank import Rank, current_thread_rank
from ..rank.system_calls import RankExit
from ..threads.world import RanksFailed, World
from ..torchrun.script import RankProgram
from .judging import LayoutComparison, LayoutRun
from .layouts import RunLayout, read_layouts
from .matching import assemble, find_matches
from .recording import TrainingObserver
from .words import CAUSES, PHRASES


@dataclass(frozen=True)
class ParityLayout:
    """A layout's training, compared with that of the first layout.

    name        "2 ranks --tp 2"; ``ranks`` and ``arguments`` are its parts.
    losses      the loss of each step; ``norms`` the norm of the whole gradient, before clipping.
    same        whether everything that was compared is equal up to rounding; None if something was not compared.
    cause       what the difference suggests ("denominator", "reduction", "rows", …), or "".
    finding     the difference in words, or None; ``first`` the first tensor that differs; ``step`` in which step.
    gaps        the relative difference of each gradient in the first step, in backward order.
    tolerance   the largest difference that counts as rounding.
    uncompared  reasons why something could not be compared; ``notes`` what was made equal.
    """

    name: str
    ranks: int
    arguments: tuple[str, ...]
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    same: bool | None = None
    cause: str = ""
    finding: Finding | None = None
    first: str = ""
    step: int = 0
    gaps: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    uncompared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def verdict(self) -> str:
        """Return the verdict, with the cause and the largest difference of a gradient."""
        if self.same is None:
            return say(en="not compared", zh="没有比较")
        worst = max(self.gaps.items(), key=lambda one: one[1], default=None)
        gap = f" ({worst[1]:.1e} {worst[0]})" if worst else ""
        if self.same:
            return (
                say(en="the same training", zh="同样的训练") if worst else say(en="reference", zh="参照")
            ) + gap
        return say(en="not the same training", zh="不是同样的训练") + f" [{self.cause}]" + gap


@dataclass(frozen=True, repr=False)
class Parity(Drawn):
    """The result of :func:`parity`: ``layouts`` of ``script``; the first is the reference.

    A notebook shows the curves of all layouts, and beside them their differences on a logarithmic scale.
    """

    script: str
    layouts: tuple[ParityLayout, ...]

    @property
    def reference(self) -> ParityLayout:
        return self.layouts[0]

    @property
    def same(self) -> bool | None:
        """Whether all layouts are the same training; None if none differs and something was not compared."""
        found = [one.same for one in self.layouts]
        return False if False in found else None if None in found else True

    @property
    def exit_code(self) -> int:
        """0: the same training. 1: a layout differs, fails or does not train. 3: something was not compared."""
        return {True: 0, False: 1, None: 3}[self.same]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(one.finding for one in self.layouts if one.finding is not None)

    def differences(self, of: str = "losses") -> dict[str, tuple[float, ...]]:
        """Return for each layout the relative differences of its ``losses`` or ``norms`` from the reference's."""
        there = getattr(self.reference, of)
        return {
            one.name: tuple(
                abs(a - b) / max(abs(b), 1e-30) for a, b in zip(getattr(one, of), there, strict=False)
            )
            for one in self.layouts
        }

    def __getitem__(self, at: int | str) -> ParityLayout:
        """Return a layout by number, or by a part of its name."""
        return (
            self.layouts[at] if isinstance(at, int) else next(one for one in self.layouts if at in one.name)
        )

    def to_json(self) -> str:
        facts = {"script": self.script, "same": self.same, "layouts": [asdict(one) for one in self.layouts]}
        return json.dumps(facts, indent=1, ensure_ascii=False)

    def summary(self) -> str:
        """Return the verdict in one line."""
        count = sum(one.same is False for one in self.layouts)
        key = {True: "same", False: "differs", None: "unknown"}[self.same]
        facts = {"script": self.script, "count": count, "all": len(self.layouts)}
        text = PHRASES[f"summary.{key}"]
        return text(**{name: facts[name] for name in text.facts})

    def __repr__(self) -> str:
        colon = say(en=": ", zh="：")
        lines = [self.summary(), ""]
        lines += [f"  [{at}] {one.name}{colon}{one.verdict()}" for at, one in enumerate(self.layouts, 1)]
        lines += ["", *self._table()]
        said = dict[tuple[str, ...], list[str]]()
        for one in self.layouts:
            if one.finding is not None:
                said.setdefault(tuple(finding_lines(one.finding)), []).append(one.name)
        for text, names in said.items():
            lines += ["", list_some(names), *text]
        for key in ("uncompared", "notes"):
            told = [f"  {text}" for one in self.layouts for text in getattr(one, key)]
            lines += ["", PHRASES[f"title.{key}"](), *told] if told else []
        return "\n".join(lines)

    def _table(self) -> list[str]:
        """Return loss and norm by step and layout: of up to eight steps, or of the first and last with many layouts."""
        steps, many = max(len(one.losses) for one in self.layouts), len(self.layouts) > 4
        shown = sorted(
            {round(at * (steps - 1) / (1 if many else 7)) for at in range(2 if many else 8)} if steps else ()
        )
        loss, norm, step = say(en="loss", zh="损失"), say(en="norm", zh="范数"), say(en="step", zh="步")
        heads = (f"{word} {at + 1}" for at in shown for word in (loss, norm))
        rows = [["", *heads]] if many else [[step, *(f"{at + 1}" for at in shown)]]
        for number, one in enumerate(self.layouts, 1):
            cells = [
                f"{values[at]:.6g}" if at < len(values) else "-"
                for at in shown
                for values in (one.losses, one.norms)
            ]
            pair = ([f"{loss} [{number}]", *cells[::2]], [f"{norm} [{number}]", *cells[1::2]])
            rows += [[f"[{number}]", *cells]] if many else pair
        columns = rows if many else zip(*rows, strict=True)
        return ["  " + "".join(f"{cell:>12}" for cell in row) for row in columns]


def _picture(found: Parity) -> Picture:
    from ..pictures.parity_curves import parity_picture

    return parity_picture({one.name: one.losses for one in found.layouts if one.losses}, found.summary())


picture_registry.pictures[f"{__name__}.Parity"] = _picture


def parity(
    script: str | os.PathLike[str] | Callable[[Rank], Any],
    layouts: Sequence[int | str] = (1, 2),
    *,
    ranks: Sequence[int] = (),
    steps: int = 10,
) -> Parity:
    """Run one training under several layouts of simulated ranks, and say whether it is the same training.

    Run up to ``steps`` optimizer steps. If layouts start from other weights, or their DataLoaders read batches of
    another size, run them again with the first layout's weights, and with their shares of the largest batch. Compare
    loss, rows and each gradient of the first two steps; then updates, replicas, printed norms and later steps.

    script    the path of a script for torchrun; or a function that takes a :class:`Rank`, and may read ``sys.argv``.
    layouts   numbers of ranks, or the script's arguments in each layout: ``["--tp 1", "--tp 2", "--cp 2 --ep 2"]``. The
              first is the reference: take one GPU if the model fits.
    ranks     the numbers of ranks of the layouts, if their arguments don't tell.

    Raises ValueError for layouts that cannot be read, FileNotFoundError if there is no script.
    """
    steps, chosen = integer("steps", steps, 1), read_layouts(layouts, ranks)
    if not callable(script) and not Path(script).is_file():
        raise wrong(FileNotFoundError, en=f"there is no file {script}", zh=f"没有文件 {script}")
    name = getattr(script, "__name__", "?") if callable(script) else Path(script).name
    runs = [_run(script, steps, layout) for layout in chosen]
    notes: list[tuple[str, ...]] = [()] * len(runs)
    ran = [at for at, run in enumerate(runs) if run.failure is None and run.steps]
    if ran[:1] == [0]:
        rows, source = _share_rows([runs[at] for at in ran])
        wholes = assemble([one.weights[0] for one in runs[0].trainings])
        for at, given in zip(ran, rows, strict=True):
            run = runs[at]
            run.matches = find_matches([one.weights[0] for one in run.trainings], wholes)
            other = {key: one for key, one in run.matches.items() if at and not one.equal}
            if other or given:
                start = {key: wholes[one.name].reshape(-1)[one.places] for key, one in other.items()}
                again = _run(script, steps, chosen[at], start, given)
                runs[at], again.matches = again, run.matches
                names = list_some(sorted({one.name for one in other.values()}))
                said = [PHRASES["equalized"](who=run.who, names=names)] * bool(other)
                notes[at] = (*said, *[PHRASES["equalized.rows"](who=run.who, source=source)] * bool(given))
    results = (_result(*one, runs[0]) for one in zip(chosen, runs, notes, strict=True))
    return Parity(name, tuple(results))


def _share_rows(runs: Sequence[LayoutRun]) -> tuple[list[dict[Any, Any]], str]:
    """Return the batches for each run, shares of the largest one, and the name of the run with the largest."""
    joined, shares = [], []
    for run in runs:
        loaders = [one.loaders for one in run.records]
        if not all(some and some[0].batches for some in loaders):
            return [{} for _ in runs], ""  # rows that no DataLoader reads
        keys = [batch_key(some[0].batches[0]) for some in loaders]
        different = list(dict.fromkeys(keys))
        copied = any(len({keys[rank] for rank in one.replicas}) < len(one.replicas) for one in run.records)
        shares.append([(different.index(key), len(different), copied) for key in keys])
        count = min(len(some[0].batches) for some in loaders)
        joined.append([join_batches([some[0].batches[at] for some in loaders]) for at in range(count)])
    sizes = [max(len(one) for one in tensors_in(batches[0]) if one.dim()) for batches in joined]
    source, found = sizes.index(max(sizes)), list[dict[Any, Any]]()
    for size, share in zip(sizes, shares, strict=True):
        # Ranks that reduce gradients and read the same rows are a fault: don't hide it.
        give = size < max(sizes) and not any(copied for *_, copied in share)
        found.append({
            (rank, 0, at): map_tensors(batch, partial(_take_part, part, parts))
            for at, batch in enumerate(joined[source]) for rank, (part, parts, _) in enumerate(share)
        } if give else {})  # fmt: skip
    return found, runs[source].who


def _take_part(part: int, parts: int, _: Any, tensor: Tensor) -> Tensor:
    return tensor.chunk(parts)[part] if tensor.dim() else tensor


def _run(
    script: Any,
    steps: int,
    layout: RunLayout,
    start: Mapping[Any, Any] | None = None,
    rows: Mapping[Any, Any] | None = None,
) -> LayoutRun:
    """Run the script in ``layout`` to its end or ``steps`` optimizer steps, without output."""
    logging.getLogger(__name__).info(str(layout))
    program = RankProgram(os.fspath(script), layout.arguments) if not callable(script) else script
    observer, failure = TrainingObserver(layout.ranks, steps, start, rows), None

    def run(rank: Rank) -> None:
        sys.argv = [str(script), *layout.arguments]
        program(rank)

    with (
        World(layout.ranks, memory="16 TiB") as world,
        observer,
        redirect_stdout(_RankOutput(observer)),
        redirect_stderr(io.StringIO()),
    ):
        try:
            world.run(run, to_end=True)
        except RanksFailed as failed:
            if not isinstance(failed.error, RankExit) or failed.error.code:
                failure = failed.rank, failed.error
    return LayoutRun(str(layout), observer.trainings, failure)


class _RankOutput(io.TextIOBase):
    """A stream to keep each rank's prints."""

    def __init__(self, observer: TrainingObserver) -> None:
        self._observer = observer

    def write(self, text: str) -> int:
        rank = current_thread_rank()
        return len(text) if rank is None else self._observer.trainings[rank.number].printed.write(text)


def _result(layout: RunLayout, run: LayoutRun, notes: tuple[str, ...], reference: LayoutRun) -> ParityLayout:
    facts: dict[str, Any] = {
        "name": str(layout),
        "ranks": layout.ranks,
        "arguments": layout.arguments,
        "notes": notes,
    }
    if run.failure is not None:
        rank, error = run.failure
        found = CAUSES["fails"](raising_line(error), who=f"rank {rank}", problem=describe_error(error))
        return ParityLayout(**facts, same=False, cause="fails", finding=found)
    if not run.matches:
        why = "steps" if not run.steps else "others"
        return ParityLayout(**facts, uncompared=(PHRASES[f"uncompared.{why}"](who=run.who),))
    losses = run.losses(reference.losses())
    facts |= {"losses": tuple(losses), "norms": tuple(run.norms())}
    if why := run.standstill(losses):
        return ParityLayout(**facts, same=False, cause="dead", finding=CAUSES["dead"](why=why))
    if run is reference:
        return ParityLayout(**facts, same=True)
    one = LayoutComparison(run, reference)
    known = {name for training in reference.trainings for name in training.weights[0]}
    lost = known - {match.name for match in run.matches.values()}
    lost |= {n for at, o in enumerate(run.trainings) for n in o.weights[0] if (at, n) not in run.matches}
    missed = one.uncompared
    if lost:
        missed += (PHRASES["uncompared.names"](who=run.who, names=list_some(sorted(lost))),)
    return ParityLayout(
        **facts, same=False if one.finding else None if missed or not one.gaps else True, cause=one.cause,
        finding=one.finding, first=one.first, step=one.step if one.finding else 0, gaps=one.gaps,
        tolerance=one.tolerance, uncompared=missed,
    )  # fmt: skip
