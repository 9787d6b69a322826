"""Exercises of lesson 03: which rows a GPU gets, which GPUs are idle, batch sizes, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.base.texts import Text
from labkit.plans.split import split
from labkit_course.exercise import Fact, derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import SOME_WHOLE_NUMBERS, a_function, read_returned, whole_number, wrong_return

_GPUS: Fact = (8, 1, 64)


def _row_fact(usual: int) -> Fact:
    return usual, 1, 1_000_000


def _draw_batch(random: Random) -> dict[str, int]:
    gpus = random.randint(4, 12)
    return {"rows": random.randint(gpus + 1, 3 * gpus), "gpus": gpus}


def _count_pieces(rows: int, gpus: int) -> int:
    return len(split(rows, gpus).sizes) if gpus > 1 else 1


@derive_facts("03.last", rows=_row_fact(10), gpus=(8, 0, 64), fresh=_draw_batch)
def _derive_last(rows: int, gpus: int) -> dict[str, object]:
    return {"pieces": _count_pieces(rows, gpus), "runs": Named("replicas" if gpus > 1 else "alone")}


@judge("03.rows", a_function("rows_of"))
def _judge_rows_of(answer: Callable[..., Any]) -> Hints:
    for rows, gpus in ((23, 8), (10, 8), (16, 8), (7, 3), (2, 4)):
        every, chunk, down, extra = list(range(rows)), -(-rows // gpus), *divmod(rows, gpus)
        for gpu in range(gpus):
            want = every[gpu * chunk : (gpu + 1) * chunk]
            try:
                got = list(read_returned(answer(gpu, rows, gpus), SOME_WHOLE_NUMBERS))
            except IndexError:
                if not want:
                    yield Named("idle", gpu=gpu, rows=rows, gpus=gpus, pieces=_count_pieces(rows, gpus))
                raise
            if got == want:
                continue
            evenly = gpu * down + min(gpu, extra)
            mistakes = {
                "dealt": every[gpu::gpus],
                "down": every[gpu * down : (gpu + 1) * down],
                "even": every[evenly : evenly + down + (gpu < extra)],
                "from_one": [row + 1 for row in want],
                "one_more": every[gpu * (down + 1) : (gpu + 1) * (down + 1)],
                "count": [len(want)],
            }
            name = next((name for name, made in mistakes.items() if got == made), "other")
            if name == "other" and max(got, default=0) >= rows:
                name = "beyond"
            if name == "other" and want and got in ([want[0], want[-1]], [want[0], want[-1] + 1]):
                name = "ends"
            facts = {"gpu": gpu, "rows": rows, "gpus": gpus, "got": got, "want": want, "last": rows - 1}
            yield Named(name, case=Named("case"), **facts)


@derive_facts("03.idle", rows=_row_fact(10), gpus=_GPUS, fresh=_draw_batch)
def _derive_idle(rows: int, gpus: int) -> dict[str, int]:
    pieces, chunk = _count_pieces(rows, gpus), -(-rows // gpus)
    return {
        "pieces": pieces,
        "chunk": chunk,
        "idle": gpus - pieces,
        "missing": chunk * gpus - rows,
        "all_but_one": gpus - 1,
    }


@judge("03.busy", a_function("all_busy"))
def _judge_all_busy(answer: Callable[..., Any]) -> Hints:
    for rows, size, gpus in (
        (100, 32, 8),
        (100, 25, 8),
        (96, 32, 8),
        (100, 23, 8),
        (5, 64, 8),
        (64, 64, 1),
        (12, 64, 8),
        (33, 25, 8),  # only the full batch leaves a GPU idle
        (8, 9, 8),  # a full batch would leave some idle, but there is none
        (49, 49, 8),  # seven pieces of 7, exactly
        (12, 4, 4),
    ):
        try:
            got = read_returned(answer(rows, size, gpus))
        except ZeroDivisionError:
            if rows % size == 0:
                yield Named("empty", rows=rows, size=size)
            raise
        if hasattr(got, "item"):
            got = got.item()  # a truth value of NumPy or PyTorch
        if not isinstance(got, (bool, int)):
            raise wrong_return(got, Text("`True` or `False`", " `True` 或 `False`"))
        last = rows % size or size
        sizes = min(size, rows), min(last, rows)
        left = min(sizes, key=lambda size: _count_pieces(size, gpus))
        if bool(got) != (_count_pieces(left, gpus) == gpus):
            facts = {
                "rows": rows,
                "size": size,
                "gpus": gpus,
                "left": left,
                "chunk": -(-left // gpus),
                "last": last,
            }
            name = "idle" if got else "short" if rows < size else "busy"
            yield Named(name, busy=_count_pieces(left, gpus), **facts)


@derive_facts("03.largest", gpus=(8, 2, 64), fresh=lambda random: {"gpus": random.randint(3, 16)})
def _derive_largest(gpus: int) -> dict[str, int]:
    return {"others": gpus - 1, "largest": (gpus - 1) ** 2}


@judge("03.largest", whole_number)
def _judge_largest(rows: int, gpus: int) -> Hints:
    largest = (gpus - 1) ** 2
    if rows > largest:
        yield Named("too_large")
    elif rows < largest:
        idle = gpus - _count_pieces(rows, gpus) if rows > 0 else gpus
        yield Named("larger_idle" if idle else "larger", idle=idle)


@judge("03.rule", a_function("pieces"))
def _judge_rule(answer: Callable[..., Any]) -> Hints:
    for rows, gpus in ((30, 8), (10, 8), (16, 8), (9, 4), (7, 2), (1, 3), (64, 64), (10, 3), (9, 8)):
        yield from _compare_pieces(rows, gpus, list(read_returned(answer(rows, gpus), SOME_WHOLE_NUMBERS)))


def _compare_pieces(rows: int, gpus: int, got: list[int]) -> Hints:
    want = list(split(rows, gpus).sizes)
    if got == want:
        return
    seen = {"case": Named("case"), "rows": rows, "gpus": gpus, "got": _shorten(got), "want": _shorten(want)}
    seen["total"] = sum(got)
    if not got:
        yield Named("empty", **seen)
    if got[0] == rows // gpus != want[0] or 0 == rows // gpus == sum(got):  # the commonest, so before the sum
        yield Named("down", **seen)
    if rows % gpus == 0 and got[0] == rows // gpus + 1:
        yield Named("one_more", **seen)
    if sum(got) != rows:
        yield Named("not_all", **seen)
    if min(got) < 0:
        yield Named("negative", **seen)
    if 0 in got:
        yield Named("zeros", **seen)
    if max(got) - min(got) <= 1 and len(got) == min(rows, gpus):
        yield Named("even", **seen)
    yield Named("other", **seen)


def _shorten(sizes: list[int]) -> str:
    """Return a list for a hint; of a long one, the first and last numbers and how many there are."""
    if len(sizes) <= 12:
        return str(sizes)
    return f"[{', '.join(map(str, sizes[:4]))}, …, {sizes[-1]}] ({len(sizes)})"
