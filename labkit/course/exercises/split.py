"""Exercises of lesson 03: which GPU gets a row, which GPUs are idle, a batch size to choose, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from ...base.language import say
from ...base.numbers import plural
from ...plans.split import split
from ..exercise import ANY_OTHER, RIGHT, Fact, Hints, Kind, choice, exercise
from ..kinds import SOME_WHOLE_NUMBERS, a_function, gpu_number, returned, whole


def _chunk(rows: int, gpus: int) -> int:
    return -(-rows // gpus)


def _rows(usual: int) -> Fact:
    return usual, 1, 1_000_000


_GPUS: Fact = (8, 1, 64)


def _another_row(random: Random) -> dict[str, int]:
    gpus = random.randint(3, 8)
    rows = random.randint(2 * gpus + 1, 5 * gpus)
    return {"row": random.randrange(rows), "rows": rows, "gpus": gpus}


def _another_batch(random: Random) -> dict[str, int]:
    gpus = random.randint(4, 12)
    return {"rows": random.randint(gpus + 1, 3 * gpus), "gpus": gpus}


@exercise(
    "03.last",
    Kind(whole, lambda: say(en="a whole number of lines", zh="一个整数（打印的条数）")),
    facts={"rows": _rows(10), "gpus": (8, 0, 64)},
    fresh=_another_batch,
    ask=lambda rows, gpus: say(
        en=f"The last batch has {plural(rows, 'row')}; there are {gpus} GPUs. How many lines `In Model` will it "
        f"print?",
        zh=f"最后一个批次有 {rows} 行，一共 {gpus} 块 GPU。它会打印几条 `In Model`？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{_replicas(rows, gpus)}`: one line for each replica, and there are as many replicas as pieces.",
        zh=f"`{_replicas(rows, gpus)}`：每个副本一条，有几个分块就有几个副本。",
    ),
)
def _last(lines: int, rows: int, gpus: int) -> Hints:
    other = say(
        en="each replica prints one line, and a replica is made for each piece; watch how many there are",
        zh="每个副本打印一条，有几个分块就做几个副本；运行之后数一数",
    )
    idle = say(
        en="that is one line for each GPU; a GPU without rows has no replica, and prints nothing",
        zh="这是每块 GPU 一条；没有分到行的 GPU 没有副本，什么也不打印",
    )
    return {gpus: idle, ANY_OTHER: other, _replicas(rows, gpus): RIGHT}


def _replicas(rows: int, gpus: int) -> int:
    return len(split(rows, gpus).sizes) if gpus > 1 else 1


@exercise(
    "03.which",
    Kind(
        lambda answer: whole(gpu_number(answer)),
        lambda: say(en="the number of a GPU, such as `0`", zh="GPU 的编号，例如 `0`"),
    ),
    facts={"row": (17, 0, 999_999), "rows": _rows(30), "gpus": _GPUS},
    fresh=_another_row,
    ask=lambda row, rows, gpus: say(
        en=f"Rows 0 to {rows - 1} go to {gpus} GPUs: which GPU gets row {row}?",
        zh=f"第 0 到 {rows - 1} 行分给 {gpus} 块 GPU：第 {row} 行归哪一块？",
    ),
    solution=lambda row, rows, gpus: say(
        en=f"`{row // _chunk(rows, gpus)}`: pieces have ceil({rows} / {gpus}) = {_chunk(rows, gpus)} rows, and "
        f"{row} // {_chunk(rows, gpus)} = {row // _chunk(rows, gpus)}.",
        zh=f"`{row // _chunk(rows, gpus)}`：每个分块 ⌈{rows} / {gpus}⌉ = {_chunk(rows, gpus)} 行，"
        f"{row} // {_chunk(rows, gpus)} = {row // _chunk(rows, gpus)}。",
    ),
)
def _which(gpu: int, row: int, rows: int, gpus: int) -> Iterator[str]:
    right = row // _chunk(rows, gpus)
    if gpu == right:
        return
    if gpu == row // max(rows // gpus, 1):  # the commonest of all, so before those that it may look like
        yield say(
            en=f"that fits pieces of {rows // gpus} rows, {rows} / {gpus} rounded down; {gpus} such pieces would leave "
            "rows over",
            zh=f"这是按每个分块 {rows // gpus} 行算的，即 {rows} / {gpus} 向下取整；{gpus} 个这样的分块装不下所有行",
        )
    if gpu == right + 1:
        yield say(
            en="the first GPU is cuda:0 and the first row is row 0: are both counted from zero?",
            zh="第一块 GPU 是 cuda:0，第一行是第 0 行：两样都是从 0 开始数的吗？",
        )
    if gpu == row % gpus:
        yield say(
            en=f"rows are not dealt out in turn like cards ({row} = {row // gpus} × {gpus} + {gpu}); each GPU gets a "
            "run of neighbouring rows",
            zh=f"行不是像发牌那样轮流分的（{row} = {row // gpus} × {gpus} + {gpu}）；每块 GPU 拿到的是相邻的一段行",
        )
    if not 0 <= gpu < gpus:
        yield say(
            en=f"there is no cuda:{gpu} among {gpus} GPUs: they are cuda:0 to cuda:{gpus - 1}",
            zh=f"{gpus} 块 GPU 里没有 cuda:{gpu}：编号是 cuda:0 到 cuda:{gpus - 1}",
        )
    yield say(
        en="how many rows has a piece? Then count pieces until one holds the row",
        zh="一个分块有几行？再数一数这一行落在第几个分块里",
    )


@exercise(
    "03.idle",
    Kind(whole, lambda: say(en="a whole number of GPUs", zh="一个整数（GPU 的块数）")),
    facts={"rows": _rows(10), "gpus": _GPUS},
    fresh=_another_batch,
    ask=lambda rows, gpus: say(
        en=f"{plural(rows, 'row')} on {gpus} GPUs: how many GPUs are idle?",
        zh=f"{rows} 行分给 {gpus} 块 GPU：有几块空闲？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{gpus - _replicas(rows, gpus)}`: pieces have ceil({rows} / {gpus}) = {_chunk(rows, gpus)} rows, and "
        f"{plural(_replicas(rows, gpus), 'piece')} hold all {rows}.",
        zh=f"`{gpus - _replicas(rows, gpus)}`：每个分块 ⌈{rows} / {gpus}⌉ = {_chunk(rows, gpus)} 行，"
        f"{_replicas(rows, gpus)} 个分块就装下了全部 {rows} 行。",
    ),
)
def _idle(count: int, rows: int, gpus: int) -> Hints:
    busy, chunk = _replicas(rows, gpus), _chunk(rows, gpus)
    return {
        ANY_OTHER: say(
            en=f"how many rows has a piece, {rows} / {gpus} rounded up? And how many such pieces do the rows fill?",
            zh=f"{rows} / {gpus} 向上取整，每个分块几行？这些行能装几个分块？",
        ),
        gpus - 1: say(
            en=f"that would mean that one GPU has all {rows} rows; how many rows fit into one piece?",
            zh=f"那就等于 {rows} 行都压在一块 GPU 上；一个分块到底装几行？",
        ),
        chunk * gpus - rows: say(
            en=f"{chunk * gpus - rows} rows are missing to fill {gpus} pieces; how many pieces is that?",
            zh=f"要装满 {gpus} 个分块，还差 {chunk * gpus - rows} 行；这些行是几个分块？",
        ),
        busy: say(
            en=f"{busy} GPUs work; the question is how many do not",
            zh=f"{busy} 块是在工作的；题目问的是空闲的有几块",
        ),
        0: say(
            en="that would need the rows to be shared out evenly; but pieces are filled one after the other: how many "
            "rows has the first, and when do they run out?",
            zh="那得尽量平均地分；实际上分块是一个一个装满的：第一个装几行？行什么时候用完？",
        ),
        gpus - busy: RIGHT,
    }


def _all_busy(rows: int, size: int, gpus: int) -> tuple[bool, bool]:
    """Whether every GPU has rows in each full batch, and whether in the last one."""
    last = rows % size or size
    return _replicas(size, gpus) >= gpus or size > rows, _replicas(last, gpus) >= gpus


def _best(rows: int, gpus: int, most: int = 200) -> int:
    """The smallest batch size that leaves no GPU idle in any batch; 0 if there is none up to ``most``."""
    found = (size for size in range(1, min(rows, most) + 1) if all(_all_busy(rows, size, gpus)))
    return next(found, 0)


@exercise(
    "03.busy",
    Kind(whole, lambda: say(en="a whole number, a batch size", zh="一个整数（批量大小）")),
    facts={"rows": (100, 1, 1_000_000), "gpus": _GPUS},
    fresh=lambda random: {"rows": random.randint(60, 140), "gpus": random.randint(4, 8)},
    ask=lambda rows, gpus: say(
        en=f"{plural(rows, 'row')} and {plural(gpus, 'GPU')}: give a batch size, up to 200, with which no GPU is idle "
        "in any batch, the last one included (0 if there is none)",
        zh=f"{rows} 行、{gpus} 块 GPU：给出一个批量大小（不超过 200），让每个批次（包括最后一个）都没有 GPU 空闲"
        "（没有这样的数就填 0）",
    ),
    solution=lambda rows, gpus: _busy_solution(rows, gpus),
)
def _busy(size: int, rows: int, gpus: int) -> Iterator[str]:
    best = _best(rows, gpus)
    if size == best == 0:
        return
    if not 1 <= size <= 200:
        yield say(
            en="there is one: look from 1 to 200" if best else "a batch size is at least 1; 0 says none",
            zh="有这样的数：在 1 到 200 之间找" if best else "批量大小至少是 1；没有就填 0",
        )
        return
    full, last = _all_busy(rows, size, gpus)
    if not full:
        yield say(
            en=f"{plural(size, 'row')} make pieces of {_chunk(size, gpus)}, which is enough for "
            f"{_replicas(size, gpus)} of the {gpus} GPUs",
            zh=f"{size} 行，每个分块 {_chunk(size, gpus)} 行，{gpus} 块 GPU 里只够 {_replicas(size, gpus)} 块分到",
        )
    if not last:
        left = rows % size or min(size, rows)
        yield say(
            en=f"the full batches are all right; but the last has {plural(left, 'row')}, enough for "
            f"{_replicas(left, gpus)} of the {gpus} GPUs",
            zh=f"装满的批次没有问题；但最后一个批次有 {left} 行，{gpus} 块 GPU 里只够 {_replicas(left, gpus)} 块分到",
        )


def _busy_solution(rows: int, gpus: int) -> str:
    best = _best(rows, gpus)
    if not best:
        return say(
            en="`0`: every batch size up to 200 leaves a GPU idle in some batch; `drop_last=True` would help.",
            zh="`0`：200 以内的批量大小，总有某个批次让 GPU 空闲；用 `drop_last=True` 可以避开。",
        )
    last = rows % best or best
    return say(
        en=f"`{best}`, for example: pieces of {_chunk(best, gpus)} reach all {gpus} GPUs, and the last batch of "
        f"{last} makes {_replicas(last, gpus)} pieces.",
        zh=f"例如 `{best}`：每个分块 {_chunk(best, gpus)} 行，{gpus} 块 GPU 都分得到；最后一个批次 {last} 行，"
        f"正好 {_replicas(last, gpus)} 个分块。",
    )


choice(
    "03.longest",
    lambda: say(
        en="8 GPUs, the same model: which of these batches keeps you waiting longest?",
        zh="8 块 GPU、同一个模型：下面哪个批次要等得最久？",
    ),
    lambda: [
        (
            say(en="18 rows", zh="18 行"),
            say(
                en="two GPUs have nothing to do there, but idle GPUs keep nobody waiting: who does?",
                zh="那时有两块 GPU 没活干，但空闲的 GPU 不会让谁等；让大家等的是谁？",
            ),
        ),
        (
            say(en="24 rows", zh="24 行"),
            say(
                en="there is more work in all; but it is done side by side: how many rows has the busiest GPU, and how "
                "many has it with 18?",
                zh="总的活是多了，但各块 GPU 是同时干的：最忙的那块 GPU 分到几行？18 行时呢？",
            ),
        ),
        (say(en="Both take about as long", zh="两个差不多"), RIGHT),
    ],
    solution=lambda: say(
        en="Everybody waits for the GPU with the most rows: 3 rows in both batches.",
        zh="大家等的是行数最多的那块 GPU：两个批次里都是 3 行。",
    ),
)


@exercise(
    "03.same",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    facts={"gpus": (8, 1, 64)},
    fresh=lambda random: {"gpus": random.randint(3, 16)},
    ask=lambda gpus: say(
        en=f"{plural(gpus, 'GPU')}: {plural(gpus, 'row')} give each of them one. What is the next batch that gives all "
        "of them the same number of rows?",
        zh=f"{gpus} 块 GPU：{gpus} 行时，每块正好一行。再往上，下一个让每块 GPU 行数相同的批次是几行？",
    ),
    solution=lambda gpus: say(
        en=f"`{2 * gpus}`: only multiples of {gpus} come out even, and everything between them leaves a short piece or "
        "idle GPUs.",
        zh=f"`{2 * gpus}`：只有 {gpus} 的倍数才能正好分完；两个倍数之间，不是最后一个分块不满，就是有 GPU 空闲。",
    ),
)
def _same(rows: int, gpus: int) -> Hints:
    return {
        ANY_OTHER: say(
            en=f"with {plural(rows, 'row')}, how many has the last GPU? Try it in the picture above",
            zh=f"{rows} 行时，最后一块 GPU 分到几行？在上面的图里试一试",
        ),
        gpus + 1: say(
            en="with one row more, pieces have 2 rows; how many GPUs do they reach?",
            zh="多一行，每个分块就有 2 行；这样能分到几块 GPU？",
        ),
        gpus: say(
            en="that is the batch with one row each; look for the next",
            zh="这就是每块一行的那个批次；要找的是下一个",
        ),
        2 * gpus: RIGHT,
    }


choice(
    "03.order",
    lambda: say(
        en="cuda:2 runs first. Are its rows the first rows of the output?",
        zh="cuda:2 最先运行。输出里最前面的就是它的行吗？",
    ),
    lambda: [
        (
            say(en="Yes: who is done first comes first", zh="是：谁先算完，谁排在前面"),
            say(
                en="then the output would have its rows in another order each time, and the loss would compare "
                "them with the wrong labels",
                zh="那样的话，输出里各行的顺序每次都会不同，算损失时就会和错误的标签对上",
            ),
        ),
        (say(en="No: the output keeps the order of the batch", zh="不是：输出保持批次原来的顺序"), RIGHT),
        (
            say(en="It depends on which GPU is home", zh="取决于哪一块是主设备"),
            say(
                en="home only says where the output is, not in which order it stands",
                zh="主设备只决定输出放在哪里，不决定各行的顺序",
            ),
        ),
    ],
    solution=lambda: say(
        en="Gather joins the pieces in the order of the devices, however long each of them took.",
        zh="收集按设备的顺序把分块拼起来，不管谁先算完。",
    ),
)


_RULE = """```
def pieces(rows, gpus):
    c = -(-rows // gpus)
    return [min(c, rows - start) for start in range(0, rows, c)]
```"""


@exercise(
    "03.rule",
    a_function(
        "pieces",
        lambda: say(en="a function of `rows` and `gpus`", zh="一个以 `rows` 和 `gpus` 为参数的函数"),
    ),
    solution=lambda: say(
        en=f"`-(-a // b)` rounds a / b up, exactly, with whole numbers only:\n{_RULE}",
        zh=f"`-(-a // b)` 只用整数，就能把 a / b 准确地向上取整：\n{_RULE}",
    ),
)
def _rule(answer: Callable[..., object]) -> Iterator[str]:
    for rows, gpus in ((30, 8), (10, 8), (9, 4), (7, 2), (1, 3), (64, 64), (10, 3), (9, 8)):
        yield from _compared(rows, gpus, list(returned(answer(rows, gpus), SOME_WHOLE_NUMBERS)))


def _compared(rows: int, gpus: int, got: list[int]) -> Iterator[str]:
    want = list(split(rows, gpus).sizes)
    if got == want:
        return
    case_en, case_zh = (
        f"for {rows} rows on {gpus} GPUs it gives {got}",
        f"{rows} 行、{gpus} 块 GPU 时得到 {got}",
    )
    if not got:
        yield say(
            en=f"{case_en}: an empty list, so no row goes anywhere", zh=f"{case_zh}：空列表，一行也没有分出去"
        )
    if got[0] == rows // gpus != want[0] or 0 == rows // gpus == sum(got):  # the commonest, so before the sum
        yield say(
            en=f"{case_en}: that rounds {rows} / {gpus} down; PyTorch rounds up and gives {want}",
            zh=f"{case_zh}：这是把 {rows} / {gpus} 向下取整；PyTorch 向上取整，得到 {want}",
        )
    if sum(got) != rows:
        yield say(
            en=f"{case_en}: {sum(got)} rows in all, not {rows}",
            zh=f"{case_zh}：一共 {sum(got)} 行，不是 {rows} 行",
        )
    if 0 in got:
        yield say(
            en=f"{case_en}: a GPU without rows gets no piece at all, not an empty one",
            zh=f"{case_zh}：没有行的 GPU 根本没有分块，而不是分到一个空的",
        )
    if max(got) - min(got) <= 1 and len(got) == min(rows, gpus):
        yield say(
            en=f"{case_en}: that is an even share; PyTorch fills pieces of ceil({rows} / {gpus}) rows and gives "
            f"{want}",
            zh=f"{case_zh}：这是尽量平均的分法；PyTorch 每个分块装满 ⌈{rows} / {gpus}⌉ 行，得到 {want}",
        )
    yield say(en=f"{case_en}, but the pieces are {want}", zh=f"{case_zh}，而实际的分块是 {want}")
