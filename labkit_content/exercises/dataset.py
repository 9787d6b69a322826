"""Exercises of lesson 01: rows, batches, and the rows of the short last batch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.base.texts import Text
from labkit_course.exercise import Fact, derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_WHOLE_NUMBER, a_function, numbers, read_returned, whole_number


def _list_batch_sizes(rows: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, rows - start) for start in range(0, rows, size))


def _draw_dataset(random: Random) -> dict[str, int]:
    size = random.randint(7, 40)
    return {"rows": size * random.randint(2, 4) + random.randint(1, size - 1), "size": size}


_ROWS: Fact = (100, 1, 1_000_000)
_SIZE: Fact = (30, 1, 1_000_000)


@derive_facts("01.batches", rows=(100, 1, 200), size=(30, 1, 200), fresh=_draw_dataset)
def _derive_batches(rows: int, size: int) -> dict[str, object]:
    full, count = rows // size, -(-rows // size)
    return {
        "sizes": list(_list_batch_sizes(rows, size)),
        "count": count,
        "in_full": full * size,
        "filled": size * count,
    }


@judge("01.batches", numbers)
def _judge_batches(sizes: tuple[int, ...], rows: int, size: int) -> Hints:
    right, full, count = _list_batch_sizes(rows, size), rows // size, -(-rows // size)
    if sizes == right:
        return
    if sizes == (size,) * full:
        yield Named("dropped")
    if len(sizes) == count and sum(sizes) == rows and max(sizes) - min(sizes) <= 1:
        yield Named("even")
    if sizes == (size,) * count:
        yield Named("filled_up")
    if sizes == (count,):
        yield Named("count")
    if sum(sizes) == rows:
        yield Named("unfilled")
    yield Named("other", total=sum(sizes))


@derive_facts("01.dropped", rows=_ROWS, size=_SIZE, fresh=_draw_dataset)
def _derive_dropped(rows: int, size: int) -> dict[str, int]:
    rest = rows % size
    return {"full": rows // size, "rest": rest, "seen": rows - rest, "in_all": 50 * rest}


@derive_facts("01.single", rows=(100, 8, 1_000_000), fresh=lambda random: {"rows": random.randrange(40, 120)})
def _derive_single(rows: int) -> dict[str, object]:
    # Of rows such as 720 no size below 200 leaves so few, but one row less than all always does.
    found = [size for size in range(4, min(rows, 200)) if 0 < rows % size < 4] or [rows - 1]
    return {"first": found[0], "found": Text(", ".join(map(str, found)), "、".join(map(str, found)))}


@judge("01.single", whole_number)
def _judge_single(size: int, rows: int) -> Hints:
    if size < 4:
        yield Named("every")
    elif not 0 < rows % size < 4:
        last = min(rows, rows % size or size)
        yield Named("enough", last=last, one=-(-last // 2), other=last // 2)


@judge("01.last_batch", a_function("last_batch"))
def _judge_last_batch(answer: Callable[..., Any]) -> Hints:
    for rows, size in ((100, 30), (90, 30), (3, 30), (7, 1), (64, 64), (1000, 32)):
        got = read_returned(answer(rows, size), A_WHOLE_NUMBER)
        want = rows % size or size
        if got != want:
            name = {size: "full"}.get(got, "large" if got > size else "zero" if want == size else "other")
            yield Named(name, rows=rows, batch_size=size, got=got, want=want)
