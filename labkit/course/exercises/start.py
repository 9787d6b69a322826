"""Exercises of lesson 00: a tensor's bytes, and a first split on 4 GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, exercise
from ..kinds import numbers, whole


@exercise(
    "00.bytes",
    Kind(whole, lambda: say(en="a whole number of bytes", zh="一个整数（字节数）")),
    solution=lambda: say(
        en="`20000`: 1000 × 5 numbers, 4 bytes each in float32. PyTorch's CUDA allocator rounds up to 512 bytes, "
        "so the GPU shows 40 × 512 = 20480.",
        zh="`20000`：1000 × 5 个数，float32 每个 4 字节。PyTorch 的 CUDA 缓存分配器向上取整到 512 字节，"
        "所以 GPU 上显示的是 40 × 512 = 20480。",
    ),
)
def _bytes(count: int) -> Hints:
    return {
        20000: RIGHT,
        20480: RIGHT,
        5000: say(
            en="5000 is how many numbers the tensor holds; a float32 number takes 4 bytes",
            zh="5000 是张量里一共有多少个数；每个 float32 数占 4 字节",
        ),
        40000: say(
            en="that would be float64, 8 bytes a number; PyTorch's default is float32",
            zh="那是 float64，每个数 8 字节；PyTorch 默认用 float32",
        ),
        10000: say(
            en="that would be 2 bytes a number, as in float16; PyTorch's default is float32",
            zh="那是每个数 2 字节（如 float16）；PyTorch 默认用 float32",
        ),
        80000: say(
            en="only cuda:2 holds this tensor: the other three GPUs have no copy of it",
            zh="只有 cuda:2 上有这个张量，另外三块 GPU 上并没有它的副本",
        ),
        ANY_OTHER: say(
            en="rows × numbers in a row × bytes of one float32 number",
            zh="行数 × 每行有几个数 × 一个 float32 数占几字节",
        ),
    }


@exercise(
    "00.first_split",
    Kind(
        numbers, lambda: say(en="a list of whole numbers, such as `[5, 4]`", zh="一个整数列表，例如 `[5, 4]`")
    ),
    solution=lambda: say(
        en="`[3, 3, 3]`: a piece has ceil(9 / 4) = 3 rows; after three pieces no row is left, "
        "so the fourth GPU is idle.",
        zh="`[3, 3, 3]`：每个分块 ⌈9 / 4⌉ = 3 行；分出三个之后一行不剩，第四块 GPU 空闲。",
    ),
)
def _first_split(sizes: tuple[int, ...]) -> Iterator[str]:
    if sizes == (3, 3, 3):
        return
    if sizes == (3, 3, 3, 0):
        yield say(
            en="the rows are right; but the fourth GPU gets no piece at all, not an empty one: "
            "three numbers, not four",
            zh="行数是对的；但第四块 GPU 根本没有分块，而不是分到一个空的：应该是三个数，不是四个",
        )
    if sizes == (9, 9, 9, 9):
        yield say(
            en="each GPU gets its own part of the batch, not the whole of it: it is the model that is copied",
            zh="每块 GPU 只拿到批次的一部分，不是整个批次；整个复制的是模型",
        )
    if sum(sizes) != 9:
        yield say(
            en=f"these pieces hold {sum(sizes)} rows in all, but the batch has 9",
            zh=f"这些分块一共 {sum(sizes)} 行，但批次有 9 行",
        )
    if sorted(sizes) == [2, 2, 2, 3]:
        yield say(
            en="that shares the rows out as evenly as possible; PyTorch instead rounds up once, "
            "to ceil(9 / 4) = 3, and fills pieces of 3 until the rows run out",
            zh="这是尽量平均的分法；PyTorch 不这样做：它只向上取整一次，⌈9 / 4⌉ = 3，"
            "然后每个分块装 3 行，直到行分完",
        )
    yield say(
        en="how many rows is ceil(9 / 4)? Fill pieces of that size until the rows run out",
        zh="⌈9 / 4⌉ 是几行？按这个大小依次装满分块，直到行分完",
    )
