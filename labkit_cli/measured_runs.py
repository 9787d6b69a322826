"""Read tables of measured runs, and measure the model's errors on them: ``labkit plan --check``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from labkit.base.language import wrong
from labkit.base.numbers import one_of
from labkit.cost.hardware import ACCELERATORS, Accelerator
from labkit.cost.plan import Forecast, forecast
from labkit.cost.settings import SOFTWARE, Plan, check_plan
from labkit.cost.sizes import Sizes

_REQUIRED = (
    "set gpu layers hidden heads ffn vocab seq dp tp pp stage micro many trainer seconds peak_GiB".split()
)
_WORDS = {"yes": True, "no": False}


@dataclass(frozen=True)
class Row:
    """A measured run. ``seconds`` of a step, or None; ``peak`` in bytes, or None; ``fits``: it was not out of memory.

    set       the source that it belongs to, ``line`` its place there.
    software  a key of SOFTWARE.
    batch     sequences of a step, as the row says.
    """

    set: str
    line: str
    gpu: str
    sizes: Sizes
    plan: Plan
    software: str
    batch: int
    seconds: float | None
    peak: float | None
    fits: bool = True

    @property
    def problem(self) -> tuple[object, ...]:
        """The facts that are the same for rows that only the plan and the batch tell apart."""
        sizes = self.sizes
        facts = (sizes.name, sizes.layers, sizes.hidden, sizes.heads, sizes.seq)
        return (self.set, self.gpu, self.plan.gpus, *facts)

    @property
    def smi(self) -> bool:
        """Whether ``peak`` is nvidia-smi's, and not PyTorch's allocator's."""
        return SOFTWARE[self.software].flat

    def forecast(self, known: Mapping[str, Accelerator] = ACCELERATORS) -> Forecast:
        return forecast(self.sizes, self.plan, known[self.gpu], SOFTWARE[self.software])


def read_rows(path: str | Path) -> list[Row]:
    """Return the rows of a table. Raises ValueError, with file and line, for a missing column and an invalid cell."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            if missing := ", ".join(name for name in _REQUIRED if name not in (table.fieldnames or ())):
                raise wrong(en=f"{path}:1: columns are missing: {missing}", zh=f"{path}:1：缺少列 {missing}")
            rows = []
            for cells in table:
                try:
                    rows.append(_row({name: text.strip() for name, text in cells.items() if text}))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{path}:{table.line_num}: {error}") from None
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None


def _row(cells: Mapping[str, str]) -> Row:
    sizes, plan = Sizes(**_read_fields(Sizes, cells)), Plan(**_read_fields(Plan, cells))
    check_plan(sizes, plan)
    fits = "OOM" not in (cells.get("seconds"), cells.get("peak_GiB"))
    peak = _number(cells, "peak_GiB") if fits else None
    return Row(
        cells["set"],
        cells.get("line", ""),
        one_of("gpu", cells.get("gpu", ""), ACCELERATORS),
        sizes,
        plan,
        one_of("trainer", cells.get("trainer", ""), SOFTWARE),
        int(_number(cells, "batch") or plan.dp * plan.micro * plan.many),
        _number(cells, "seconds") if fits else None,
        peak and peak * 2**30,
        fits,
    )


def _read_fields(kind: type[Sizes | Plan], cells: Mapping[str, str]) -> dict[str, Any]:
    return {one.name: parse_value(cells[one.name]) for one in fields(kind) if one.name in cells}


def parse_value(text: str) -> Any:
    """Return the value of a field of a plan or of sizes: a whole number, yes or no, or a word."""
    return int(text) if text.isdecimal() else _WORDS.get(text, text)


def _number(cells: Mapping[str, str], name: str) -> float | None:
    """Return the number in a column, or None if the cell is empty."""
    text = cells.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise wrong(en=f"column {name}: {text!r} is no number", zh=f"列 {name}：{text!r} 不是数") from None


@dataclass(frozen=True)
class Errors:
    """The errors of one set, as shares: mean and worst of time and of peak memory, and the mean regret.

    regret   how much longer the plan takes that the model chooses than the best measured one, over problems with
             three plans or more.
    failed   how many rows that were out of memory have the verdicts "no", "close" and "fits"; ``ran``: of those that
             ran.
    contradictory   rows left out of regret, by their lines in the source.
    """

    set: str
    rows: int
    time: tuple[float, float] | None
    peak: tuple[float, float] | None
    regret: tuple[float, int] | None
    failed: tuple[int, ...]
    ran: tuple[int, ...]
    contradictory: tuple[str, ...]


def errors(rows: Iterable[Row]) -> list[Errors]:
    """Return the model's errors by set, in the order of the sets."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row.set, []).append(row)
    return [_errors(name, found) for name, found in sets.items()]


def _errors(name: str, rows: list[Row]) -> Errors:
    pairs = [(row, row.forecast()) for row in rows]
    failed, ran = (
        tuple(
            sum(row.fits == ran and found.verdict == one for row, found in pairs)
            for one in ("no", "close", "fits")
        )
        for ran in (False, True)
    )
    times = [abs(found.seconds / row.seconds - 1) for row, found in pairs if row.seconds]
    peaks = [
        abs((found.reserved if row.smi else found.peak) / row.peak - 1) for row, found in pairs if row.peak
    ]
    contradictory = _contradictory_rows(rows)
    problems: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for row, found in pairs:
        if row.seconds and row not in contradictory:
            took = row.seconds / found.plan.many / found.plan.micro / found.plan.dp
            problems.setdefault((*row.problem, row.batch), []).append((found.tokens, took))
    regrets = [
        max(found)[1] / min(took for _, took in found) - 1 for found in problems.values() if len(found) >= 3
    ]
    return Errors(
        name, len(rows), _mean_and_worst(times), _mean_and_worst(peaks),
        (sum(regrets) / len(regrets), len(regrets)) if regrets else None, failed, ran,
        tuple(row.line for row in contradictory),
    )  # fmt: skip


def _contradictory_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that contradict another with the same settings.

    Two runs of one batch may differ by 5 %. A run of a batch that is a tenth smaller, or more, must be faster by 3 %.
    """
    same: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.seconds:
            same.setdefault((row.problem, replace(row.plan, many=1)), []).append(row)
    return [
        one
        for group in same.values()
        for one in group
        if any(_contradict(*sorted((one, other), key=lambda row: row.batch)) for other in group)
    ]


def _contradict(small: Row, large: Row) -> bool:
    short, long = small.seconds or 0.0, large.seconds or 0.0
    if small.batch == large.batch:
        return abs(short / long - 1) > 0.05
    return small.batch <= 0.9 * large.batch and short > 0.97 * long


def _mean_and_worst(found: list[float]) -> tuple[float, float] | None:
    return (sum(found) / len(found), max(found)) if found else None
