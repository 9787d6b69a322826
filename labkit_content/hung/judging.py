"""Judge a repaired script: run it on ranks beside the reference, with new data and numbers of ranks each time.

Pure: a function and a source of random numbers in, points and a hint out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch

from labkit.base.language import say, series
from labkit.base.numbers import plural
from labkit.base.texts import Text, columns
from labkit.base.tree import tensors
from labkit_course.judging import Hint, Hints, Named

from ..exercises.on_ranks import Failure, Ran
from ..repairs.comparing import alike, described, gap_of
from ..repairs.problem import EVERYWHERE, PLAIN, WORTH, Judgement, Problem, Problems, folder
from .running import Shown, lines_of, on_setting, wait_graph

PROBLEMS = Problems(folder(__file__))


@dataclass(frozen=True)
class Setting:
    """The number of ranks and nodes, and the seed of the data. ``plain`` data has equal amounts in all ranks."""

    ranks: int
    nodes: int = 1
    plain: bool = True
    seed: int = 0
    told: Text = Text("", "")  # what the symptom says of it

    @property
    def each(self) -> int:
        """Return the number of ranks on a node."""
        return self.ranks // self.nodes

    def generator(self, more: int = 0) -> torch.Generator:
        """Random numbers for all ranks alike; with the number of a rank plus 1, for this one."""
        return torch.Generator().manual_seed(1_000 * self.seed + more)

    @property
    def name(self) -> str:
        """``4 ranks``, ``2 nodes of 2 ranks``."""
        return f"{_describe_setting(self)}{self.told}"


def _describe_setting(setting: Setting) -> Text:
    ranks = Text(plural(setting.ranks, "rank"), f"{setting.ranks} 个 rank")
    if setting.nodes == 1:
        return ranks
    en = f"{setting.nodes} nodes of {plural(setting.each, 'rank')}"
    return Text(en, f"{setting.nodes} 个节点、各 {setting.each} 个 rank")


@dataclass(frozen=True)
class BrokenScript(Problem):
    """A broken script: the function that every rank runs.

    given     (setting, rank) -> the arguments of this rank, made in the rank itself.
    wrong     the misconceptions: hints for what was seen, the likeliest first; those that are Dear come last.
    first     the settings of the symptom, in which a repair is run first.
    outcome   what a run shows, in one line; None: whether the results are right.
    also      other functions whose results are right, too.
    same      whether the results must be those of the reference (random ones are not: then ``wrong`` says all).
    """

    given: Callable[[Setting, int], tuple[Any, ...]]
    wrong: Callable[[Seen], Hints]
    first: tuple[Setting, ...]
    outcome: Callable[[Seen], str] | None = None
    also: tuple[Callable[..., Any], ...] = ()
    same: bool = True

    def seen(self, attempt: Callable[..., Any], setting: Setting) -> Seen:
        return Seen(self, attempt, setting, self.run(attempt, setting))

    def run(self, attempt: Callable[..., Any], setting: Setting, lines: list[str] | None = None) -> Ran:
        return on_setting(
            attempt, setting.ranks, setting.nodes, lambda rank: self.given(setting, rank), lines
        )

    def judge(self, attempt: object, draw: Random) -> Judgement:
        if not callable(attempt) or isinstance(attempt, type):
            return Judgement(0, self.said(Named("no_function", kind=type(attempt).__name__)))
        later: Hint | None = None
        for reached, setting in settings(self, draw):
            seen = self.seen(attempt, setting)
            hint = next(_hints(seen), None)
            if isinstance(hint, Dear):
                later = later or seen.said(hint)
            elif hint is not None:
                return Judgement(reached, seen.said(hint))
        return Judgement(EVERYWHERE if later else WORTH, later)

    def symptom(self, attempt: Any = None) -> tuple[str, Any]:
        found = [self.seen(attempt or self.broken, setting) for setting in self.first]
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

    def tried(self, attempt: object, ranks: int, nodes: int, seed: int) -> Shown:
        """One run of ``attempt`` to look at."""
        if not callable(attempt):
            raise TypeError(self.texts["no_function"](kind=type(attempt).__name__))
        lines: list[str] = []
        setting = Setting(ranks, nodes, plain=False, seed=seed)
        return Shown(setting.name, self.run(attempt, setting, lines), tuple(lines))

    def line(self, seen: Seen) -> str:
        """What became of a run, in one line."""
        if seen.failure:
            rank = say(en=f"rank {seen.failure.rank}: ", zh=f"rank {seen.failure.rank}：")
            return say(en="hangs", zh="卡住") if seen.failure.hangs else f"{rank}{seen.failure.words}"
        if self.outcome is not None:
            return self.outcome(seen)
        off = say(en=f"off by up to {seen.gap:.2g}", zh=f"最多相差 {seen.gap:.2g}")
        return off if seen.off else say(en="results are right", zh="结果正确")


class Dear(Named):
    """A hint on results that are right but cost more than necessary."""


def script(
    name: str,
    broken: Callable[..., Any],
    repaired: Callable[..., Any],
    given: Callable[[Setting, int], tuple[Any, ...]],
    first: tuple[Setting, ...] = (Setting(2), Setting(4)),
    **more: Any,
) -> Callable[[Callable[[Seen], Hints]], Callable[[Seen], Hints]]:
    """Declare a problem: the decorated function gives its hints."""

    def declare(wrong: Callable[[Seen], Hints]) -> Callable[[Seen], Hints]:
        PROBLEMS.declare(
            name, lambda texts: BrokenScript(name, broken, repaired, texts, given, wrong, first, **more)
        )
        return wrong

    return declare


@dataclass(frozen=True)
class Seen:
    """A learner's function in one setting, for the problem's own hints."""

    problem: BrokenScript
    attempt: Callable[..., Any]
    setting: Setting
    got: Ran

    @cached_property
    def want(self) -> Ran:
        """The reference's run: what hangs or fails is mostly told without it."""
        return self.problem.run(self.problem.repaired, self.setting)

    @property
    def failure(self) -> Failure | None:
        return self.got.failure

    @property
    def hangs(self) -> bool:
        return self.failure is not None and self.failure.hangs

    @property
    def results(self) -> list[Any]:
        """The results of all ranks; [] if one failed."""
        return self.got.results

    @cached_property
    def wrong_ranks(self) -> list[int]:
        """The ranks whose results are not the reference's."""
        pairs = enumerate(zip(self.results, self.want.results, strict=False))
        return [rank for rank, pair in pairs if not alike(*pair)]

    @cached_property
    def off(self) -> bool:
        """Whether there are results, and they are neither the reference's nor those of another right one."""
        return self.problem.same and bool(self.wrong_ranks) and not any(map(self.is_as, self.problem.also))

    def is_as(self, function: Callable[..., Any]) -> bool:
        """Whether all ranks return what those of ``function`` return."""
        return alike(self.results, self.problem.run(function, self.setting).results)

    def nbytes(self, *kinds: str) -> tuple[int, int]:
        """The bytes that rank 0 brought to collectives of these kinds, and those that the reference's brought."""
        got, want = (
            sum(event.nbytes for event in ran.events if event.rank == 0 and event.name.startswith(kinds))
            for ran in (self.got, self.want)
        )
        return got, want

    @property
    def shaped(self) -> bool:
        """Whether the ranks' results have the reference's form."""
        return bool(self.results) and all(
            described(got) == described(want)
            for got, want in zip(self.results, self.want.results, strict=True)
        )

    @property
    def gap(self) -> float:
        return max(gap_of(*pair) for pair in zip(self.results, self.want.results, strict=True))

    @property
    def apart(self) -> bool:
        """Whether ranks have results that should be the same in all, and are not."""
        return any(not alike(one, self.results[0]) for one in self.results[1:])

    def said(self, hint: Named) -> Hint:
        """The hint in words; they may name the setting, ``on``, and of a failure ``error``, ``rank`` and ``line``."""
        facts: dict[str, Any] = {"on": _describe_setting(self.setting)}
        if self.failure:
            where = Text(f" ({self.failure.line})", f"（{self.failure.line}）")
            facts |= {"error": self.failure.words, "rank": self.failure.rank}
            facts |= {"line": where if self.failure.line else Text("", "")}
        told = self.problem.said(hint, **facts)
        if not self.hangs or self.failure is None:
            return told
        block = "\n```\n{}\n```".format("\n".join(lines_of(self.failure)))
        return Hint(told.id, told.en + block, told.zh + block)


def replace_source(function: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """Return ``function`` with parts of its source replaced, as a misconception would write it."""
    source = inspect.getsource(function)
    for one, other in changes:
        if one not in source:
            raise ValueError(f"{function.__name__} has no {one!r}")
        source = source.replace(one, other)
    names = {**function.__globals__, "__name__": "script"}  # nobody's module: lines of it are named
    exec(compile(source, "<script>", "exec"), names)
    made: Callable[..., Any] = names[function.__name__]
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


def _hints(seen: Seen) -> Iterator[Named]:
    failure = seen.failure
    if failure is None and not seen.shaped:
        yield from seen.problem.wrong(seen)
        at = next(
            r for r, one in enumerate(seen.results) if described(one) != described(seen.want.results[r])
        )
        got, right = described(seen.results[at]), described(seen.want.results[at])
        yield Named(
            "nothing" if not tensors(seen.results[at], "") else "shape", at=at, result=got, right=right
        )
    yield from seen.problem.wrong(seen)
    if failure is not None and failure.hangs:
        yield Named("hangs")
    if failure is not None:
        yield Named("failed")
    if seen.off:
        which = series(seen.wrong_ranks[:4]) + " …" * (len(seen.wrong_ranks) > 4)
        yield Named("values", which=which, gap=seen.gap)
