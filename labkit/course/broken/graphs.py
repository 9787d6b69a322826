"""Broken models of graphs and shops: an input that belongs to no row, and rows that are laid end to end."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from ...base.language import say
from . import models, repaired
from .judging import Hint, Problem, Seen
from .running import alike


def _city(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    roads = int(torch.randint(11, 20, (1,), generator=generator))
    return (
        torch.randn(rows, 6, 4, generator=generator),
        torch.randint(0, 6, (roads, 2), generator=generator),
    )


def _road_hints(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        if "same device" in seen.failure.words:
            yield Hint(
                "stays",
                say(
                    en=f"{seen.on()}: the roads are where they were, and the replica is on another GPU. An "
                    "attribute that is no buffer is not replicated: `.to(traffic.device)`, or let every row bring "
                    "its roads",
                    zh=f"{seen.on()}：路网还在原来的 GPU 上，副本却在另一块上。不是缓冲区的属性不会被复制："
                    "用 `.to(traffic.device)`，或者让每一行都带上路网",
                ),
            )
        if seen.failure.step == "forward" and (
            "unpack" in seen.failure.words or "index" in seen.failure.words
        ):
            yield Hint(
                "shape_in_forward",
                say(
                    en=f"{seen.on()}: `{seen.failure.words}`. Print `roads.shape` in `forward`: is it still [roads, "
                    "2] where its two columns are taken apart?",
                    zh=f"{seen.on()}：`{seen.failure.words}`。在 `forward` 里打印 `roads.shape`：拆成两列的时候，"
                    "它还是 [道路数, 2] 吗？",
                ),
            )
        return
    if seen.at is None:
        return
    if seen.at and alike(seen.got.results[0], seen.want.results[0]):
        yield Hint(
            "first_city",
            say(
                en=f"{seen.on()}: the first batch is right, the next is of another city, and the model still drives "
                "on the roads of the first",
                zh=f"{seen.on()}：第一个批次对了，下一个批次换了城市，模型却还在用第一座城市的路网",
            ),
        )
    if seen.alone:
        yield Hint(
            "other_roads",
            say(
                en="on one GPU already the forecast is another than before: each message goes along its road once, "
                "from column 0 to column 1",
                zh="在一块 GPU 上，预测就已经和原来不同：每条消息沿自己的道路只传一次，从第 0 列到第 1 列",
            ),
        )
    yield Hint(
        "roads_cut",
        say(
            en=f"{seen.on()}: each replica still adds up over a part of the roads only. They are no rows of the "
            "batch: every replica needs them all",
            zh=f"{seen.on()}：每个副本仍然只对一部分道路求和。道路不是批次里的行：每个副本都需要全部道路",
        ),
    )


ROADS = Problem(
    "roads",
    models.Roads,
    repaired.Roads,
    _city,
    _road_hints,
    lambda: (
        say(
            en="The shape is right, the values are not: in each replica some crossings hear nothing.",
            zh="形状对，数值不对：在每个副本里，都有一些路口收不到消息。",
        ),
        say(
            en="Look at what is given: `traffic` has a row for each hour, `roads` a row for each road. What does "
            "scatter do with both?",
            zh="看传进来的两样东西：`traffic` 每小时一行，`roads` 每条道路一行。分发会怎么处理它们？",
        ),
        say(
            en="`before` gives every row the roads, `roads.expand(len(traffic), -1, -1)` (a view, it takes no "
            "memory before it is sent); `forward` takes `roads[0]`.",
            zh="`before` 让每一行都带上路网：`roads.expand(len(traffic), -1, -1)`（只是视图，发送之前不占显存）；"
            "`forward` 里取 `roads[0]`。",
        ),
    ),
    lambda: say(
        en="What belongs to all rows must not come as a tensor that is cut: every row brings it, or a buffer holds "
        "it.",
        zh="属于所有行的东西，不能作为会被切开的张量传进去：要么每行都带上，要么放进缓冲区。",
    ),
)


def _shop(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    counts = torch.randint(1, 7, (rows,), generator=generator)
    counts[0] += 3  # so that equal parts of the clicks are never those of equal numbers of people
    return torch.randint(0, 40, (int(counts.sum()),), generator=generator), counts


def _click_hints(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        if "split_with_sizes" in seen.failure.words or seen.failure.step == "scatter":
            yield Hint(
                "flat",
                say(
                    en=f"{seen.on()}: the counts are cut between people, the clicks wherever half of them is over: "
                    "in a replica the two do not belong together. Offsets instead of counts would be no better",
                    zh=f"{seen.on()}：counts 是在人与人之间切开的，clicks 则是切到哪里算哪里：在副本里两者对不上。"
                    "把 counts 换成偏移量也一样",
                ),
            )
        return
    if seen.at is None or not isinstance(seen.result, Tensor):
        return
    sizes = {len(result) for result in seen.got.results if isinstance(result, Tensor) and result.dim()}
    if seen.idle or sizes - {seen.case.rows}:  # (a basket of one click leaves work for one GPU alone)
        yield Hint(
            "list_cut",
            say(
                en=f"{seen.on()}: a list of baskets is not cut between baskets. Scatter walks into it and cuts every "
                "basket: each replica has everybody, with a part of their clicks",
                zh=f"{seen.on()}：列表不会在购物篮之间切开。分发会走进列表，把每个购物篮都切开："
                "每个副本里人人都在，却各只有一部分点击",
            ),
        )
    clicks, counts = seen.given
    filled = pad_sequence(list(clicks.split(counts.tolist())), batch_first=True)
    whole = torch.full_like(counts, filled.size(1))
    if seen.alone and alike(seen.result, seen.would_give(filled.flatten(), whole)):
        yield Hint(
            "padding_counted",
            say(
                en="the padding is averaged, too: item 0 counts as clicked by everybody with a short basket",
                zh="填充的位置也参与了平均：购物篮短的人，都被当成点过 0 号商品",
            ),
        )
    yield Hint(
        "other_basket",
        say(
            en=f"{seen.on()}: are a person's clicks still their own? Each basket holds exactly as many as `counts` "
            "says, and their mean is over these alone",
            zh=f"{seen.on()}：每个人的点击还是他自己的吗？每个购物篮的个数正好是 `counts` 所说的，只对这些取平均",
        ),
    )


CLICKS = Problem(
    "clicks",
    models.Clicks,
    repaired.Clicks,
    _shop,
    _click_hints,
    lambda: (
        say(
            en="`split` is asked for more clicks, or fewer, than the replica has.",
            zh="`split` 要的点击数，和副本手里的对不上。",
        ),
        say(
            en="Compare the two inputs: which has a row for each person, and which does not?",
            zh="比较两个输入：哪一个是每人一行，哪一个不是？",
        ),
        say(
            en="`before` makes one row for each person: "
            "`pad_sequence(clicks.split(counts.tolist()), batch_first=True)`; `forward` takes the first `count` of "
            "each row.",
            zh="`before` 让每人占一行：`pad_sequence(clicks.split(counts.tolist()), batch_first=True)`；`forward` "
            "从每行取前 `count` 个。",
        ),
    ),
    lambda: say(
        en="Counts and offsets speak of places in the whole input, and no piece has these places.",
        zh="个数和偏移量说的都是整个输入里的位置，分块里没有这样的位置。",
    ),
)
