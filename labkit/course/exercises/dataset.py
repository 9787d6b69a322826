"""Exercises of lesson 01: batches of a dataset, and what the short last one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import A_WHOLE_NUMBER, a_function, numbers, returned, whole


@exercise(
    "01.batches",
    Kind(
        numbers,
        lambda: say(en="a list of whole numbers, such as `[60, 40]`", zh="一个整数列表，例如 `[60, 40]`"),
    ),
    ask=lambda: say(
        en="100 rows, 30 at a time: how many rows has each batch?",
        zh="100 行，每次取 30 行：每个批次各有几行？",
    ),
    solution=lambda: say(
        en="`[30, 30, 30, 10]`: three full batches, then the 10 rows that are left.",
        zh="`[30, 30, 30, 10]`：三个装满的批次，再加剩下的 10 行。",
    ),
)
def _batches(sizes: tuple[int, ...]) -> Hints:
    return {
        (30, 30, 30, 10): RIGHT,
        (30, 30, 30): say(
            en="that is what `drop_last=True` gives; by default the last 10 rows come too, as a short batch",
            zh="这是 `drop_last=True` 的结果；默认情况下，最后 10 行也会作为一个不满的批次给出",
        ),
        (25, 25, 25, 25): say(
            en="a loader does not even the batches out: it fills one to `batch_size` before it begins the next",
            zh="加载器不会把各批次分得一样大：它先给一个批次装满 `batch_size` 行，再装下一个",
        ),
        (30, 30, 30, 30): say(
            en="that is 120 rows; the dataset has 100, and no row is given twice to fill up the last batch",
            zh="这有 120 行；数据集只有 100 行，不会为了凑满最后一批而把某些行重复给一次",
        ),
        (4,): say(
            en="there are 4 batches; the question is how many rows each of them has",
            zh="确实有 4 个批次；题目问的是每个批次各有几行",
        ),
        ANY_OTHER: say(
            en=f"these add up to {sum(sizes)} rows; the dataset has 100, taken 30 at a time",
            zh=f"这些加起来是 {sum(sizes)} 行；数据集有 100 行，每次取 30 行",
        ),
    }


@exercise(
    "01.dropped",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    ask=lambda: say(
        en="How many rows does the model never see in an epoch?", zh="一轮里，有几行是模型见不到的？"
    ),
    solution=lambda: say(
        en="`10`: the rows of the short batch, 100 − 3 × 30.", zh="`10`：不满的那个批次的行数，100 − 3 × 30。"
    ),
)
def _dropped(count: int) -> Hints:
    return {
        10: RIGHT,
        0: say(
            en="`drop_last=True` throws the short batch away; its rows are not moved into another one",
            zh="`drop_last=True` 会把不满的批次整个丢掉，里面的行不会并到别的批次里",
        ),
        30: say(
            en="only the short batch is dropped; the full ones all come",
            zh="丢弃的只是不满的那一个；装满的批次照常给出",
        ),
        90: say(
            en="90 rows are the ones that the model does see; the question is which are left out",
            zh="90 是模型见到的行数；题目问的是没见到的",
        ),
        ANY_OTHER: say(
            en="100 rows in batches of 30: how many rows does the short batch have?",
            zh="100 行、每批 30 行：不满的那个批次有几行？",
        ),
    }


_LAST_BATCH = """```
def last_batch(rows, batch_size):
    return rows % batch_size or min(rows, batch_size)
```"""


@exercise(
    "01.last_batch",
    a_function(
        "last_batch",
        lambda: say(
            en="a function of `rows` and `batch_size`", zh="一个以 `rows` 和 `batch_size` 为参数的函数"
        ),
    ),
    solution=lambda: say(
        en=f"The remainder, but a full batch where nothing remains:\n{_LAST_BATCH}",
        zh=f"取余数；余数为 0 时，最后一批是满的：\n{_LAST_BATCH}",
    ),
)
def _last_batch(answer: Callable[..., object]) -> Iterator[str]:
    for rows, batch_size in ((100, 30), (90, 30), (3, 30), (7, 1), (64, 64), (1000, 32)):
        got = returned(answer(rows, batch_size), A_WHOLE_NUMBER)
        want = rows % batch_size or min(rows, batch_size)
        if got == want:
            continue
        if got == 0:
            yield say(
                en=f"for {rows} rows in batches of {batch_size} it gives 0. Nothing remains there, "
                "so the last batch is a full one: a loader never gives an empty batch",
                zh=f"{rows} 行、每批 {batch_size} 行时得到 0。正好除尽时，最后一批是装满的：加载器不会给出空批次",
            )
        if got == batch_size:
            yield say(
                en=f"for {rows} rows in batches of {batch_size} it gives {got}, a full batch, "
                f"but only {want} rows are left for the last one",
                zh=f"{rows} 行、每批 {batch_size} 行时得到 {got}，是满的一批；但留给最后一批的只有 {want} 行",
            )
        yield say(
            en=f"for {rows} rows in batches of {batch_size} it gives {got}, but the last batch has {want}",
            zh=f"{rows} 行、每批 {batch_size} 行时得到 {got}，而最后一批有 {want} 行",
        )


choice(
    "01.shuffle",
    lambda: say(en="What changes from one epoch to the next?", zh="从这一轮到下一轮，变的是什么？"),
    lambda: [
        (
            say(en="The sizes of the batches", zh="批次的大小"),
            say(
                en="the loader still fills each batch to `batch_size` before it begins the next",
                zh="加载器仍然先给一个批次装满 `batch_size` 行，再装下一个",
            ),
        ),
        (say(en="The rows in the batches", zh="批次里装了哪些行"), RIGHT),
        (
            say(en="Both", zh="两者都变"),
            say(
                en="the order is drawn anew, not the sizes: 8 rows, three at a time, is 3, 3 and 2 in any order",
                zh="重新抽的是顺序，不是大小：8 行、每次三行，怎么排都是 3、3、2",
            ),
        ),
    ],
    solution=lambda: say(
        en="Only the order of the rows is drawn anew; the sizes follow from 8 and 3 alone.",
        zh="重新抽的只是行的顺序；大小只取决于 8 和 3。",
    ),
)

choice(
    "01.where",
    lambda: say(
        en="On which device is a batch that the loader hands out?", zh="加载器交出来的批次在哪个设备上？"
    ),
    lambda: [
        (
            say(en="cuda:0, if there is one", zh="有 cuda:0 就在 cuda:0 上"),
            say(
                en="a loader knows nothing of GPUs: it stacks the rows where the dataset made them",
                zh="加载器不知道有 GPU：数据集在哪里生成各行，它就在哪里把它们叠起来",
            ),
        ),
        (
            say(en="Spread over all GPUs", zh="摊在各块 GPU 上"),
            say(
                en="that is what a wrapped model does with a batch that it is given; nobody has done it yet",
                zh="那是包装过的模型拿到批次之后才做的事；现在还没有人做",
            ),
        ),
        (say(en="The CPU", zh="在 CPU 上"), RIGHT),
    ],
    solution=lambda: say(
        en="The dataset made its rows on the CPU, and nobody has moved them.",
        zh="数据集在 CPU 上生成各行，之后谁也没有搬动过。",
    ),
)
