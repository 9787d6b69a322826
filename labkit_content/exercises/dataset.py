"""Exercises of lesson 01: rows, batches, the rows of the short last batch, and batches that BatchNorm accepts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.base.texts import Text
from labkit.plans.batches import batches
from labkit_course.exercise import Fact, derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_WHOLE_NUMBER, a_function, numbers, read_returned, whole_number, wrong_return


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
    return {"found": Text(", ".join(map(str, found)), "、".join(map(str, found)))}


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


@judge("01.safe", a_function("safe"))
def _judge_safe(answer: Callable[..., Any]) -> Hints:
    for rows, size, gpus in (
        (97, 32, 1),
        (96, 32, 1),
        (98, 32, 1),
        (99, 32, 2),
        (100, 32, 2),
        (98, 32, 2),
        (90, 30, 2),
        (21, 13, 4),  # only the full batch leaves a single row: 4, 4, 4 and 1, then 2, 2, 2 and 2
        (16, 8, 8),
        (19, 8, 4),
        (10, 25, 8),  # a full batch would leave a single row, but there is none
        (1, 32, 2),
    ):
        got = read_returned(answer(rows, size, gpus))
        if hasattr(got, "item"):
            got = got.item()  # a truth value of NumPy or PyTorch
        if not isinstance(got, (bool, int)):
            raise wrong_return(got, Text("`True` or `False`", " `True` 或 `False`"))
        plan = batches(rows, size, gpus=gpus)
        bad = next((at for at in (-1, 0) if 1 in plan[at].sizes), None)
        if bool(got) == (bad is None):
            continue
        shown = plan[0 if bad == 0 else -1]
        if got:
            name = "full" if shown.batch == size else "last"
        else:
            name = "no_rest" if rows % size == 0 else "absent" if rows < size else "enough"
        facts = {"case": Named("case"), "rows": rows, "size": size, "gpus": gpus, "left": shown.batch}
        yield Named(name, pieces=Text(*(sep.join(map(str, shown.sizes)) for sep in (", ", "、"))), **facts)
