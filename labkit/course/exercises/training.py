"""Exercises of lesson 07: gradients that are summed, what forward writes down, and a mean put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isclose

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, exercise
from ..kinds import A_NUMBER, A_WHOLE_NUMBER, a_function, returned


@exercise(
    "07.sum",
    A_WHOLE_NUMBER,
    solution=lambda: say(
        en="`8`: each replica has a gradient of 4, and they are summed on the home device: the same as on one GPU.",
        zh="`8`：每个副本的梯度是 4，在主设备上相加：和一块 GPU 上一样。",
    ),
)
def _sum(value: int) -> Hints:
    return {
        8: RIGHT,
        4: say(
            en="that is the gradient of one replica, or the average of both; gradients are summed, not averaged",
            zh="这是一个副本的梯度，也是两个副本的平均；梯度是相加，不是取平均",
        ),
        16: say(
            en="the batch is shared out: each replica sees 4 of the 8 rows, not all of them",
            zh="批次是分给各副本的：每个副本只看到 8 行里的 4 行，不是全部",
        ),
        ANY_OTHER: say(
            en="each of the 8 rows adds 1, in whichever replica it is",
            zh="8 行里每一行都贡献 1，不管它在哪个副本里",
        ),
    }


@exercise(
    "07.calls",
    A_WHOLE_NUMBER,
    solution=lambda: say(
        en="`0`: `forward` runs on replicas. Each counts itself up to 1 and goes away; the model is never written to.",
        zh="`0`：`forward` 运行在副本身上。每个副本把自己的计数器加到 1，然后消失；模型自己的计数器从来没有动过。",
    ),
)
def _calls(count: int) -> Hints:
    return {
        0: RIGHT,
        3: say(
            en="three is right for a model that is not wrapped; here `forward` runs on replicas, "
            "and `self` is a replica",
            zh="没有包装的模型才是 3；这里 `forward` 运行在副本身上，`self` 就是副本",
        ),
        6: say(
            en="`forward` does run six times; but on six replicas, each with a counter of its own",
            zh="`forward` 确实运行了六次；但那是六个副本，每个副本有自己的计数器",
        ),
        1: say(
            en="each replica counts to 1; the question is about the model, from which the next replicas are made",
            zh="每个副本都数到 1；题目问的是模型，下一次的副本还是由它造出来的",
        ),
        ANY_OTHER: say(
            en="which object is `self` in `forward`: the model or a replica?",
            zh="在 `forward` 里，`self` 是哪个对象：模型，还是副本？",
        ),
    }


_MEAN = """```
def mean_loss(means, sizes):
    return sum(mean * size for mean, size in zip(means, sizes)) / sum(sizes)
```"""


@exercise(
    "07.mean",
    a_function(
        "mean_loss",
        lambda: say(
            en="a function of `means` and `sizes` that gives a number",
            zh="一个以 `means` 和 `sizes` 为参数、返回一个数的函数",
        ),
    ),
    solution=lambda: say(
        en=f"Mean times size is a sum again; sums may be added, and divided once:\n{_MEAN}",
        zh=f"平均乘以行数，就还原成总和；总和可以相加，最后只除一次：\n{_MEAN}",
    ),
)
def _mean(answer: Callable[..., object]) -> Iterator[str]:
    for means, sizes in (
        ([0.0, 7.0], [4, 3]),
        ([1.0, 2.0, 6.0], [4, 4, 2]),
        ([5.0], [3]),
        ([2.0, 4.0], [5, 5]),
    ):
        yield from _compared(returned(answer(list(means), list(sizes)), A_NUMBER), means, sizes)


def _compared(got: float, means: list[float], sizes: list[int]) -> Iterator[str]:
    total = sum(mean * size for mean, size in zip(means, sizes, strict=True))
    want = total / sum(sizes)
    if isclose(got, want, rel_tol=1e-5):
        return
    case_en, case_zh = (
        f"for the means {means} of {sizes} rows it gives {got:g}",
        f"平均是 {means}、行数是 {sizes} 时得到 {got:g}",
    )
    if isclose(got, sum(means) / len(means), rel_tol=1e-5):
        yield say(
            en=f"{case_en}: that is the mean of the means, in which a short piece counts as much as a full one",
            zh=f"{case_zh}：这是平均的平均：不满的分块和装满的分块占了同样的比重",
        )
    if isclose(got, total, rel_tol=1e-5):
        yield say(
            en=f"{case_en}: that is the sum over all rows; it is still to be divided by their number",
            zh=f"{case_zh}：这是所有行的总和；还要除以总行数",
        )
    if isclose(got, sum(means), rel_tol=1e-5):
        yield say(
            en=f"{case_en}: that adds the means up, as if each were a sum",
            zh=f"{case_zh}：这是把平均值直接相加，当成总和了",
        )
    yield say(
        en=f"{case_en}, but the mean over all {sum(sizes)} rows is {want:g}",
        zh=f"{case_zh}，而全部 {sum(sizes)} 行的平均是 {want:g}",
    )
