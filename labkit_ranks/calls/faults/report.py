"""The report of a fault, and how it names calls, ranks and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """A fault among ranks, described in the current language; ``str(report)`` is the whole text.

    fault   the name of the fault in a check-up: "deadlock", "calls_differ", …
    lines   the state of each rank, and what it means.
    advice  what to do.
    places  the lines of the user's code where the ranks are.
    real    how the fault looks on real GPUs.
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
        """Store this report in ``error.report``, and return ``error``."""
        error.report = self  # type: ignore[attr-defined]
        return error


def explain_fault(key: str, **facts: object) -> tuple[str, str]:
    """Return the meaning of the fault ``key``, and advice, from ``faults.txt``."""
    meaning, advice = fill_texts(_TEXTS[key], **facts)
    return meaning, advice


def describe_call(call: CollectiveCall) -> str:
    """Describe a call as the user wrote it: ``all_reduce SUM [4, 4] float32``, ``isend to rank 1 [3] float32``."""
    words = [call.name, *([str(list(call.members))] if call.members else ())]
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
    """Return a line for each group of equal calls, with the ranks of the callers."""
    lines: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        lines.setdefault((describe_call(call), call.short_place), []).append(call.rank)
    return [
        f"  {line}" for line in align_columns([(format_ranks(ranks), *call) for call, ranks in lines.items()])
    ]


def align_columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return a line for each row of words, with the words below each other; columns ``right`` end alike."""
    wide = [max(map(columns, words)) for words in zip(*rows, strict=True)]

    def pad(at: int, word: str) -> str:
        blank = " " * (wide[at] - columns(word))
        return blank + word if at in right else word + blank

    return ["  ".join(pad(at, word) for at, word in enumerate(row)).rstrip() for row in rows]


def group_label(call: CollectiveCall) -> str:
    return call.desc if call.desc not in ("", "undefined") else call.group or "default_pg"


def describe_group(call: CollectiveCall) -> str:
    """Return the group's name and, unless it is the whole world, its ranks: ``mesh_dp (ranks 0, 2)``."""
    if call.desc == "default_pg":
        return call.desc
    name, ranks = group_label(call), format_ranks(call.ranks)
    if len(name) == 40:  # the hash of `use_local_synchronization`: only the ranks tell groups apart
        return str(list(call.ranks))
    return say(en=f"{name} ({ranks})", zh=f"{name}（{ranks}）") if call.ranks else name


def format_numbers(numbers: Iterable[int], pair: str = "") -> str:
    """Format numbers as ``0, 2–5``; put ``pair`` between two that follow each other."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    pair = pair or series(["", ""])
    return series(str(a) if a == b else f"{a}{pair if b == a + 1 else '–'}{b}" for a, b in spans)


def format_ranks(ranks: Iterable[int], pair: str = "") -> str:
    """Format ranks as ``rank 3`` or ``ranks 0, 2–5``."""
    numbers = set(ranks)
    return say(en="rank" if len(numbers) == 1 else "ranks", zh="rank") + f" {format_numbers(numbers, pair)}"


def format_ordinal(number: int) -> str:
    """Format ``41`` as ``41st``."""
    last = 0 if 10 < number % 100 < 20 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
