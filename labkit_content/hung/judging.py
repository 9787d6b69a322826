"""Judge a repaired script: run it on ranks beside the reference, with new data and numbers of ranks each time.

Pure: a function and a source of random numbers in, points and a hint out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch

from labkit.base.language import say, series
from labkit.base.numbers import plural
from labkit.base.texts import Text, columns, parse
from labkit.base.tree import tensors
from labkit_course.content import before_and_after
from labkit_course.judging import Hint, Hints, Named

from ..exercises.on_ranks import RankFailure, RanksRun
from ..repairs.comparing import gap_of, is_alike, shapes_of
from ..repairs.problem import (
    EVERYWHERE,
    PLAIN,
    WORTH,
    Judgement,
    Problems,
    RepairProblem,
    define,
    folder,
    read_broken_code,
)
from .running import Shown, lines_of, on_setting, wait_graph

PROBLEMS = Problems(folder(__file__))
scripts = read_broken_code("19_hung")


def change_lines(source: str, changes: str) -> str:
    """Return ``source`` with the ``changes`` of repaired.txt. Raises ValueError for lines that are not there once."""
    for place in changes.split("\n\n"):
        old, new = before_and_after(place)
        if source.count(old) != 1:
            raise ValueError(f"these lines should be there once:\n{old}")
        source = source.replace(old, new)
    return source


def _repair_scripts() -> Any:
    """Return the repaired scripts by name, as attributes."""
    found = SimpleNamespace()
    for entry in parse(Path(__file__).with_name("repaired.txt").read_text("utf-8")):
        name = entry.words[0]
        broken = getattr(scripts, name)
        source = change_lines(inspect.getsource(broken), entry.code)
        setattr(found, name, define(source, name, broken.__globals__, f"<{name}, repaired>"))
    return found


repaired = _repair_scripts()


@dataclass(frozen=True)
class Setting:
    """The number of ranks and nodes, and the seed of the data. ``plain`` data has equal amounts in all ranks."""

    ranks: int
    nodes: int = 1
    plain: bool = True
    seed: int = 0
    note: Text = Text("", "")  # added to the name in the symptom

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks on a node."""
        return self.ranks // self.nodes

    def generator(self, more: int = 0) -> torch.Generator:
        """Return a generator with the same numbers in all ranks; with ``more``, a rank's number plus 1, its own."""
        return torch.Generator().manual_seed(1_000 * self.seed + more)

    @property
    def name(self) -> str:
        """Return the setting in words: ``4 ranks``, ``2 nodes of 2 ranks``."""
        return f"{_describe_setting(self)}{self.note}"


def _describe_setting(setting: Setting) -> Text:
    ranks = Text(plural(setting.ranks, "rank"), f"{setting.ranks} 个 rank")
    if setting.nodes == 1:
        return ranks
    en = f"{setting.nodes} nodes of {plural(setting.ranks_per_node, 'rank')}"
    return Text(en, f"{setting.nodes} 个节点、各 {setting.ranks_per_node} 个 rank")


def _keep(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class BrokenScript(RepairProblem):
    """A broken script: the function that every rank runs.

    given     (setting, rank) -> the arguments of this rank, made in the rank itself.
    wrong     the misconceptions: yields hints on a run, the likeliest first and each CostHint last.
    first     the settings of the symptom, in which a repair is run first.
    outcome   describes a run in one line; None: say whether the results are right.
    also      other functions whose results are right, too.
    read      makes one form of a rank's results that are right in several.
    same      whether the results must be those of the reference (random ones are not: then ``wrong`` says all).
    """

    given: Callable[[Setting, int], tuple[Any, ...]]
    wrong: Callable[[ScriptRun], Hints]
    first: tuple[Setting, ...]
    outcome: Callable[[ScriptRun], str] | None = None
    also: tuple[Callable[..., Any], ...] = ()
    read: Callable[[Any], Any] = _keep
    same: bool = True

    def run_attempt(self, attempt: Callable[..., Any], setting: Setting) -> ScriptRun:
        return ScriptRun(self, attempt, setting, self.run(attempt, setting))

    def run(self, attempt: Callable[..., Any], setting: Setting, lines: list[str] | None = None) -> RanksRun:
        return on_setting(
            attempt, setting.ranks, setting.nodes, lambda rank: self.given(setting, rank), lines
        )

    def judge(self, attempt: object, draw: Random) -> Judgement:
        if not callable(attempt) or isinstance(attempt, type):
            return Judgement(0, self.render_hint(Named("no_function", kind=type(attempt).__name__)))
        later: Hint | None = None
        for reached, setting in settings(self, draw):
            seen = self.run_attempt(attempt, setting)
            hint = next(_hints(seen), None)
            if isinstance(hint, CostHint):
                later = later or seen.render_hint(hint)
            elif hint is not None:
                return Judgement(reached, seen.render_hint(hint))
        return Judgement(EVERYWHERE if later else WORTH, later)

    def symptom(self, attempt: Any = None) -> tuple[str, Any]:
        found = [self.run_attempt(attempt or self.broken, setting) for setting in self.first]
        names = [seen.setting.name for seen in found]
        wide = max(map(columns, names))
        lines = [
            f"{name}{' ' * (wide - columns(name))}  {self.line(seen)}"
            for name, seen in zip(names, found, strict=True)
        ]
        hung = next((seen for seen in reversed(found) if seen.hangs), None)
        if hung is None or hung.failure is None:
            return "\n".join(lines), None
        head = hung.setting.name + say(en=":", zh="：")
        return "\n".join([*lines, "", head, *lines_of(hung.failure)]), wait_graph(hung.failure)

    def run_to_show(self, attempt: object, ranks: int, nodes: int, seed: int) -> Shown:
        """Run ``attempt`` once, without judging it, and return the run for display."""
        if not callable(attempt):
            raise TypeError(self.texts["no_function"](kind=type(attempt).__name__))
        lines: list[str] = []
        setting = Setting(ranks, nodes, plain=False, seed=seed)
        return Shown(setting.name, self.run(attempt, setting, lines), tuple(lines))

    def line(self, seen: ScriptRun) -> str:
        """Describe the outcome of a run in one line."""
        if seen.failure:
            rank = say(en=f"rank {seen.failure.rank}: ", zh=f"rank {seen.failure.rank}：")
            return say(en="hangs", zh="卡住") if seen.failure.hangs else f"{rank}{seen.failure.words}"
        if self.outcome is not None:
            return self.outcome(seen)
        off = say(en=f"off by up to {seen.gap:.2g}", zh=f"最多相差 {seen.gap:.2g}")
        return off if seen.is_wrong else say(en="results are right", zh="结果正确")


class CostHint(Named):
    """A hint on results that are right but cost more than necessary."""


def script(
    name: str,
    broken: Callable[..., Any],
    repaired: Callable[..., Any],
    given: Callable[[Setting, int], tuple[Any, ...]],
    first: tuple[Setting, ...] = (Setting(2), Setting(4)),
    **more: Any,
) -> Callable[[Callable[[ScriptRun], Hints]], Callable[[ScriptRun], Hints]]:
    """Declare a problem: the decorated function gives its hints."""

    def declare(wrong: Callable[[ScriptRun], Hints]) -> Callable[[ScriptRun], Hints]:
        PROBLEMS.declare(
            name, lambda texts: BrokenScript(name, broken, repaired, texts, given, wrong, first, **more)
        )
        return wrong

    return declare


@dataclass(frozen=True)
class ScriptRun:
    """A learner's function in one setting, for the problem's own hints."""

    problem: BrokenScript
    attempt: Callable[..., Any]
    setting: Setting
    got: RanksRun

    @cached_property
    def want(self) -> RanksRun:
        """Return the reference's run, made only when needed: most hangs and failures need no reference."""
        return self.problem.run(self.problem.repaired, self.setting)

    @property
    def failure(self) -> RankFailure | None:
        return self.got.failure

    @property
    def hangs(self) -> bool:
        return self.failure is not None and self.failure.hangs

    @property
    def results(self) -> list[Any]:
        """Return the results of all ranks; [] if a rank failed."""
        return [self.problem.read(result) for result in self.got.results]

    @cached_property
    def wrong_ranks(self) -> list[int]:
        """Return the ranks whose results differ from the reference's."""
        pairs = enumerate(zip(self.results, self.want.results, strict=False))
        return [rank for rank, pair in pairs if not is_alike(*pair)]

    @cached_property
    def is_wrong(self) -> bool:
        """Return whether the results equal neither the reference's nor another right function's."""
        return self.problem.same and bool(self.wrong_ranks) and not any(map(self.matches, self.problem.also))

    def matches(self, function: Callable[..., Any]) -> bool:
        """Return whether ``function`` gives the same results on all ranks."""
        return is_alike(self.results, self.problem.run(function, self.setting).results)

    def nbytes(self, *kinds: str) -> tuple[int, int]:
        """Return the bytes of rank 0 in collectives of these kinds, and the reference's bytes."""
        got, want = (
            sum(event.nbytes for event in ran.events if event.rank == 0 and event.name.startswith(kinds))
            for ran in (self.got, self.want)
        )
        return got, want

    @property
    def has_right_shapes(self) -> bool:
        """Return whether each rank's result has the reference's shapes."""
        return bool(self.results) and all(
            shapes_of(got) == shapes_of(want)
            for got, want in zip(self.results, self.want.results, strict=True)
        )

    @property
    def gap(self) -> float:
        return max(gap_of(*pair) for pair in zip(self.results, self.want.results, strict=True))

    @property
    def ranks_differ(self) -> bool:
        """Return whether some rank's result differs from rank 0's."""
        return any(not is_alike(one, self.results[0]) for one in self.results[1:])

    def render_hint(self, hint: Named) -> Hint:
        """Return the hint's text; it may name the setting, ``on``, and a failure's ``error``, ``rank`` and ``line``."""
        facts: dict[str, Any] = {"on": _describe_setting(self.setting)}
        if self.failure:
            where = Text(f" ({self.failure.line})", f"（{self.failure.line}）")
            facts |= {"error": self.failure.words, "rank": self.failure.rank}
            facts |= {"line": where if self.failure.line else Text("", "")}
        text = self.problem.render_hint(hint, **facts)
        if not self.hangs or self.failure is None:
            return text
        block = "\n```\n{}\n```".format("\n".join(lines_of(self.failure)))
        return Hint(text.id, text.en + block, text.zh + block)


def replace_source(function: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """Return ``function`` with parts of the source replaced, to imitate a misconception."""
    source = inspect.getsource(function)
    for one, other in changes:
        if one not in source:
            raise ValueError(f"{function.__name__} has no {one!r}")
        source = source.replace(one, other)
    made: Callable[..., Any] = define(source, function.__name__, function.__globals__)
    return made


def settings(problem: BrokenScript, draw: Random) -> Iterator[tuple[int, Setting]]:
    """Yield (points for a repair that fails here, setting): the symptom's, other ranks and nodes, one rank."""

    def draw_setting(ranks: int, nodes: int = 1, plain: bool = False) -> Setting:
        return Setting(ranks, nodes, plain, draw.randint(1, 9_999))

    for one in problem.first:
        yield 0, draw_setting(one.ranks, one.nodes, one.plain)
    yield PLAIN, draw_setting(draw.choice((3, 5, 6)))
    nodes = draw.choice((2, 3))
    yield PLAIN, draw_setting(2 * nodes, nodes)
    yield PLAIN, draw_setting(8, draw.choice((1, 2, 4)))
    yield PLAIN, draw_setting(1)


def _hints(seen: ScriptRun) -> Iterator[Named]:
    failure = seen.failure
    if failure is None and not seen.has_right_shapes and not any(map(seen.matches, seen.problem.also)):
        yield from seen.problem.wrong(seen)
        at = next(
            r for r, one in enumerate(seen.results) if shapes_of(one) != shapes_of(seen.want.results[r])
        )
        got, right = shapes_of(seen.results[at]), shapes_of(seen.want.results[at])
        yield Named(
            "nothing" if not tensors(seen.results[at], "") else "shape", at=at, result=got, right=right
        )
    yield from seen.problem.wrong(seen)
    if failure is not None and failure.hangs:
        yield Named("hangs")
    if failure is not None:
        yield Named("failed")
    if seen.is_wrong:
        which = series(seen.wrong_ranks[:4]) + " …" * (len(seen.wrong_ranks) > 4)
        yield Named("values", which=which, gap=seen.gap)
