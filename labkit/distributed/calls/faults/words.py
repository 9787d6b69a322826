"""The names of calls and ranks in the texts."""

from __future__ import annotations

from collections.abc import Iterable

from ....base.language import say, series
from ..call import Call


def described(call: Call) -> str:
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


def table(calls: Iterable[Call]) -> list[str]:
    """A line for each call that differs from the others, with the ranks that made it."""
    lines: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        lines.setdefault((described(call), call.short_place), []).append(call.rank)
    names = [ranks_text(ranks) for ranks in lines.values()]
    wide = max(map(len, names))
    widest = max(len(what) for what, _ in lines)
    return [
        f"  {name:<{wide}}  {what:<{widest}}  {place}".rstrip()
        for name, (what, place) in zip(names, lines, strict=True)
    ]


def group_of(call: Call) -> str:
    return call.desc if call.desc not in ("", "undefined") else call.group or "default_pg"


def listed(numbers: Iterable[int], pair: str = "") -> str:
    """``0, 2–5``; of two numbers in a row both, with ``pair`` between them, if not a comma."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    pair = pair or series(["", ""])
    return series(str(a) if a == b else f"{a}{pair if b == a + 1 else '–'}{b}" for a, b in spans)


def ranks_text(ranks: Iterable[int], pair: str = "") -> str:
    """``rank 3``, ``ranks 0, 2–5``."""
    numbers = set(ranks)
    return say(en="rank" if len(numbers) == 1 else "ranks", zh="rank") + f" {listed(numbers, pair)}"


def ordinal(number: int) -> str:
    """``41st``."""
    last = 0 if 10 < number % 100 < 20 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
