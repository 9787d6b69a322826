"""Exercises of lesson 03: which GPU gets a row, which GPUs are idle, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...base.language import say
from ...plans.split import split
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, exercise
from ..kinds import a_function, gpu_number, numbers, returned, whole


@exercise(
    "03.which",
    Kind(
        lambda answer: whole(gpu_number(answer)),
        lambda: say(en="the number of a GPU, such as `0`", zh="GPU 的编号，例如 `0`"),
    ),
    solution=lambda: say(
        en="`4`: pieces have ceil(30 / 8) = 4 rows, and 17 // 4 = 4. cuda:4 has rows 16 to 19.",
        zh="`4`：每个分块 ⌈30 / 8⌉ = 4 行，17 // 4 = 4。cuda:4 拿到第 16 到 19 行。",
    ),
)
def _which(gpu: int) -> Iterator[str]:
    if gpu == 4:
        return
    if gpu == 5:
        yield say(
            en="the first GPU is cuda:0 and the first row is row 0: count both from zero",
            zh="第一块 GPU 是 cuda:0，第一行是第 0 行：两样都从 0 开始编号",
        )
    if gpu == 1:
        yield say(
            en="rows are not dealt out in turn like cards (17 = 2 × 8 + 1); each GPU gets a run of neighbouring rows",
            zh="行不是像发牌那样轮流分的（17 = 2 × 8 + 1）；每块 GPU 拿到的是相邻的一段行",
        )
    if not 0 <= gpu < 8:
        yield say(
            en=f"there is no cuda:{gpu} among 8 GPUs: they are cuda:0 to cuda:7",
            zh=f"8 块 GPU 里没有 cuda:{gpu}：编号是 cuda:0 到 cuda:7",
        )
    yield say(
        en="how many rows has a piece? Then count pieces until one holds row 17",
        zh="一个分块有几行？再数一数第 17 行落在第几个分块里",
    )


@exercise(
    "03.idle",
    Kind(whole, lambda: say(en="a whole number of GPUs", zh="一个整数（GPU 的块数）")),
    solution=lambda: say(
        en="`3`: pieces have ceil(10 / 8) = 2 rows, five of them hold all 10 rows, "
        "so cuda:5, cuda:6 and cuda:7 are idle.",
        zh="`3`：每个分块 ⌈10 / 8⌉ = 2 行，五个分块就装下了 10 行，所以 cuda:5、cuda:6、cuda:7 空闲。",
    ),
)
def _idle(count: int) -> Hints:
    return {
        3: RIGHT,
        0: say(
            en="that would need the rows to be shared out evenly; but pieces are filled with ceil(10 / 8) = 2 rows "
            "each, so the rows run out early",
            zh="那得尽量平均地分；实际上每个分块要装 ⌈10 / 8⌉ = 2 行，行提前就用完了",
        ),
        5: say(
            en="5 GPUs work; the question is how many do not", zh="5 块是在工作的；题目问的是空闲的有几块"
        ),
        7: say(
            en="seven idle would mean that one GPU has all 10 rows; 10 / 8 is rounded up, so a piece has 2 rows",
            zh="空闲 7 块，就等于 10 行都压在一块 GPU 上；其实 10 / 8 向上取整，每个分块只有 2 行",
        ),
        6: say(
            en="6 rows are missing for 8 full pieces of 2; how many pieces is that?",
            zh="要装满 8 个分块（各 2 行）还差 6 行；6 行是几个分块？",
        ),
        ANY_OTHER: say(
            en="a piece has ceil(10 / 8) rows; how many such pieces make 10 rows?",
            zh="每个分块 ⌈10 / 8⌉ 行；10 行能装几个分块？",
        ),
    }


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
        yield from _compared(rows, gpus, list(numbers(returned(answer(rows, gpus)))))


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
            en=f"{case_en}: that is an even share; PyTorch fills pieces of ceil({rows} / {gpus}) rows and gives {want}",
            zh=f"{case_zh}：这是尽量平均的分法；PyTorch 每个分块装满 ⌈{rows} / {gpus}⌉ 行，得到 {want}",
        )
    if got[0] == rows // gpus:
        yield say(
            en=f"{case_en}: that rounds {rows} / {gpus} down; PyTorch rounds up and gives {want}",
            zh=f"{case_zh}：这是把 {rows} / {gpus} 向下取整；PyTorch 向上取整，得到 {want}",
        )
    yield say(en=f"{case_en}, but the pieces are {want}", zh=f"{case_zh}，而实际的分块是 {want}")
