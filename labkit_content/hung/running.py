"""Run a script's function on ranks as torchrun starts it, keep the ranks' output, and display the run."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import torch
import torch.distributed as dist

from labkit.base.language import say, series
from labkit_course.verdict_html import block
from labkit_ranks.calls.faults import Report
from labkit_ranks.calls.faults.report import format_ranks
from labkit_ranks.calls.wait_graph import WaitForGraph

from ..exercises.on_ranks import RankFailure, RanksRun, on_ranks


def on_setting(
    function: Callable[..., Any],
    ranks: int,
    nodes: int,
    given: Callable[[int], tuple[Any, ...]],
    lines: list[str] | None = None,
) -> RanksRun:
    """Call ``function(*given(rank))`` on all ranks and append the ranks' output to ``lines``."""
    whole: list[str] = [] if lines is None else lines

    def part(rank: int) -> Any:
        with redirect_stdout(_Lines(rank, whole)):
            try:
                return function(*given(rank))
            finally:
                if dist.is_initialized():
                    torch.cuda.synchronize()

    return on_ranks(part, ranks, [(rank,) for rank in range(ranks)], nodes=nodes, initialized=False)


class _Lines(io.TextIOBase):
    """A rank's standard output: whole lines, with the rank before each."""

    def __init__(self, rank: int, lines: list[str]) -> None:
        self._rank, self._lines, self._partial = rank, lines, ""

    def write(self, text: str) -> int:
        *lines, self._partial = (self._partial + text).split("\n")
        self._lines += [f"rank {self._rank} │ {line}" for line in lines]
        return len(text)


def lines_of(failure: RankFailure) -> tuple[str, ...]:
    """Return the report's lines on where each hanging rank waits, or else the error's words."""
    report = getattr(failure.error, "report", None)
    if not isinstance(report, Report):
        return (failure.words,)
    standing = [line for line in report.lines if line.startswith("  ")]
    return tuple(standing or report.lines)


def wait_graph(failure: RankFailure | None) -> WaitForGraph | None:
    """Return the wait-for graph, without the function's name in each line: all ranks run the same function."""
    waits: WaitForGraph | None = getattr(failure and failure.error, "waits", None)
    if waits is None:
        return None
    return WaitForGraph(tuple(replace(one, place=one.place.partition(" in ")[0]) for one in waits.ranks))


@dataclass(frozen=True)
class Shown:
    """A run for display: the output, then each rank's result, equal results once; or where the ranks wait."""

    name: str
    ran: RanksRun
    printed: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([self.name + say(en=":", zh="："), *self.printed, *self._end()])

    def _end(self) -> list[str]:
        failure = self.ran.failure
        if failure is not None:
            head = say(en="it hangs; the ranks wait here:", zh="卡住了，各 rank 停在：")
            error = f"rank {failure.rank}: {failure.words}" + (f" ({failure.line})" if failure.line else "")
            return [head, *lines_of(failure)] if failure.hangs else [error]
        found: dict[str, list[int]] = {}
        for rank, result in enumerate(self.ran.results):
            found.setdefault(_short(result), []).append(rank)
        calls = {kind: self.ran.count(kind) for kind in self.ran.call_kinds()}
        told = series(f"{times} {kind}" for kind, times in calls.items())
        return [
            *(f"{format_ranks(ranks)}: {result}" for result, ranks in found.items()),
            say(en=f"calls of rank 0: {told or 'none'}", zh=f"rank 0 的调用：{told or '无'}"),
        ]

    def _repr_html_(self) -> str:
        waits = wait_graph(self.ran.failure)
        return f"{block(escape(repr(self)))}{(waits and waits._repr_svg_()) or ''}"


def _short(result: Any) -> str:
    """Return a result in a few lines of text."""
    with torch._tensor_str.printoptions(precision=4, threshold=12, edgeitems=2):
        text = repr(result)
    return text if len(text) <= 700 else f"{text[:700]} …"
