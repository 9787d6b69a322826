"""Exercises of lesson 03: which GPU gets a row, which GPUs are idle, a batch size to choose, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.plans.split import split
from labkit_course.exercise import Fact, derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_GPU, SOME_WHOLE_NUMBERS, a_function, read_returned, whole_number

_GPUS: Fact = (8, 1, 64)
_MOST = 200  # the greatest batch size that 03.busy takes


def _rows(usual: int) -> Fact:
    return usual, 1, 1_000_000


def _another_row(random: Random) -> dict[str, int]:
    gpus = random.randint(3, 8)
    rows = random.randint(2 * gpus + 1, 5 * gpus)
    return {"row": random.randrange(rows), "rows": rows, "gpus": gpus}


def _another_batch(random: Random) -> dict[str, int]:
    gpus = random.randint(4, 12)
    return {"rows": random.randint(gpus + 1, 3 * gpus), "gpus": gpus}


def _pieces(rows: int, gpus: int) -> int:
    return len(split(rows, gpus).sizes) if gpus > 1 else 1


@derive_facts("03.last", rows=_rows(10), gpus=(8, 0, 64), fresh=_another_batch)
def _last(rows: int, gpus: int) -> dict[str, object]:
    return {"pieces": _pieces(rows, gpus), "runs": Named("replicas" if gpus > 1 else "alone")}


@derive_facts("03.which", row=(17, 0, 999_999), rows=_rows(30), gpus=_GPUS, fresh=_another_row)
def _which(row: int, rows: int, gpus: int) -> dict[str, int]:
    chunk = -(-rows // gpus)
    return {
        "chunk": chunk,
        "gpu": row // chunk,
        "dealt": row // gpus,
        "down": rows // gpus,
        "last_row": rows - 1,
        "last_gpu": gpus - 1,
    }


@judge("03.which", A_GPU)
def _which_gpu(gpu: int, row: int, rows: int, gpus: int) -> Hints:
    right = row // -(-rows // gpus)
    if gpu == right:
        return
    if gpu == row // max(rows // gpus, 1):  # the commonest of all, so before those that it may look like
        yield Named("down")
    if gpu == right + 1:
        yield Named("from_one")
    if gpu == row % gpus:
        yield Named("dealt")
    if not 0 <= gpu < gpus:
        yield Named("no_such")
    yield Named("other")


@derive_facts("03.idle", rows=_rows(10), gpus=_GPUS, fresh=_another_batch)
def _idle(rows: int, gpus: int) -> dict[str, int]:
    pieces, chunk = _pieces(rows, gpus), -(-rows // gpus)
    return {
        "pieces": pieces,
        "chunk": chunk,
        "idle": gpus - pieces,
        "missing": chunk * gpus - rows,
        "all_but_one": gpus - 1,
    }


def _all_busy(rows: int, size: int, gpus: int) -> tuple[bool, bool]:
    """(every GPU has rows in each full batch, every GPU has rows in the last one)."""
    last = rows % size or size
    return _pieces(size, gpus) >= gpus or size > rows, _pieces(last, gpus) >= gpus


def _best(rows: int, gpus: int) -> int:
    """The smallest batch size that leaves no GPU idle in any batch; 0 if there is none."""
    found = (size for size in range(1, min(rows, _MOST) + 1) if all(_all_busy(rows, size, gpus)))
    return next(found, 0)


@derive_facts(
    "03.busy",
    rows=(100, 1, 1_000_000),
    gpus=_GPUS,
    fresh=lambda random: {"rows": random.randint(60, 140), "gpus": random.randint(4, 8)},
)
def _busy(rows: int, gpus: int) -> dict[str, object]:
    best = _best(rows, gpus)
    if not best:
        return {"solution": Named("none")}
    last = rows % best or best
    chunk, pieces = -(-best // gpus), _pieces(last, gpus)
    return {"solution": Named("smallest", best=best, chunk=chunk, last=last, pieces=pieces)}


@judge("03.busy", whole_number)
def _busy_size(size: int, rows: int, gpus: int) -> Hints:
    best = _best(rows, gpus)
    if size == best == 0:
        return
    if not 1 <= size <= _MOST:
        yield Named("there_is_one" if best else "beyond")
        return
    full, last = _all_busy(rows, size, gpus)
    if not full:
        yield Named("idle", chunk=-(-size // gpus), busy=_pieces(size, gpus))
    if not last:
        left = rows % size or min(size, rows)
        yield Named("idle_at_end", left=left, busy=_pieces(left, gpus))


@derive_facts("03.same", gpus=(8, 1, 64), fresh=lambda random: {"gpus": random.randint(3, 16)})
def _same(gpus: int) -> dict[str, int]:
    return {"one_more": gpus + 1, "twice": 2 * gpus, "thrice": 3 * gpus}


@judge("03.rule", a_function("pieces"))
def _rule(answer: Callable[..., Any]) -> Hints:
    for rows, gpus in ((30, 8), (10, 8), (9, 4), (7, 2), (1, 3), (64, 64), (10, 3), (9, 8)):
        yield from _compared(rows, gpus, list(read_returned(answer(rows, gpus), SOME_WHOLE_NUMBERS)))


def _compared(rows: int, gpus: int, got: list[int]) -> Hints:
    want = list(split(rows, gpus).sizes)
    if got == want:
        return
    seen = {"case": Named("case"), "rows": rows, "gpus": gpus, "got": got, "want": want, "total": sum(got)}
    if not got:
        yield Named("empty", **seen)
    if got[0] == rows // gpus != want[0] or 0 == rows // gpus == sum(got):  # the commonest, so before the sum
        yield Named("down", **seen)
    if sum(got) != rows:
        yield Named("not_all", **seen)
    if min(got) < 0:
        yield Named("negative", **seen)
    if 0 in got:
        yield Named("zeros", **seen)
    if max(got) - min(got) <= 1 and len(got) == min(rows, gpus):
        yield Named("even", **seen)
    yield Named("other", **seen)
