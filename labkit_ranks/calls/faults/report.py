"""What is said of a fault: the names of calls and ranks, and the report of which the text of the error is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from labkit.base.language import say, series
from labkit.base.texts import columns, fill_texts, parse

from ..call import CollectiveCall

E = TypeVar("E", bound=Exception)

_TEXTS = {
    entry.words[0]: (entry.texts[""], entry.texts["do"])
    for entry in parse(Path(__file__).with_name("faults.txt").read_text("utf-8"))
}


@dataclass(frozen=True)
class Report:
    """A fault among ranks, told in the language in use; ``str(report)`` is the whole text.

    fault   its name in a check-up: "deadlock", "calls_differ", …
    lines   what was seen of each rank, and what it means.
    advice  what to do.
    places  the lines of the user's code where the ranks were.
    real    in which words real GPUs fail.
    """

    fault: str
    lines: tuple[str, ...]
    advice: str
    places: tuple[str, ...]
    real: str = ""

    def __str__(self) -> str:
        advice = say(en=f"Do: {self.advice}", zh=f"怎么办：{self.advice}")
        return "\n".join(filter(None, [*self.lines, advice, self.real]))

    def attach_to(self, error: E) -> E:
        """``error``, which carries this report from now on."""
        error.report = self  # type: ignore[attr-defined]
        return error


def explain_fault(key: str, **facts: object) -> tuple[str, str]:
    """The meaning of the fault ``key``, and the advice, from ``faults.txt``."""
    meaning, advice = fill_texts(_TEXTS[key], **facts)
    return meaning, advice


def describe_call(call: CollectiveCall) -> str:
    """A call in words: ``all_reduce SUM [4, 4] float32``."""
    words = [call.kind, *([str(list(call.members))] if call.members else ())]
    if call.op:
        words.append(call.op)
    if call.root is not None and call.kind != "barrier":
        rank = call.ranks[call.root] if 0 <= call.root < len(call.ranks) else call.root
        words.append(f"{_PREPOSITIONS.get(call.kind, 'from')} rank {rank}")
    tensors = call.inputs or call.outputs
    shapes = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    if shapes and len(set(shapes)) == 1:
        times = f"{len(shapes)} × " if len(shapes) > 1 else ""
        words.append(f"{times}{list(shapes[0][0])} {shapes[0][1]}")
    else:
        words += [f"{list(shape)} {dtype}" for shape, dtype in shapes[:3]]
        words += ["…"] * (len(shapes) > 3)
    return " ".join(words)


_PREPOSITIONS = {"reduce": "to", "gather": "to", "send": "to"}


def call_table(calls: Iterable[CollectiveCall]) -> list[str]:
    """A line for each call that differs from the others, with the ranks that made it."""
    lines: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        lines.setdefault((describe_call(call), call.short_place), []).append(call.rank)
    names = [format_ranks(ranks) for ranks in lines.values()]
    wide = max(map(columns, names))
    widest = max(len(what) for what, _ in lines)
    return [
        f"  {name}{' ' * (wide - columns(name))}  {what:<{widest}}  {place}".rstrip()
        for name, (what, place) in zip(names, lines, strict=True)
    ]


def group_label(call: CollectiveCall) -> str:
    return call.desc if call.desc not in ("", "undefined") else call.group or "default_pg"


def format_numbers(numbers: Iterable[int], pair: str = "") -> str:
    """``0, 2–5``; of two numbers in a row both, with ``pair`` between them, if not a comma."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    pair = pair or series(["", ""])
    return series(str(a) if a == b else f"{a}{pair if b == a + 1 else '–'}{b}" for a, b in spans)


def format_ranks(ranks: Iterable[int], pair: str = "") -> str:
    """``rank 3``, ``ranks 0, 2–5``."""
    numbers = set(ranks)
    return say(en="rank" if len(numbers) == 1 else "ranks", zh="rank") + f" {format_numbers(numbers, pair)}"


def format_ordinal(number: int) -> str:
    """``41st``."""
    last = 0 if 10 < number % 100 < 20 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
