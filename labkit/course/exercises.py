"""Every exercise of the course: how an answer is judged, the hint for each misconception, the solution."""

from __future__ import annotations

from ..language import say
from ..plan import split
from .answers import declare


def _numbers(answer) -> list[int]:
    """A list, tuple or number as a list of ints."""
    return [int(answer)] if isinstance(answer, (int, float)) else [int(value) for value in answer]


# 00: a first split on 4 GPUs.


def _first_split(answer):
    sizes = _numbers(answer)
    if sizes == [3, 3, 3]:
        return None
    if sizes == [3, 3, 3, 0]:
        return say(
            en="the rows are right; the fourth GPU gets no piece at all, so there are three numbers, not four",
            zh="行数是对的；但第四块 GPU 根本没有分到，所以只有三个数，不是四个",
        )
    if sorted(sizes) == [2, 2, 2, 3]:
        return say(
            en="that shares the rows out as evenly as possible; PyTorch instead fills pieces of ceil(9/4) = 3 "
            "rows until the rows run out",
            zh="这是“尽量平均”的分法；PyTorch 不这样做：它按每块 ⌈9/4⌉ = 3 行依次装满，直到行数用完",
        )
    if sum(sizes) != 9:
        return say(
            en=f"these pieces hold {sum(sizes)} rows in all, but the batch has 9",
            zh=f"这些块一共 {sum(sizes)} 行，但批次有 9 行",
        )
    return say(
        en="how many rows is ceil(9/4)? Fill pieces of that size", zh="⌈9/4⌉ 是几行？按这个大小依次装满"
    )


declare(
    "00.first_split",
    _first_split,
    lambda: say(
        en="[3, 3, 3]: a piece has ceil(9/4) = 3 rows; after three pieces no row is left, so the fourth GPU is idle.",
        zh="[3, 3, 3]：每块 ⌈9/4⌉ = 3 行；三块之后一行不剩，第四块 GPU 空闲。",
    ),
)


# 01: batches of a dataset.


def _batches(answer):
    sizes = _numbers(answer)
    if sizes == [30, 30, 30, 10]:
        return None
    if sizes == [30, 30, 30]:
        return say(
            en="that is what drop_last=True gives; by default the last 10 rows come too, as a short batch",
            zh="这是 drop_last=True 的结果；默认情况下最后 10 行也会作为一个不足的批次给出",
        )
    if sizes == [25, 25, 25, 25]:
        return say(
            en="DataLoader does not even batches out: each one is filled to batch_size before the next begins",
            zh="DataLoader 不会把批次摊平：先把一个批次装到 batch_size，再开始下一个",
        )
    return say(
        en=f"these add up to {sum(sizes)} rows; the dataset has 100, taken 30 at a time",
        zh=f"这些加起来是 {sum(sizes)} 行；数据集有 100 行，每次取 30 行",
    )


declare(
    "01.batches",
    _batches,
    lambda: say(
        en="[30, 30, 30, 10]: three full batches, then the 10 rows that are left.",
        zh="[30, 30, 30, 10]：三个满批次，再加剩下的 10 行。",
    ),
)


def _dropped(answer):
    count = int(answer)
    if count == 10:
        return None
    if count == 0:
        return say(
            en="drop_last=True throws the short last batch away; its rows are not moved into another batch",
            zh="drop_last=True 会丢掉最后那个不足的批次，里面的行不会并到别的批次里",
        )
    if count == 30:
        return say(
            en="only the short batch is dropped; the full ones all come",
            zh="只丢掉不足的那一批；满的批次都会给出",
        )
    return say(
        en="100 rows in batches of 30: how many rows does the last batch have?",
        zh="100 行、每批 30 行：最后一批有几行？",
    )


declare(
    "01.dropped",
    _dropped,
    lambda: say(en="10: the rows of the last batch, 100 − 3 × 30.", zh="10：最后一批的行数，100 − 3 × 30。"),
)


# 02: wrapping a model.


def _wrapped_device(answer):
    text = str(answer)
    if text == "cpu":
        return None
    if text.startswith("cuda"):
        return say(
            en="tensor.to() gives back a copy and leaves the tensor where it is; only a module is moved in place",
            zh="tensor.to() 返回一个副本，原张量留在原处；只有模块才会原地移动",
        )
    return say(
        en='the answer is a device, such as "cuda:0" or "cpu"', zh='答案是一个设备，例如 "cuda:0" 或 "cpu"'
    )


declare(
    "02.tensor_copy",
    _wrapped_device,
    lambda: say(
        en='"cpu": x.to("cuda:0") makes a copy on cuda:0; x itself has not moved, because its result was not kept.',
        zh='"cpu"：x.to("cuda:0") 在 cuda:0 上生成一个副本；结果没有保存下来，x 自己并没有移动。',
    ),
)


def _inside(answer):
    rows = int(answer)
    if rows == 15:
        return None
    if rows == 30:
        return say(
            en="30 rows is what stands outside, before and after; inside, each replica sees only its own piece",
            zh="30 行是模型外面看到的（前后都是）；在模型里面，每个副本只看到自己那一块",
        )
    if rows == 2:
        return say(
            en="2 is the number of GPUs; how many rows does each one get?",
            zh="2 是 GPU 的数目；每块分到几行？",
        )
    return say(en="split 30 rows into 2 equal pieces", zh="把 30 行平分成 2 块")


declare(
    "02.inside",
    _inside,
    lambda: say(
        en="15: scatter cuts the 30 rows into two pieces, and forward runs once on each GPU with its own piece.",
        zh="15：分发把 30 行切成两块，每块 GPU 拿着自己那一块各运行一次 forward。",
    ),
)


# 03: who gets which rows.


def _idle(answer):
    count = int(answer)
    if count == 3:
        return None
    if count == 0:
        return say(
            en="that would need the rows to be shared out evenly; pieces are filled with ceil(10/8) = 2 rows each, "
            "so the rows run out early",
            zh="那需要把行平均分开；实际上每块装 ⌈10/8⌉ = 2 行，行很早就用完了",
        )
    if count == 5:
        return say(
            en="5 GPUs work; the question is how many do not", zh="工作的是 5 块；题目问的是空闲的有几块"
        )
    if count == 2:
        return say(
            en="6 rows are missing to fill all GPUs, but they are missing from whole GPUs: "
            "how many pieces of 2 make 10 rows?",
            zh="10 行正好是几块 2 行？其余的 GPU 都空闲",
        )
    return say(
        en="a piece has ceil(10/8) rows; how many such pieces make 10 rows?",
        zh="每块 ⌈10/8⌉ 行；10 行要几块？",
    )


declare(
    "03.idle",
    _idle,
    lambda: say(
        en="3: pieces have ceil(10/8) = 2 rows, five of them hold all 10 rows, so cuda:5, cuda:6 and cuda:7 are idle.",
        zh="3：每块 ⌈10/8⌉ = 2 行，五块就装下了 10 行，所以 cuda:5、cuda:6、cuda:7 空闲。",
    ),
)


def _rule(answer):
    if not callable(answer):
        return say(
            en="the answer is a function of rows and gpus", zh="答案是一个以 rows 和 gpus 为参数的函数"
        )
    for rows, gpus in ((30, 8), (10, 8), (9, 4), (7, 2), (1, 3), (64, 64), (10, 3)):
        got, want = list(answer(rows, gpus)), list(split(rows, gpus).sizes)
        if got == want:
            continue
        if sum(got) != rows:
            return say(
                en=f"for {rows} rows on {gpus} GPUs it gives {got}: {sum(got)} rows in all, not {rows}",
                zh=f"{rows} 行、{gpus} 块 GPU 时得到 {got}：一共 {sum(got)} 行，不是 {rows} 行",
            )
        if 0 in got:
            return say(
                en=f"for {rows} rows on {gpus} GPUs it gives {got}: "
                "a GPU without rows gets no piece, not an empty one",
                zh=f"{rows} 行、{gpus} 块 GPU 时得到 {got}：没有行的 GPU 不分块，而不是分到空块",
            )
        if got and max(got) == rows // gpus + (rows % gpus > 0) and min(got) >= rows // gpus > 0:
            return say(
                en=f"for {rows} rows on {gpus} GPUs it gives {got}: that is an even share; PyTorch fills pieces of "
                f"ceil({rows}/{gpus}) and gives {want}",
                zh=f"{rows} 行、{gpus} 块 GPU 时得到 {got}：这是平均分；"
                f"PyTorch 按 ⌈{rows}/{gpus}⌉ 依次装满，得到 {want}",
            )
        return say(
            en=f"for {rows} rows on {gpus} GPUs it gives {got}, but the pieces are {want}",
            zh=f"{rows} 行、{gpus} 块 GPU 时得到 {got}，而实际的块是 {want}",
        )
    return None


declare(
    "03.rule",
    _rule,
    lambda: say(
        en="def pieces(rows, gpus): c = -(-rows // gpus); return [min(c, rows - at) for at in range(0, rows, c)]",
        zh="def pieces(rows, gpus): c = -(-rows // gpus); return [min(c, rows - at) for at in range(0, rows, c)]",
    ),
)
