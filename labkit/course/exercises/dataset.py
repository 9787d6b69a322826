"""Exercises of lesson 01: rows, batches of them, and what the short last one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from ...base.language import say
from ...base.numbers import plural
from ..exercise import ANY_OTHER, RIGHT, Fact, Hints, Kind, choice, exercise
from ..kinds import A_WHOLE_NUMBER, a_function, numbers, returned, whole


def _sizes(rows: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, rows - start) for start in range(0, rows, size))


def _last(rows: int, size: int) -> int:
    return rows % size or size


def _another_dataset(random: Random) -> dict[str, int]:
    size = random.randint(7, 40)
    return {"rows": size * random.randint(2, 4) + random.randint(1, size - 1), "size": size}


_LOADER: dict[str, Fact] = {"rows": (100, 1, 1_000_000), "size": (30, 1, 1_000_000)}

_ROW = Kind(numbers, lambda: say(en="a shape, such as `[2, 3]`", zh="一个形状，例如 `[2, 3]`"))


@exercise(
    "01.row",
    _ROW,
    ask=lambda: say(en="What shape has `dataset[0]`?", zh="`dataset[0]` 是什么形状？"),
    solution=lambda: say(
        en="`[5]`: one row, five numbers, and no dimension for a batch.",
        zh="`[5]`：一行，五个数，还没有批次那一维。",
    ),
)
def _row(shape: tuple[int, ...]) -> Hints:
    return {
        (5,): RIGHT,
        (1, 5): say(
            en="that is a batch of one row; here somebody asks for a row, not for a batch",
            zh="那是只有一行的批次；这里要的是一行，不是批次",
        ),
        (100, 5): say(
            en="that is all the data; what does `self.data[index]` give for one index?",
            zh="那是全部数据；`self.data[index]` 取一个下标，得到什么？",
        ),
        (5, 100): say(
            en="which of the two numbers is the length, and which the size of a row?",
            zh="两个数里，哪个是数据集的长度，哪个是一行的大小？",
        ),
        ANY_OTHER: say(
            en="`self.data` has 100 rows of 5 numbers; what is left of its shape when one row is taken?",
            zh="`self.data` 有 100 行，每行 5 个数；取出一行，形状还剩什么？",
        ),
    }


@exercise(
    "01.stacked",
    _ROW,
    ask=lambda: say(
        en="30 rows of shape `[5]` become one tensor, a batch: of what shape?",
        zh="30 个形状为 `[5]` 的行合成一个张量，也就是一个批次：它是什么形状？",
    ),
    solution=lambda: say(
        en="`[30, 5]`: the rows are stacked along a new dimension in front.",
        zh="`[30, 5]`：各行沿着最前面新加的一维叠起来。",
    ),
)
def _stacked(shape: tuple[int, ...]) -> Hints:
    return {
        (30, 5): RIGHT,
        (150,): say(
            en="that would string all the numbers together, and nobody could tell the rows apart",
            zh="那就把所有的数连成一串，行与行之间就分不出来了",
        ),
        (5, 30): say(
            en="that puts the rows side by side as columns; the new dimension comes in front",
            zh="那是把各行当作列并排放；新的一维加在最前面",
        ),
        (100, 5): say(
            en="that is the whole dataset; a batch has only the rows that were taken",
            zh="那是整个数据集；一个批次里只有取出来的那些行",
        ),
        ANY_OTHER: say(
            en="a new dimension says which row; the others stay as they are",
            zh="新加的一维表示第几行，其余各维不变",
        ),
    }


@exercise(
    "01.batches",
    Kind(
        numbers,
        lambda: say(en="a list of whole numbers, such as `[60, 40]`", zh="一个整数列表，例如 `[60, 40]`"),
    ),
    facts={"rows": (100, 1, 200), "size": (30, 1, 200)},
    fresh=_another_dataset,
    ask=lambda rows, size: say(
        en=f"{plural(rows, 'row')}, {size} at a time: how many rows has each batch?",
        zh=f"{rows} 行，每次取 {size} 行：每个批次各有几行？",
    ),
    solution=lambda rows, size: say(
        en=f"`{list(_sizes(rows, size))}`: each batch is filled before the next begins; the last holds what is left.",
        zh=f"`{list(_sizes(rows, size))}`：装满一个批次，才装下一个；最后一个是剩下的行。",
    ),
)
def _batches(sizes: tuple[int, ...], rows: int, size: int) -> Iterator[str]:
    right, full, count = _sizes(rows, size), rows // size, -(-rows // size)
    if sizes == right:
        return
    if sizes == (size,) * full:
        yield say(
            en=f"these are {full * size} rows; what becomes of the others, if nobody says `drop_last=True`?",
            zh=f"这只有 {full * size} 行；没有写 `drop_last=True`，其余的行到哪里去了？",
        )
    if len(sizes) == count and sum(sizes) == rows and max(sizes) - min(sizes) <= 1:
        yield say(
            en="a loader does not even the batches out: it fills one to `batch_size` before it begins the next",
            zh="加载器不会把各批次分得一样大：它先给一个批次装满 `batch_size` 行，再装下一个",
        )
    if sizes == (size,) * count:
        yield say(
            en=f"that is {size * count} rows; the dataset has {rows}, and no row is given twice to fill up a batch",
            zh=f"这有 {size * count} 行；数据集只有 {rows} 行，不会为了凑满一批而把某些行重复给一次",
        )
    if sizes == (count,):
        yield say(
            en=f"{count} is how many batches there are; the question is how many rows each of them has",
            zh=f"{count} 是批次的个数；题目问的是每个批次各有几行",
        )
    yield say(
        en=f"these add up to {sum(sizes)} rows; the dataset has {rows}, taken {size} at a time",
        zh=f"这些加起来是 {sum(sizes)} 行；数据集有 {rows} 行，每次取 {size} 行",
    )


@exercise(
    "01.dropped",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    facts=_LOADER,
    fresh=_another_dataset,
    ask=lambda rows, size: say(
        en=f"{plural(rows, 'row')} in batches of {size}, `drop_last=True`: how many rows does the model never see in "
        "an epoch?",
        zh=f"{rows} 行、每批 {size} 行，`drop_last=True`：一轮里有几行是模型见不到的？",
    ),
    solution=lambda rows, size: say(
        en=f"`{rows % size}`: the rows that no full batch holds, {rows} − {rows // size} × {size}.",
        zh=f"`{rows % size}`：装不进满批次的那些行，{rows} − {rows // size} × {size}。",
    ),
)
def _dropped(count: int, rows: int, size: int) -> Hints:
    return {
        ANY_OTHER: say(
            en=f"{plural(rows, 'row')} in batches of {size}: how many rows does the short batch have?",
            zh=f"{rows} 行、每批 {size} 行：不满的那个批次有几行？",
        ),
        rows - rows % size: say(
            en=f"{rows - rows % size} rows are the ones that the model does see; the question is which are left out",
            zh=f"{rows - rows % size} 是模型见到的行数；题目问的是没见到的",
        ),
        size: say(
            en="only the short batch is dropped; the full ones all come",
            zh="丢弃的只是不满的那一个；装满的批次照常给出",
        ),
        0: say(
            en="`drop_last=True` throws the short batch away; its rows are not moved into another one",
            zh="`drop_last=True` 会把不满的批次整个丢掉，里面的行不会并到别的批次里",
        ),
        rows % size: RIGHT,
    }


choice(
    "01.uneven",
    lambda: say(
        en="Batches of 30, 30, 30 and 10 rows on 8 GPUs: in which of them has some GPU nothing to do?",
        zh="30、30、30、10 行的四个批次放到 8 块 GPU 上：哪些批次里会有 GPU 没活干？",
    ),
    lambda: [
        (
            say(
                en="In none: each has more rows than there are GPUs",
                zh="一个也没有：每个批次的行数都比 GPU 多",
            ),
            say(
                en="there are enough rows; but a piece has the quotient rounded up: how many pieces do 10 rows fill?",
                zh="行数是够的；但分块的行数要向上取整：10 行能装几个分块？",
            ),
        ),
        (say(en="Only in the short one", zh="只有不满的那个"), RIGHT),
        (
            say(en="In all: 30 is not a multiple of 8 either", zh="每个都有：30 也不是 8 的倍数"),
            say(
                en="then the last piece is short, which is not the same as empty: 30 rows in pieces of 4",
                zh="那只会让最后一个分块不满，不满不等于没有：30 行，每个分块 4 行",
            ),
        ),
    ],
    solution=lambda: say(
        en="30 rows in pieces of 4 reach the eighth GPU; 10 rows in pieces of 2 are used up after five.",
        zh="30 行、每个分块 4 行，轮得到第八块 GPU；10 行、每个分块 2 行，五块 GPU 就分完了。",
    ),
)


@exercise(
    "01.last",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    facts=_LOADER,
    fresh=_another_dataset,
    ask=lambda rows, size: say(
        en=f"{plural(rows, 'row')} in batches of {size}: how many rows has the last batch?",
        zh=f"{rows} 行、每批 {size} 行：最后一个批次有几行？",
    ),
    solution=lambda rows, size: say(
        en=f"`{_last(rows, size)}`: what is left after the full batches, or a full batch where nothing is left.",
        zh=f"`{_last(rows, size)}`：装满若干批之后剩下的行；一行不剩时，最后一批就是满的。",
    ),
)
def _last_rows(count: int, rows: int, size: int) -> Hints:
    return {
        ANY_OTHER: say(
            en=f"how often does {size} go into {rows}, and what is left?",
            zh=f"{rows} 里有几个 {size}？还剩多少？",
        ),
        -(-rows // size): say(
            en="that is how many batches there are; the question is about the rows of the last one",
            zh="这是批次的个数；题目问的是最后一个批次的行数",
        ),
        size: say(
            en=f"that would be a full batch; does {size} go into {rows} without a remainder?",
            zh=f"那是装满的一批；{rows} 能被 {size} 整除吗？",
        ),
        0: say(
            en="a loader never gives an empty batch; where nothing remains, the last batch is a full one",
            zh="加载器不会给出空批次；没有剩余时，最后一批是装满的",
        ),
        _last(rows, size): RIGHT,
    }


_LAST_BATCH = """```
def last_batch(rows, batch_size):
    return rows % batch_size or batch_size
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
        want = _last(rows, batch_size)
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
