"""Exercises of lesson 00: a tensor's bytes, and a first split on 4 GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import numbers, whole


@exercise(
    "00.bytes",
    Kind(whole, lambda: say(en="a whole number of bytes", zh="一个整数（字节数）")),
    ask=lambda: say(en="How many bytes does the tensor need?", zh="这个张量需要多少字节？"),
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
    ask=lambda: say(
        en="9 rows on 4 GPUs: how many rows has each piece, in order?",
        zh="9 行分给 4 块 GPU：各分块依次是几行？",
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


choice(
    "00.asked",
    lambda: say(en="What does PyTorch answer?", zh="PyTorch 会怎么回答？"),
    lambda: [
        (
            say(
                en="As the hardware is: on a laptop without a GPU, `False` and 0",
                zh="看硬件：没有 GPU 的笔记本上是 `False` 和 0",
            ),
            say(
                en="then no program could be tried here: PyTorch's own functions answer for the machine that the "
                "line above names",
                zh="那样就什么程序也试不了：PyTorch 自己的函数说的是上面那一行里的机器",
            ),
        ),
        (say(en="As many GPUs as the parameters say", zh="参数里写几块，就回答有几块"), RIGHT),
        (
            say(en="One GPU, however many the parameters say", zh="不管参数写几块，都回答一块"),
            say(
                en="each simulated GPU counts as one of its own, with its own number and its own memory",
                zh="每块模拟 GPU 都单独算一块，有自己的编号和显存",
            ),
        ),
    ],
    solution=lambda: say(
        en="Code that asks for GPUs finds them, so it runs unmodified; with `num_gpus = 0` it finds none.",
        zh="代码来问，就有 GPU，所以一字不改就能运行；写 `num_gpus = 0` 时，就一块也没有。",
    ),
)

choice(
    "00.mix",
    lambda: say(
        en="A tensor on cuda:2 plus one on the CPU gives …", zh="cuda:2 上的张量加 CPU 上的张量，结果是……"
    ),
    lambda: [
        (
            say(en="a result on cuda:2", zh="结果在 cuda:2 上"),
            say(
                en="PyTorch never moves data on its own: a hidden copy in every step would be a slow program "
                "without a word",
                zh="PyTorch 从不自己搬数据：每一步都悄悄拷贝，程序会变慢而没有任何提示",
            ),
        ),
        (
            say(en="a result on the CPU", zh="结果在 CPU 上"),
            say(
                en="that would be a hidden copy too, the other way; which of the two should it guess?",
                zh="那也是一次悄悄的拷贝，只是方向相反；它该猜哪一边呢？",
            ),
        ),
        (say(en="an error", zh="报错"), RIGHT),
    ],
    solution=lambda: say(
        en="An operation needs all its tensors on one device; whoever wrote the code must say which.",
        zh="一个运算要求所有张量都在同一个设备上；放在哪里，由写代码的人说清楚。",
    ),
)
