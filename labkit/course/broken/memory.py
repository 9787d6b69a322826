"""Broken models that remember: a table kept for the next call, and statistics that go on from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ...base.language import say
from . import models, repaired
from .judging import Hint, Problem, Seen
from .running import close


def _series(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    steps = int(torch.randint(3, 12, (1,), generator=generator))
    return (torch.randn(rows, steps, 8, generator=generator),)


def _wave_hints(seen: Seen) -> Iterator[Hint]:
    if seen.got.names.keys() - seen.want.names.keys():
        yield Hint(
            "saved",
            say(
                en="the table has become a part of the `state_dict`, and models saved before would not load: "
                "`register_buffer(..., persistent=False)` keeps it out",
                zh="这张表进了 `state_dict`，以前存的模型就加载不了了：`register_buffer(..., persistent=False)` "
                "可以不让它进去",
            ),
        )
    if not seen.failure:
        if seen.alone and seen.at is not None:
            yield Hint(
                "other_waves",
                say(
                    en="on one GPU already the values are others than before: are the waves still added, the sines "
                    "first, then the cosines?",
                    zh="在一块 GPU 上数值就已经变了：波形还加上去了吗？先正弦、后余弦，顺序对吗？",
                ),
            )
        return
    if "same device" in seen.failure.words or "different from other" in seen.failure.words:
        yield Hint(
            "first_come",
            say(
                en=f"{seen.on()}: a replica still meets a table of another GPU. Replicas share a dict: the first to "
                "come puts its own into it, and the others find that",
                zh=f"{seen.on()}：副本仍然拿到了别的 GPU 上的表。各副本共用同一个字典：谁先来，就把自己的放进去，"
                "别的副本拿到的就是它",
            ),
        )
    if seen.failure.step == "forward" and "size of tensor" in seen.failure.words:
        yield Hint(
            "stale",
            say(
                en=f"{seen.on()}: `{seen.failure.words}`. A later batch has more steps, or fewer: the table must be "
                "made for the number that `x` has now",
                zh=f"{seen.on()}：`{seen.failure.words}`。后面的批次步数会变多或变少：表要按 `x` 现在的步数来做",
            ),
        )


WAVES = Problem(
    "waves",
    models.Waves,
    repaired.Waves,
    _series,
    _wave_hints,
    lambda: (
        say(
            en="On one GPU nothing is wrong; on two, replica 1 adds a tensor on cuda:0 to one on cuda:1.",
            zh="一块 GPU 上没有问题；两块上，副本 1 把 cuda:0 上的张量加到 cuda:1 上的张量。",
        ),
        say(
            en="`device=x.device` is right. Whose `x` was it when the table was made? Is `self.waves` of one "
            "replica another than that of the next?",
            zh="`device=x.device` 写得没错。可表做好的时候，那是谁的 `x`？各副本的 `self.waves` 是各自独立的吗？",
        ),
        say(
            en="Make the table anew in each call (it is cheap), or take it with `.to(x.device)`, or keep one for "
            "each device: `self.waves[steps, x.device]`.",
            zh="每次调用都重新做这张表（很便宜），或者取用时加 `.to(x.device)`，或者每个设备各存一份："
            "`self.waves[steps, x.device]`。",
        ),
    ),
    lambda: say(
        en="A replica's dicts and lists are the model's own, one for all GPUs: a cache needs the device in its key.",
        zh="副本的字典和列表就是模型自己的那一个，所有 GPU 共用：缓存的键里要有设备。",
    ),
)


def _readings(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    offsets = torch.linspace(-2, 2, rows).unsqueeze(1) if rows > 1 else torch.zeros(1, 1)
    return (torch.randn(rows, 5, generator=generator) + offsets,)


def _surprise_hints(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        if seen.failure.step == "after":
            yield Hint(
                "after",
                say(
                    en=f"`after` raised `{seen.failure.words}`. It gets what `forward` returned, joined: does "
                    "`forward` return what the update needs?",
                    zh=f"`after` 报错 `{seen.failure.words}`。它拿到的是 `forward` 的返回值拼接之后的结果："
                    "更新要用的东西，`forward` 返回了吗？",
                ),
            )
        return
    states = [state["usual"] for state in seen.got.states]
    rights = [state["usual"] for state in seen.want.states]
    begun = (seen.case.state or {})["usual"]
    if len(states) == 3 and not close(states[2], states[1]) and close(states[1], rights[1]):
        yield Hint(
            "eval",
            say(
                en="`usual` also changes in eval mode: the update belongs to training, `if self.training`",
                zh="eval 模式下 `usual` 也变了：只有训练时才更新，`if self.training`",
            ),
        )
    if all(close(one, right) for one, right in zip(states, rights, strict=False)):
        if seen.at is None:
            yield Hint(
                "history",
                say(
                    en=f"{seen.on()}: results and `usual` are right, the gradients are not: is what goes into "
                    "`usual` detached, and only that?",
                    zh=f"{seen.on()}：结果和 `usual` 都对，梯度不对：进入 `usual` 的值是否 detach 了？其他值没有 "
                    "detach 吧？",
                ),
            )
        return
    if close(states[0], begun):
        yield Hint(
            "lost",
            say(
                en=f"{seen.on()}: `usual` is after the batch what it was before. What `forward` assigns is assigned "
                "to a replica, and goes with it. Where is the model itself at hand?",
                zh=f"{seen.on()}：跑完一个批次，`usual` 还是原来的值。`forward` 里的赋值写在副本上，随副本一起消失。"
                "在哪里才能拿到模型本身？",
            ),
        )
    if seen.alone:
        yield Hint(
            "other_update",
            say(
                en="on one GPU already `usual` goes another way: is it updated once for each batch, by the mean of "
                "the features, 0.9 old and 0.1 new?",
                zh="在一块 GPU 上，`usual` 的走向就已经不同：是不是每个批次只更新一次，用的是特征的平均，旧值占 "
                "0.9、新值占 0.1？",
            ),
        )
    whole = len(seen.given[0]) % seen.case.gpus == 0
    yield Hint(
        "first_piece" if whole else "mean_of_means",
        say(
            en=f"{seen.on()}: `usual` changes now, but not by the mean of the whole batch. (In place, only what the "
            "first replica saw arrives.)",
            zh=f"{seen.on()}：`usual` 会变了，但用的不是整个批次的平均。（原地修改，"
            "只有第一个副本看到的那部分能留下来。）",
        )
        if whole
        else say(
            en=f"{seen.on()}: right while all pieces have as many rows, wrong here: a mean of the pieces' means "
            "gives the rows of a short piece too much weight",
            zh=f"{seen.on()}：各分块行数相同时是对的，这里就错了：对各分块的平均再取平均，"
            "不满的分块里每一行的权重偏大",
        ),
    )


SURPRISE = Problem(
    "surprise",
    models.Surprise,
    repaired.Surprise,
    _readings,
    _surprise_hints,
    lambda: (
        say(
            en="The first batch is right, and every later one a little more wrong.",
            zh="第一个批次是对的，后面的批次越来越不对。",
        ),
        say(
            en="Print `model.usual` before and after a call on two GPUs. Which object is `self` in `forward`?",
            zh="在两块 GPU 上调用，调用前后各打印一次 `model.usual`。`forward` 里的 `self` 是哪个对象？",
        ),
        say(
            en="`forward` returns the features beside the surprise; `after` runs on the model itself and updates "
            "`usual` with the mean over all rows.",
            zh="`forward` 除了 surprise 还返回特征；`after` 运行在模型本身上，用所有行的平均来更新 `usual`。",
        ),
    ),
    lambda: say(
        en="What is to last is written where the model itself is: outside the wrapper, from all rows.",
        zh="要保留下来的东西，就在模型本身那里写：在包装之外，用上所有的行。",
    ),
)
