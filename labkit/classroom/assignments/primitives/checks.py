"""What the student's ``check(...)`` says: typical mistakes on open examples."""

from __future__ import annotations

from collections.abc import Iterator

from ....course.kinds import SOME_WHOLE_NUMBERS
from ...checking import Student, visible
from ...judging import read
from ...verdict import Hint
from . import drivers


def wrong_sizes(rows: int, gpus: int, got: object, right: list[int]) -> Iterator[Hint]:
    sizes = list(read(SOME_WHOLE_NUMBERS, got, en="`split`", zh="`split` "))
    if sizes != right:
        yield Hint(
            "sizes",
            f"for {rows} rows on {gpus} GPUs it gives {sizes[:20]}; {sum(right)} rows are cut otherwise",
            f"{rows} 行、{gpus} 块 GPU 时返回 {sizes[:20]}，切分得不对",
        )


@visible("split", "split", en="a function of `rows` and `gpus`", zh="一个以 `rows` 和 `gpus` 为参数的函数")
def _split(student: Student) -> Iterator[Hint]:
    for (rows, gpus), right in {(9, 4): [3, 3, 3], (30, 8): [4] * 7 + [2]}.items():
        yield from wrong_sizes(rows, gpus, drivers.split(student, [(rows, gpus)])[0], right)


@visible(
    "scatter",
    "scatter",
    en="a function of `batch` and `devices`",
    zh="一个以 `batch` 和 `devices` 为参数的函数",
)
def _scatter(student: Student) -> Iterator[Hint]:
    yield from ()
