"""Exercises of lesson 07: gradients that are summed, what forward writes down, and a mean put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isclose

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, choice, exercise
from ..kinds import A_NUMBER, A_WHOLE_NUMBER, a_function, returned


@exercise(
    "07.sum",
    A_WHOLE_NUMBER,
    ask=lambda: say(en="What stands in `weight.grad`?", zh="`weight.grad` 里是几？"),
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
    ask=lambda: say(en="What does the counter of the model say?", zh="模型的计数器是几？"),
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


choice(
    "07.proof",
    lambda: say(
        en="After five steps, by how much do the weights differ?", zh="走完五步，两边的权重相差多少？"
    ),
    lambda: [
        (
            say(en="By a factor of two: two gradients are summed", zh="相差一倍：两份梯度相加了"),
            say(
                en="they are summed, but each is of a part of the rows only: together they are the whole",
                zh="是相加了，但每份只来自一部分行，合起来才是整体",
            ),
        ),
        (
            say(en="A little, since the pieces are uneven", zh="有一点，因为分块大小不一"),
            say(
                en="uneven pieces matter only for a mean taken in each piece; here the mean is outside",
                zh="只有在每个分块里各取平均时才有影响；这里是在外面取的平均",
            ),
        ),
        (say(en="By rounding only", zh="只差舍入误差"), RIGHT),
    ],
    solution=lambda: say(
        en="The gradient of a sum is the sum of the gradients, in whichever piece a row lies.",
        zh="和的梯度等于梯度的和，哪一行在哪个分块里都一样。",
    ),
)

choice(
    "07.means",
    lambda: say(en="What is the mean of the two means?", zh="两个平均值的平均是多少？"),
    lambda: [
        (
            "3",
            say(
                en="3 is the mean over the seven rows; here each mean counts one half, whatever it is of",
                zh="3 是七行的平均；这里两个平均值各算一半，不管各有几行",
            ),
        ),
        ("3.5", RIGHT),
        (
            "7",
            say(
                en="the means are 0 and 7; they are averaged, not added",
                zh="两个平均值是 0 和 7；再取平均，不是相加",
            ),
        ),
    ],
    solution=lambda: say(
        en="The pieces have 4 and 3 rows, with the means 0 and 7, and (0 + 7) / 2 = 3.5.",
        zh="两个分块是 4 行和 3 行，平均值是 0 和 7，(0 + 7) / 2 = 3.5。",
    ),
)

choice(
    "07.norm",
    lambda: say(
        en="Which mean does each replica subtract, and which is kept?",
        zh="每个副本减去哪个平均值？留下来的是哪一个？",
    ),
    lambda: [
        (
            say(en="Both subtract 3.5, and it is kept", zh="都减去 3.5，留下的也是它"),
            say(
                en="a replica sees only its piece: nothing passes between replicas during `forward`",
                zh="副本只看到自己的分块：`forward` 期间副本之间没有任何往来",
            ),
        ),
        (
            say(en="1.5 and 5.5; their mean 3.5 is kept", zh="各减 1.5 和 5.5；留下两者的平均 3.5"),
            say(
                en="nobody averages buffers: whose buffers are the model's own?",
                zh="没有谁去平均缓冲区：哪个副本的缓冲区就是模型自己的？",
            ),
        ),
        (say(en="1.5 and 5.5; 1.5 is kept", zh="各减 1.5 和 5.5；留下 1.5"), RIGHT),
        (
            say(en="1.5 and 5.5; 5.5 is kept", zh="各减 1.5 和 5.5；留下 5.5"),
            say(
                en="replica 1's buffers are copies that go away after the call",
                zh="副本 1 的缓冲区是拷贝，调用结束就没了",
            ),
        ),
    ],
    solution=lambda: say(
        en="Each replica normalises its piece, and replica 0's buffers are the model's own.",
        zh="每个副本对自己的分块做归一化，而副本 0 的缓冲区就是模型自己的。",
    ),
)

choice(
    "07.home",
    lambda: say(en="What is on cuda:0 and never on cuda:1?", zh="哪些东西 cuda:0 上有，cuda:1 上从来没有？"),
    lambda: [
        (
            say(en="Weights", zh="权重"),
            say(en="a replica has weights too, for one call", zh="副本在调用期间也有权重"),
        ),
        (
            say(en="Intermediate results", zh="中间结果"),
            say(
                en="each replica keeps those of its own piece for the way back",
                zh="每个副本都要为反向传播留着自己分块的中间结果",
            ),
        ),
        (say(en="The gathered output and the optimizer's state", zh="收集来的输出和优化器的状态"), RIGHT),
    ],
    solution=lambda: say(
        en="Outputs come home, and the optimizer works on the master weights.",
        zh="输出回到主设备，优化器更新的是主权重。",
    ),
)

choice(
    "07.back",
    lambda: say(en="What becomes of replicate on the way back?", zh="反向传播时，“复制”变成什么？"),
    lambda: [
        (
            say(en="It runs once more, with fresh weights", zh="再运行一次，用新的权重"),
            say(
                en="new replicas are made in the next call; the way back uses those there are",
                zh="新的副本要到下一次调用才做；反向用的就是现有的",
            ),
        ),
        (say(en="A sum of the gradients on the home device", zh="在主设备上把梯度相加"), RIGHT),
        (
            say(en="Nothing: each replica keeps its gradients", zh="什么也不做：各副本留着自己的梯度"),
            say(
                en="then the model would learn nothing, as with the deep copies of lesson 04",
                zh="那模型就什么也学不到，就像第 04 课的深拷贝",
            ),
        ),
    ],
    solution=lambda: say(
        en="Copying to many, backwards, is adding up from many.",
        zh="一份拷贝成多份，反过来就是多份加成一份。",
    ),
)
