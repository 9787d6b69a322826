"""Run one training under several layouts, and compare them (``labkit.parity``)."""

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
from math import isnan
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.base.display import Drawn
from labkit.base.language import say, wrong
from labkit.base.numbers import integer
from labkit.view import picture_registry
from labkit.view.picture import Picture
from labkit_diagnose.findings import list_some
from labkit_diagnose.result import Finding, finding_lines

from ..diagnosis.failures import find_failure
from ..rank.rank import Rank, current_thread_rank
from ..rank.system_calls import RankExit
from ..threads.world import RanksFailed, World
from ..torchrun.script import RankProgram
from .judging import LayoutComparison, LayoutRun, find_standstill, fitting_losses
from .layouts import RunLayout, read_layouts
from .matching import assemble, find_matches
from .recording import TrainingObserver
from .words import PHRASES


@dataclass(frozen=True)
class ParityLayout:
    """A layout's training, compared with that of the first layout.

    name        "2 ranks --tp 2"; ``ranks`` and ``arguments`` are its parts.
    losses      the loss of each step, and ``norms`` the norm of the whole gradient.
    same        whether everything that was compared is equal up to rounding; None if nothing could be compared.
    cause       what the difference suggests ("denominator", "reduction", "rows", …), or "".
    finding     the difference in words, or None; ``first`` the first tensor that differs; ``step`` in which step.
    gaps        the relative difference of each gradient in the first step, in backward order.
    tolerance   the largest difference that counts as rounding.
    uncompared  reasons why something could not be compared; ``notes`` what was made equal.
    """

    name: str
    ranks: int
    arguments: tuple[str, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    same: bool | None
    cause: str = ""
    finding: Finding | None = None
    first: str = ""
    step: int = 0
    gaps: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    uncompared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
        """Whether all layouts are the same training; None if some could not be compared and none differs."""
        found = [one.same for one in self.layouts]
        return False if False in found else None if None in found else True

    @property
    def exit_code(self) -> int:
        """0: the same training. 1: a layout differs, fails or does not train. 3: something could not be compared."""
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

    def __repr__(self) -> str:
        lines = [f"{self.script}{say(en=': ', zh='：')}{_verdict_text(self.same)}", "", *self._table()]
        for one in self.layouts:
            lines += ["", f"{one.name}", *finding_lines(one.finding)] if one.finding is not None else []
        for title, kept in (
            (say(en="Not compared:", zh="没有比较的："), "uncompared"),
            (say(en="Made equal:", zh="改成相同的："), "notes"),
        ):
            said = [f"  {text}" for one in self.layouts for text in getattr(one, kept)]
            lines += ["", title, *said] if said else []
        return "\n".join(lines)

    def _table(self) -> list[str]:
        """Return a table: for each layout the verdict, and loss and norm of up to ten steps."""
        steps = max(len(one.losses) for one in self.layouts)
        shown = sorted({round(at * (steps - 1) / 9) for at in range(10)}) if steps > 10 else range(steps)
        lines = []
        for number, one in enumerate(self.layouts):
            worst = max(one.gaps, key=lambda name: one.gaps[name], default="")
            gap = f"{one.gaps[worst]:.1e} {worst}" if worst else ""
            told = (
                say(en="reference", zh="参照")
                if not number and one.same
                else _verdict_text(one.same, one.cause)
            )
            lines.append(
                f"  [{number + 1}] {one.name}{say(en=': ', zh='：')}{told}" + (f" ({gap})" if gap else "")
            )
        lines += [
            "",
            say(en="  step", zh="  步  ")
            + "".join(f"{f'loss [{n}]':>13}{f'norm [{n}]':>13}" for n in range(1, len(self.layouts) + 1)),
        ]
        for step in shown:
            cells = [
                (values[step] if step < len(values) else float("nan"))
                for one in self.layouts
                for values in (one.losses, one.norms)
            ]
            lines.append(
                f"  {step + 1:>4}" + "".join(f"{'-' if isnan(cell) else f'{cell:.6g}':>13}" for cell in cells)
            )
        return lines


def _verdict_text(same: bool | None, cause: str = "") -> str:
    if same is None:
        return say(en="not compared", zh="没有比较")
    if same:
        return say(en="the same training, up to rounding", zh="同样的训练（舍入误差以内）")
    return say(en="not the same training", zh="不是同样的训练") + (f" [{cause}]" if cause else "")


def parity(
    script: str | os.PathLike[str] | Callable[[Rank], Any],
    layouts: Sequence[int | str | RunLayout] = (1, 2),
    *,
    ranks: Sequence[int] = (),
    steps: int = 10,
) -> Parity:
    """Run one training under several layouts of simulated ranks, and say whether it is the same training.

    All layouts start from the first one's weights and run up to ``steps`` optimizer steps. Losses, the rows that reach
    the loss, and each gradient of the first two steps are compared; then updates, replicas and later steps.

    script    the path of a script for torchrun; or a function that takes a :class:`Rank`, and reads ``sys.argv``.
    layouts   numbers of ranks, or the script's arguments in each layout: ``["--tp 1", "--tp 2", "--cp 2 --ep 2"]``. The
              first is the reference: take one GPU if the model fits.
    ranks     the numbers of ranks of the layouts, if their arguments don't tell.

    Raises ValueError for layouts that cannot be read, FileNotFoundError if there is no script.
    """
    steps, chosen = integer("steps", steps, 1), read_layouts(layouts, ranks)
    if not callable(script) and not Path(script).is_file():
        raise wrong(FileNotFoundError, en=f"there is no file {script}", zh=f"没有文件 {script}")
    name = getattr(script, "__name__", "?") if callable(script) else Path(script).name
    run = partial(_run, script, steps)
    reference = run(chosen[0], {})
    wholes = assemble([one.weights.get(0, {}) for one in reference.trainings])
    reference.matches = find_matches([one.weights.get(0, {}) for one in reference.trainings], wholes)
    results = [_result(chosen[0], reference, reference, ())]
    for layout in chosen[1:]:
        other = run(layout, {})
        notes: tuple[str, ...] = ()
        if reference.failure is None and other.failure is None:
            other, notes = _equalize(run, layout, other, wholes)
        results.append(_result(layout, other, reference, notes))
    return Parity(name, tuple(results))


def _picture(found: Parity) -> Picture:
    from ..pictures.parity_curves import parity_picture

    return parity_picture(
        {one.name: one.losses for one in found.layouts if one.losses}, repr(found).split("\n")[0]
    )


picture_registry.pictures[f"{__name__}.Parity"] = _picture


def _equalize(
    run: Callable[..., LayoutRun], layout: RunLayout, first: LayoutRun, wholes: Mapping[str, Tensor]
) -> tuple[LayoutRun, tuple[str, ...]]:
    """Return the run of ``layout`` with the reference's first weights: ``first``, or else another run."""
    first.matches = find_matches([one.weights.get(0, {}) for one in first.trainings], wholes)
    other = {key: one for key, one in first.matches.items() if not one.equal}
    if not other:
        return first, ()
    again = run(layout, {key: wholes[one.name].reshape(-1)[one.places] for key, one in other.items()})
    again.matches = first.matches
    note = PHRASES["equalized"](
        who=str(layout), names=list_some(sorted({one.name for one in other.values()}))
    )
    return again, (note,)


def _run(script: Any, steps: int, layout: RunLayout, start: Mapping[tuple[int, str], Tensor]) -> LayoutRun:
    """Run the script in ``layout`` to its end or ``steps`` optimizer steps, without output."""
    logging.getLogger(__name__).info(str(layout))
    program = (
        RankProgram(os.fspath(script), layout.arguments)
        if not callable(script)
        else _with_arguments(script, layout)
    )
    failure, nothing = None, io.StringIO()
    observer = TrainingObserver(layout.ranks, steps, start)
    with (
        World(layout.ranks, memory="16 TiB") as world,
        observer,
        redirect_stdout(_RankOutput(observer)),
        redirect_stderr(nothing),
    ):
        try:
            world.run(program, to_end=True)
        except RanksFailed as failed:
            if not isinstance(failed.error, RankExit) or failed.error.code:
                failure = failed.rank, failed.error
    return LayoutRun(str(layout), observer.records, observer.trainings, failure)


def _with_arguments(function: Callable[[Rank], Any], layout: RunLayout) -> Callable[[Rank], Any]:
    def run(rank: Rank) -> Any:
        sys.argv = [function.__name__, *layout.arguments]
        return function(rank)

    return run


class _RankOutput(io.TextIOBase):
    """A stream to keep each rank's prints."""

    def __init__(self, observer: TrainingObserver) -> None:
        self._observer = observer

    def write(self, text: str) -> int:
        rank = current_thread_rank()
        return len(text) if rank is None else self._observer.trainings[rank.number].printed.write(text)


def _result(layout: RunLayout, run: LayoutRun, reference: LayoutRun, notes: tuple[str, ...]) -> ParityLayout:
    facts: dict[str, Any] = {"name": str(layout), "ranks": layout.ranks, "arguments": layout.arguments}
    if run.failure is not None:
        found = next(iter(find_failure(run.records, *run.failure)))
        return ParityLayout(**facts, losses=(), norms=(), same=False, cause="fails", finding=found)
    there = fitting_losses(reference, reference.losses_by("mean mean")) if run is not reference else []
    losses, norms = fitting_losses(run, there), run.norms()
    facts |= {"losses": tuple(losses), "norms": tuple(norms)}
    classes = max(one.classes for one in run.trainings)
    dead = find_standstill(str(layout), losses, norms, classes) if run.steps and run.matches else None
    if dead is not None:
        return ParityLayout(**facts, same=False, cause="dead", finding=dead)
    if not run.steps or not run.matches or reference.failure is not None:
        return ParityLayout(**facts, same=None, uncompared=(PHRASES["uncompared.steps"](who=str(layout)),))
    if run is reference:
        return ParityLayout(**facts, same=True)
    comparison = LayoutComparison(run, reference)
    verdict = comparison.judge()
    matched = {one.name for one in run.matches.values()}
    lost = {name for training in run.trainings for name in training.weights[0]} - {
        name for _, name in run.matches
    }
    lost |= set(assemble([one.weights[0] for one in reference.trainings])) - matched
    missed = (
        *verdict.uncompared,
        *((PHRASES["uncompared.names"](who=str(layout), names=list_some(sorted(lost))),) if lost else ()),
    )
    same = False if verdict.finding else True if verdict.compared and not missed else None
    return ParityLayout(
        **facts, same=same, cause=verdict.cause, finding=verdict.finding, first=verdict.first, step=verdict.step,
        gaps=verdict.gaps, tolerance=comparison.tolerance, uncompared=missed, notes=notes,
    )  # fmt: skip
