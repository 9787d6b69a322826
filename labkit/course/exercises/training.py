"""Exercises of lesson 07: gradients that are summed, what a piece does not see, and a mean put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isclose

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, choice, exercise
from ..kinds import A_NUMBER, A_WHOLE_NUMBER, a_function, returned


@exercise(
    "07.sum",
    A_WHOLE_NUMBER,
    facts={"rows": (12, 2, 1000), "gpus": (4, 2, 64)},
    fresh=lambda random: {"rows": random.randint(5, 40), "gpus": random.randint(2, 8)},
    ask=lambda rows, gpus: say(
        en=f"{rows} rows on {gpus} GPUs: what stands in `weight.grad`?",
        zh=f"{rows} 行，{gpus} 块 GPU：`weight.grad` 里是几？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{rows}`: each row adds 1, in whichever piece it lies, and the pieces' gradients are summed.",
        zh=f"`{rows}`：每一行贡献 1，不管它落在哪个分块里；各分块的梯度相加。",
    ),
)
def _sum(value: int, rows: int, gpus: int) -> Hints:
    return {
        -(-rows // gpus): say(
            en="that is the gradient of one replica; the others have rows too, and theirs are added",
            zh="这是一个副本的梯度；其他副本也有行，它们的梯度要加进来",
        ),
        rows * gpus: say(
            en=f"the batch is shared out: each replica sees a piece of the {rows} rows, not all of them",
            zh=f"批次是分给各副本的：每个副本只看到 {rows} 行中的一个分块，不是全部",
        ),
        1: say(
            en="that would be a mean over the rows; the loss here is their sum",
            zh="对各行取平均才是 1；这里的损失是求和",
        ),
        ANY_OTHER: say(
            en=f"each of the {rows} rows adds 1, in whichever replica it is",
            zh=f"{rows} 行里每一行都贡献 1，不管它在哪个副本里",
        ),
        rows: RIGHT,
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

choice(
    "07.tokens",
    lambda: say(en="What is the mean of the two rows' means?", zh="两行各取平均，再平均，是多少？"),
    lambda: [
        (
            "2",
            say(
                en="2 is the mean over the four tokens; but the means are of one row each: 3 / 3 and 5 / 1",
                zh="2 是四个 token 的平均；可这里先对每一行取平均：3 / 3 和 5 / 1",
            ),
        ),
        ("3", RIGHT),
        (
            "1",
            say(
                en="8 / 8 would count the padding, which `ignore_index` leaves out",
                zh="8 / 8 把填充也算进去了，而 `ignore_index` 不算它",
            ),
        ),
    ],
    solution=lambda: say(
        en="The means are 3 / 3 = 1 and 5 / 1 = 5, and each counts one half.",
        zh="两个平均值是 3 / 3 = 1 和 5 / 1 = 5，各算一半。",
    ),
)

choice(
    "07.sync",
    lambda: say(
        en="What does `SyncBatchNorm` change under DataParallel?",
        zh="在 DataParallel 下，`SyncBatchNorm` 会改变什么？",
    ),
    lambda: [
        (
            say(en="Both replicas subtract 3.5", zh="两个副本都减去 3.5"),
            say(
                en="so it is under DDP; it shares statistics through a process group, and there is none here",
                zh="在 DDP 下才是这样：它通过进程组共用统计量，而这里没有进程组",
            ),
        ),
        (say(en="Nothing", zh="什么也不变"), RIGHT),
        (
            say(en="It raises an error", zh="会报错"),
            say(
                en="that would be kind; without a process group it does what BatchNorm does, in silence",
                zh="能报错倒好了；没有进程组，它就和 BatchNorm 一样，不声不响",
            ),
        ),
    ],
    solution=lambda: say(
        en="Without a process group it is a BatchNorm like any other.",
        zh="没有进程组，它就是普通的 BatchNorm。",
    ),
)

choice(
    "07.one",
    lambda: say(
        en="BatchNorm in training, 4 GPUs: which batch fails?",
        zh="训练中的 BatchNorm，4 块 GPU：哪个批次会报错？",
    ),
    lambda: [
        (
            say(en="8 rows", zh="8 行"),
            say(en="pieces of 2: the fewest that have a variance", zh="每个分块 2 行：刚好够算方差"),
        ),
        (
            say(en="9 rows", zh="9 行"),
            say(
                en="pieces have ceil(9 / 4) = 3 rows: 3, 3, 3, and the fourth GPU is idle",
                zh="每个分块 ⌈9 / 4⌉ = 3 行：3、3、3，第四块 GPU 空闲",
            ),
        ),
        (say(en="10 rows", zh="10 行"), RIGHT),
        (
            say(en="12 rows", zh="12 行"),
            say(en="3 rows for each of the four", zh="四块各 3 行"),
        ),
    ],
    solution=lambda: say(
        en="Pieces of ceil(10 / 4) = 3 rows are 3, 3, 3, and one row is left for the last.",
        zh="每个分块 ⌈10 / 4⌉ = 3 行：3、3、3，最后只剩一行。",
    ),
)

choice(
    "07.seen",
    lambda: say(
        en="Three calls on two GPUs: how many entries has the model's list?",
        zh="两块 GPU，调用三次：模型的列表里有几项？",
    ),
    lambda: [
        (
            "0",
            say(
                en="so it is for the counter, which each replica sets anew; but nobody sets the list: it is changed",
                zh="计数器是这样，因为每个副本给它赋了新值；列表却没有谁重新赋值，只是往里添加",
            ),
        ),
        (
            "3",
            say(
                en="`forward` runs on each of the two replicas in every call",
                zh="每次调用，两个副本都要各运行一次 `forward`",
            ),
        ),
        ("6", RIGHT),
    ],
    solution=lambda: say(
        en="A replica is a shallow copy: its list is the model's, and six runs of `forward` wrote to it.",
        zh="副本是浅拷贝：它的列表就是模型的列表，`forward` 运行六次，写了六项。",
    ),
)

choice(
    "07.fit",
    lambda: say(en="The batch grows: which GPU is full first?", zh="批次一直加大：最先放不下的是哪一块？"),
    lambda: [
        (
            say(en="All at the same time", zh="同时放不下"),
            say(
                en="the pieces are alike; what does home hold besides its piece?",
                zh="分块确实一样大；除了自己的分块，主设备上还有什么？",
            ),
        ),
        ("cuda:0", RIGHT),
        (
            "cuda:3",
            say(
                en="the last GPU has the short piece, if any: it has less than the others",
                zh="不满的分块如果有，就在最后一块上：它占的比别的还少",
            ),
        ),
    ],
    solution=lambda: say(
        en="Optimizer state, master gradients and the gathered outputs are there alone.",
        zh="优化器状态、汇总的梯度、收集来的输出，只在那里有。",
    ),
)

choice(
    "07.accumulate",
    lambda: say(
        en="Parts of 4, 4, 4 rows, and of 5, 5, 2: which give 5.5?",
        zh="分成 4、4、4 行，或者 5、5、2 行：哪种得到 5.5？",
    ),
    lambda: [
        (
            say(en="Both: gradients add up", zh="都能：梯度会累加"),
            say(
                en="they do; but what is added up are means, and the last one is of two rows",
                zh="确实会累加；可加起来的是平均值，而最后一个只有两行",
            ),
        ),
        (say(en="Only 4, 4, 4", zh="只有 4、4、4"), RIGHT),
        (
            say(en="Neither: three steps are not one", zh="都不能：三步不等于一步"),
            say(
                en="there is one step; until then the gradients wait in `.grad` and are added up",
                zh="优化器只走一步；在那之前，梯度在 `.grad` 里累加",
            ),
        ),
    ],
    solution=lambda: say(
        en="A mean of means is the mean only if the parts are equally large.",
        zh="各份一样大，平均的平均才等于平均。",
    ),
)

choice(
    "07.noise",
    lambda: say(
        en="After `torch.manual_seed(0)`, does the second GPU drop other units than the first?",
        zh="`torch.manual_seed(0)` 之后，第二块 GPU 丢弃的单元和第一块不同吗？",
    ),
    lambda: [
        (
            say(en="Yes: each has a generator of its own", zh="不同：各有自己的生成器"),
            say(
                en="its own, yes; but which seed does `torch.manual_seed` give it?",
                zh="生成器是各有一个；可 `torch.manual_seed` 给它们的种子是什么？",
            ),
        ),
        (say(en="No: the same ones, in its own rows", zh="相同：在各自的行里丢弃同样的单元"), RIGHT),
        (
            say(
                en="It drops what one GPU would drop in these rows", zh="和只用一块 GPU 时，这几行丢弃的一样"
            ),
            say(
                en="for that its generator would have to know how much the other one has drawn already",
                zh="那它的生成器就得知道另一块已经抽过多少随机数",
            ),
        ),
    ],
    solution=lambda: say(
        en="All GPUs get the same seed, so all draw the same numbers.",
        zh="每块 GPU 得到同一个种子，抽出的随机数也就相同。",
    ),
)

choice(
    "07.rate",
    lambda: say(
        en="One GPU before, eight now, a batch of 64 rows as before. The learning rate?",
        zh="原来一块 GPU，现在八块，批次还是 64 行。学习率呢？",
    ),
    lambda: [
        (
            say(en="8 times as large", zh="乘以 8"),
            say(
                en="that is a rule for a batch 8 times as large; here the batch is the same",
                zh="那是批次也加大到 8 倍时的做法；这里批次没有变",
            ),
        ),
        (
            say(en="Divided by 8, as gradients are summed", zh="除以 8，因为梯度是相加的"),
            say(
                en="summed, and each comes from an eighth of the rows only: together the gradient of the batch",
                zh="是相加，但每一份只来自八分之一的行：合起来正好是整个批次的梯度",
            ),
        ),
        (say(en="As it was", zh="不变"), RIGHT),
    ],
    solution=lambda: say(
        en="The same batch has the same gradient, on however many GPUs.",
        zh="批次相同，梯度就相同，用几块 GPU 都一样。",
    ),
)

choice(
    "07.cases",
    lambda: say(
        en="Numbers 1, 3 and 4 of the models below: which returns the right outputs and still learns something else?",
        zh="看下面的第 1、3、4 个：哪一个输出是对的，学到的却不同？",
    ),
    lambda: [
        (
            say(en="The loss computed in forward (1)", zh="在 forward 里算损失（1）"),
            say(
                en="one number becomes two: the output is not the same",
                zh="一个数变成了两个：输出已经不同",
            ),
        ),
        (say(en="Only the first GPU learns (3)", zh="只有第一块 GPU 在学（3）"), RIGHT),
        (
            say(en="Weights clipped in forward (4)", zh="在 forward 里裁剪权重（4）"),
            say(
                en="a replica's weights are views of what was sent: changing them in place is an error",
                zh="副本的权重是收到的数据的视图：原地修改会报错",
            ),
        ),
    ],
    solution=lambda: say(
        en="`detach` leaves the values and cuts off the way back, on every GPU but the first.",
        zh="`detach` 不改变数值，却切断了反向的路；除了第一块，每块 GPU 都这样。",
    ),
)
