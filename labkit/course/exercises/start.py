"""Exercises of lesson 00: a tensor's bytes and place, what to trust, and a first split on 4 GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import torch

from ...base.language import say
from ...base.numbers import plural
from ...plans.split import split
from ..exercise import ANY_OTHER, RIGHT, Fact, Hints, Kind, choice, exercise
from ..kinds import a_function, numbers, returned, whole, wrong_return
from .gpus import some_gpus


def _stored(size: int) -> int:
    return -(-size // 512) * 512


@exercise(
    "00.bytes",
    Kind(whole, lambda: say(en="a whole number of bytes", zh="一个整数（字节数）")),
    facts={"rows": (1000, 1, 1_000_000), "columns": (5, 1, 1000)},
    fresh=lambda random: {"rows": random.randrange(200, 3000, 100), "columns": random.randint(2, 9)},
    ask=lambda rows, columns: say(
        en=f"{plural(rows, 'row')} of {plural(columns, 'float32 number')}, on one of four GPUs: how many bytes does "
        "the tensor need?",
        zh=f"{rows} 行，每行 {columns} 个 float32 数，放在四块 GPU 中的一块上：这个张量需要多少字节？",
    ),
    solution=lambda rows, columns: say(
        en=f"`{4 * rows * columns}`: {rows} × {columns} numbers, 4 bytes each in float32. PyTorch's CUDA allocator "
        f"rounds up to a multiple of 512 bytes, so the GPU shows {_stored(4 * rows * columns)}.",
        zh=f"`{4 * rows * columns}`：{rows} × {columns} 个数，float32 每个 4 字节。PyTorch 的 CUDA 缓存分配器"
        f"向上取整到 512 字节的倍数，所以 GPU 上显示的是 {_stored(4 * rows * columns)}。",
    ),
)
def _bytes(count: int, rows: int, columns: int) -> Hints:
    numbers = rows * columns
    return {
        numbers: say(
            en=f"{numbers} is how many numbers the tensor holds; how many bytes does one of them take?",
            zh=f"{numbers} 是张量里一共有多少个数；每个数占几个字节？",
        ),
        8 * numbers: say(
            en="that would be float64, 8 bytes a number; PyTorch's default is float32",
            zh="那是 float64，每个数 8 字节；PyTorch 默认用 float32",
        ),
        2 * numbers: say(
            en="that would be 2 bytes a number, as in float16; PyTorch's default is float32",
            zh="那是每个数 2 字节（如 float16）；PyTorch 默认用 float32",
        ),
        16 * numbers: say(
            en="that is the tensor on each of four GPUs: does a tensor lie on all of them?",
            zh="这等于四块 GPU 上各有一份；一个张量会每块 GPU 上都有吗？",
        ),
        ANY_OTHER: say(
            en="rows × numbers in a row × bytes of one float32 number",
            zh="行数 × 每行有几个数 × 一个 float32 数占几字节",
        ),
        _stored(4 * numbers): RIGHT,
        4 * numbers: RIGHT,
    }


_SPLIT: dict[str, Fact] = {"rows": (9, 1, 1_000_000), "gpus": (4, 1, 64)}


def _few_rows(random: Random) -> dict[str, int]:
    gpus = random.randint(3, 8)
    return {"rows": random.randint(gpus + 1, 4 * gpus), "gpus": gpus}


@exercise(
    "00.first_split",
    Kind(
        numbers, lambda: say(en="a list of whole numbers, such as `[5, 4]`", zh="一个整数列表，例如 `[5, 4]`")
    ),
    facts={"rows": (9, 1, 200), "gpus": (4, 1, 64)},
    fresh=_few_rows,
    ask=lambda rows, gpus: say(
        en=f"{plural(rows, 'row')} on {plural(gpus, 'GPU')}: how many rows has each piece, in order?",
        zh=f"{rows} 行分给 {gpus} 块 GPU：各分块依次是几行？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{list(split(rows, gpus).sizes)}`: a piece has ceil({rows} / {gpus}) = {-(-rows // gpus)} rows"
        + _idle_en(rows, gpus),
        zh=f"`{list(split(rows, gpus).sizes)}`：每个分块 ⌈{rows} / {gpus}⌉ = {-(-rows // gpus)} 行"
        + _idle_zh(rows, gpus),
    ),
)
def _first_split(sizes: tuple[int, ...], rows: int, gpus: int) -> Iterator[str]:
    right, down = tuple(split(rows, gpus).sizes), rows // gpus
    if sizes == right:
        return
    if sizes == (*right, *[0] * (gpus - len(right))):
        yield say(
            en="the rows are right; but a GPU without rows gets no piece at all, not an empty one: leave the zeros out",
            zh="行数是对的；但没有行的 GPU 根本没有分块，而不是分到一个空的：别写 0",
        )
    if sizes == (rows,) * gpus:
        yield say(
            en="each GPU gets its own part of the batch, not the whole of it: it is the model that is copied",
            zh="每块 GPU 只拿到批次的一部分，不是整个批次；整个复制的是模型",
        )
    rounded = ((down,) * gpus, (down,) * (gpus - 1) + (rows - down * (gpus - 1),), _filled(rows, down))
    if down != right[0] and sizes in rounded:
        yield say(
            en=f"that rounds {rows} / {gpus} down, and some rows are left over; which way must it be rounded so that "
            "none are?",
            zh=f"这是把 {rows} / {gpus} 向下取整，总有几行剩下来；往哪个方向取整，才一行也不剩？",
        )
    if sum(sizes) != rows:
        yield say(
            en=f"these pieces hold {sum(sizes)} rows in all, but the batch has {rows}",
            zh=f"这些分块一共 {sum(sizes)} 行，但批次有 {rows} 行",
        )
    if sorted(sizes) == sorted(down + (k < rows % gpus) for k in range(gpus)):
        yield say(
            en="that shares the rows out as evenly as possible. PyTorch rounds up once, and fills one piece of that "
            "size after the other: what is left for the last GPU?",
            zh="这是尽量平均的分法。PyTorch 只向上取整一次，再按这个大小逐个装满分块：轮到最后一块 GPU 时还剩几行？",
        )
    yield say(
        en=f"how many rows is ceil({rows} / {gpus})? Fill pieces of that size until the rows run out",
        zh=f"⌈{rows} / {gpus}⌉ 是几行？按这个大小依次装满分块，直到行分完",
    )


def _filled(rows: int, piece: int) -> tuple[int, ...]:
    return tuple(min(piece, rows - start) for start in range(0, rows, piece)) if piece else ()


def _idle_en(rows: int, gpus: int) -> str:
    pieces, idle = len(split(rows, gpus).sizes), len(split(rows, gpus).idle)
    if not idle:
        return f", and {plural(pieces, 'piece')} hold them all."
    return f"; {plural(pieces, 'piece')} hold them all, so {plural(idle, 'GPU')} {'is' if idle == 1 else 'are'} idle."


def _idle_zh(rows: int, gpus: int) -> str:
    pieces, idle = len(split(rows, gpus).sizes), len(split(rows, gpus).idle)
    return f"，{pieces} 个分块就装下了全部" + (f"，所以有 {idle} 块 GPU 空闲。" if idle else "。")


@exercise(
    "00.last_piece",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    facts=_SPLIT,
    fresh=_few_rows,
    ask=lambda rows, gpus: say(
        en=f"{plural(rows, 'row')} on {plural(gpus, 'GPU')}: how many rows has the last piece?",
        zh=f"{rows} 行分给 {gpus} 块 GPU：最后一个分块有几行？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{split(rows, gpus).sizes[-1]}`: pieces of ceil({rows} / {gpus}) = {-(-rows // gpus)} rows, and the last "
        "one gets what is left.",
        zh=f"`{split(rows, gpus).sizes[-1]}`：每个分块 ⌈{rows} / {gpus}⌉ = {-(-rows // gpus)} 行，最后一个拿剩下的。",
    ),
)
def _last_piece(count: int, rows: int, gpus: int) -> Hints:
    return {
        ANY_OTHER: say(
            en=f"{rows} / {gpus} rounded up is one piece; how many such pieces are full, and what is left then?",
            zh=f"{rows} / {gpus} 向上取整就是一个分块的行数；能装满几个？还剩几行？",
        ),
        rows // gpus: say(
            en=f"that rounds {rows} / {gpus} down; a piece gets the quotient rounded up",
            zh=f"这是把 {rows} / {gpus} 向下取整；分块的行数是向上取整",
        ),
        -(-rows // gpus): say(
            en="that is a full piece; is there enough left for another full one at the end?",
            zh="这是装满的分块；到最后，剩下的行还够装满一个吗？",
        ),
        0: say(
            en="a piece without rows is not made; the last piece is the last one that has some",
            zh="没有行的分块根本不会有；最后一个分块，是最后一个有行的",
        ),
        split(rows, gpus).sizes[-1]: RIGHT,
    }


_TOGETHER = """```
def add(x, y):
    return x + y.to(x.device)
```"""


@exercise(
    "00.add",
    a_function("add", lambda: say(en="a function of `x` and `y`", zh="一个以 `x` 和 `y` 为参数的函数")),
    solution=lambda: say(
        en=f"Move the one that is not at home, and only for this sum:\n{_TOGETHER}",
        zh=f"把不在这里的那个搬过来，只为这一次相加：\n{_TOGETHER}",
    ),
)
def _add(answer: Callable[..., object]) -> Iterator[str]:
    with some_gpus() as devices:
        for here, there in (("cpu", devices[0]), (devices[-1], "cpu"), (devices[0], devices[-1])):
            x, y = torch.arange(3.0, device=here), torch.full((3,), 2.0, device=there)
            case_en, case_zh = f"with x on {here} and y on {there}", f"x 在 {here}、y 在 {there} 上时"
            try:
                got = returned(answer(x, y))
            except RuntimeError as error:
                yield say(
                    en=f"{case_en} PyTorch says: `{error}`",
                    zh=f"{case_zh}，PyTorch 报错：`{error}`",
                )
                return
            if not isinstance(got, torch.Tensor):
                raise wrong_return(got, say(en="a tensor", zh="一个张量"))
            if str(got.device) != here:
                yield say(
                    en=f"{case_en} the sum is on {got.device}; it is to be where x is. A device "
                    "written into the code is right for one case only: how does the code learn where x is?",
                    zh=f"{case_zh}，和在 {got.device} 上；它应该和 x 在一起。在代码里写死一个设备，只对一种情况管用："
                    "代码怎样才知道 x 在哪里？",
                )
            if got.shape != x.shape or not torch.equal(got.cpu(), torch.arange(3.0) + 2):
                yield say(en=f"{case_en} the numbers are not those of x + y", zh=f"{case_zh}，数值不是 x + y")


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
                zh="那样就什么程序也试不了：PyTorch 自己的函数回答的，是上面那一行写的机器",
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
        zh="代码问有没有 GPU，得到的回答是有，所以一字不改就能运行；写 `num_gpus = 0` 时，回答就是没有。",
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

choice(
    "00.trust",
    lambda: say(
        en="You run a lesson on simulated GPUs and then on real ones. Which of these may come out differently?",
        zh="同一课先在模拟 GPU 上运行，再在真 GPU 上运行。下面哪一样可能不同？",
    ),
    lambda: [
        (
            say(en="The shapes of the pieces", zh="各分块的形状"),
            say(
                en="shapes follow from the rule of the split, and the rule is run, not imitated",
                zh="形状由切分规则决定，而规则是真的在执行，不是做样子",
            ),
        ),
        (
            say(en="The text of an error about devices", zh="与设备有关的报错文字"),
            say(
                en="that is PyTorch's own text; you have just read one",
                zh="那是 PyTorch 的原文，你刚刚读过一条",
            ),
        ),
        (say(en="The seconds it takes", zh="花的秒数"), RIGHT),
        (
            say(en="The GPU that a tensor is on", zh="张量在哪块 GPU 上"),
            say(
                en="every tensor remembers its GPU; that is the very thing that is simulated",
                zh="每个张量都记得自己在哪块 GPU 上，模拟的正是这一点",
            ),
        ),
    ],
    solution=lambda: say(
        en="Eight simulated GPUs share one CPU: they show where things are and what they are, not how fast.",
        zh="八块模拟 GPU 共用一个 CPU：它们说的是东西在哪里、是什么，不是有多快。",
    ),
)
