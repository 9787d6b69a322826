"""Exercises of lesson 08: what an all-reduce sends, which rows a rank reads, what a step costs and what ZeRO saves."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import A_NUMBER, A_WHOLE_NUMBER, numbers


@exercise(
    "08.rows",
    Kind(
        numbers, lambda: say(en="a list of row numbers, such as `[0, 4]`", zh="一个行号的列表，例如 `[0, 4]`")
    ),
    ask=lambda: say(
        en="10 rows, 4 ranks: which rows does rank 3 read?", zh="10 行，4 个进程：rank 3 读哪些行？"
    ),
    solution=lambda: say(
        en="`[3, 7, 1]`: every fourth row from 3 on. Four ranks need 12 rows to read 3 each; "
        "after row 9 come row 0 (for rank 2) and row 1 (for rank 3) again.",
        zh="`[3, 7, 1]`：从第 3 行起，每四行取一行。4 个 rank 各读 3 行，一共要 12 行；"
        "第 9 行之后，再用第 0 行（给 rank 2）和第 1 行（给 rank 3）补上。",
    ),
)
def _rows(rows: tuple[int, ...]) -> Hints:
    neighbours = say(
        en="that is a run of neighbouring rows, as DataParallel cuts them; the sampler deals rows out in turn",
        zh="这是相邻的一段行，DataParallel 才这样切；采样器是一行一行轮流发的",
    )
    from_one = say(
        en="ranks are counted from zero: rank 3 begins with row 3",
        zh="rank 从 0 开始编号，所以 rank 3 从第 3 行开始",
    )
    in_turn = say(
        en="deal the rows out in turn: row 0 to rank 0, row 1 to rank 1 …, row 4 to rank 0 again, "
        "until all ranks have the same number",
        zh="把行轮流发下去：第 0 行给 rank 0，第 1 行给 rank 1 ……，第 4 行又给 rank 0，发到每个 rank 行数相同",
    )
    return {
        (3, 7, 1): RIGHT,
        (3, 7): say(
            en="rank 0 reads three rows, 0, 4 and 8; rank 3 must read as many: which row comes after the last one?",
            zh="rank 0 读三行：0、4、8；rank 3 也得读三行。最后一行之后，接下去是哪一行？",
        ),
        **dict.fromkeys([(9,), (7, 8, 9), (6, 7, 8)], neighbours),
        (3, 7, 0): say(
            en="after row 9 comes row 0 again, but it goes to rank 2, whose turn it is (2, 6, then 0)",
            zh="第 9 行之后确实又是第 0 行，但这时轮到的是 rank 2（2、6，然后 0）",
        ),
        (3, 7, 3): say(
            en="a rank does not read its own first row again: the dealing goes on, in turn, from row 0",
            zh="补的不是这个 rank 自己的第一行：发完之后从第 0 行接着轮流发",
        ),
        ANY_OTHER: from_one if rows[:2] in ((2, 6), (4, 8)) else in_turn,
    }


@exercise(
    "08.average",
    A_NUMBER,
    ask=lambda: say(en="What stands in `weight.grad` on rank 0?", zh="rank 0 上的 `weight.grad` 是多少？"),
    solution=lambda: say(
        en="`3.0`, on both ranks: all-reduce sums to 6.0, and DDP divides by the 2 ranks.",
        zh="`3.0`，两个 rank 上都是：全归约得到和 6.0，DDP 再除以 rank 的个数 2。",
    ),
)
def _average(value: float) -> Hints:
    one_rank = say(
        en="that is the gradient of one rank alone; with it the two would take different steps, and drift apart",
        zh="这只是其中一个 rank 自己的梯度；各用各的梯度，两边每一步走得就不同，权重会越差越远",
    )
    return {
        3: RIGHT,
        6: say(
            en="6.0 is the sum, which DataParallel would leave on GPU 0; DDP divides it by the number of ranks",
            zh="6.0 是和，DataParallel 会把它留在 0 号 GPU 上；DDP 还要除以 rank 的个数",
        ),
        2: one_rank,
        4: one_rank,
        ANY_OTHER: say(
            en="sum the two gradients, then divide by the number of ranks",
            zh="先把两个梯度相加，再除以 rank 的个数",
        ),
    }


@exercise(
    "08.star",
    A_WHOLE_NUMBER,
    facts={"ranks": (6, 2, 16)},
    fresh=lambda random: {"ranks": random.randint(3, 16)},
    ask=lambda ranks: say(
        en=f"{ranks} ranks: how many whole gradients does rank 0 receive?",
        zh=f"{ranks} 个 rank：rank 0 一共要收几份完整的梯度？",
    ),
    solution=lambda ranks: say(
        en=f"`{ranks - 1}`: one from each of the others. As many sums go out again, all over the same link.",
        zh=f"`{ranks - 1}`：其余每个 rank 一份。随后还要把和发出去这么多次，走的都是同一条链路。",
    ),
)
def _star(count: int, ranks: int) -> Hints:
    return {
        ranks: say(
            en="its own gradient is there already: it comes over no link",
            zh="它自己的梯度本来就在手里，不用走链路",
        ),
        1: say(
            en="one is what each of the others sends; how many of them are there?",
            zh="一份是其余每个 rank 发出的；一共有几个？",
        ),
        2 * (ranks - 1): say(
            en="that counts the sums it sends back as well; the question is what it receives",
            zh="这把它发回去的和也算进去了；题目问的是收到几份",
        ),
        ANY_OTHER: say(en="every rank but 0 sends it one", zh="除了 rank 0，每个 rank 都发给它一份"),
        ranks - 1: RIGHT,
    }


@exercise(
    "08.zero",
    A_NUMBER,
    facts={"ranks": (6, 2, 64)},
    solution=lambda ranks: say(
        en=f"`{_gigabytes(2, ranks):.4g}`: 3 × (4 + 12/{ranks}). The weights are whole, the rest is sharded.",
        zh=f"`{_gigabytes(2, ranks):.4g}`：3 × (4 + 12/{ranks})。权重是完整的，其余的分片。",
    ),
)
def _zero(value: float, ranks: int) -> Iterator[str]:
    value = value / 1e9 if value > 1e6 else value  # in bytes is right as well
    if isclose(value, _gigabytes(2, ranks), rel_tol=5e-3):
        return
    if isclose(value, _gigabytes(2, ranks) / 3, rel_tol=5e-3):
        yield say(
            en="that is the bytes of one parameter; the model has 3 billion",
            zh="这是一个参数的字节数；模型有 30 亿个参数",
        )
    if isclose(value, _gigabytes(0, ranks), rel_tol=5e-3):
        yield say(
            en="that is DDP, with nothing sharded; in stage 2 each rank keeps only its part of gradients and optimizer "
            "state",
            zh="这是 DDP，什么都没有分片；第 2 阶段，梯度和优化器状态每个 rank 只留自己的那一份",
        )
    if isclose(value, _gigabytes(1, ranks), rel_tol=5e-3):
        yield say(
            en="that is stage 1; in stage 2 the gradients are sharded too",
            zh="这是第 1 阶段；第 2 阶段连梯度也分片",
        )
    if isclose(value, _gigabytes(3, ranks), rel_tol=5e-3):
        yield say(
            en="that is stage 3, where the weights are sharded too; stage 2 leaves them whole",
            zh="这是第 3 阶段，连权重也分片了；第 2 阶段里，权重仍是完整的",
        )
    if isclose(value, 12, rel_tol=5e-3):
        yield say(
            en="sharded does not mean gone: each rank still has its part of gradients and optimizer state",
            zh="分片不等于消失：每个 rank 上仍有梯度和优化器状态的一份",
        )
    yield say(
        en=f"3 billion times: weights 4, and of the 12 bytes of gradients and optimizer state one part in {ranks}",
        zh=f"30 亿乘以：权重 4，再加梯度和优化器状态这 12 字节的 {ranks} 分之一",
    )


def _gigabytes(stage: int, ranks: int) -> float:
    """What a rank holds of 3 billion parameters."""
    whole = (16, 8, 4, 0)[stage]
    return 3 * (whole + (16 - whole) / ranks)


choice(
    "08.ring",
    lambda: say(
        en="Very many ranks in a ring: how much does each send in all?",
        zh="环上有非常多的 rank：每个一共要发出多少？",
    ),
    lambda: [
        (
            say(en="As many gradients as there are ranks", zh="有几个 rank，就是几份梯度"),
            say(
                en="about that many steps, yes; but in a step it sends one chunk, and chunks get smaller",
                zh="步数差不多有那么多；但一步只发一个分块，而 rank 越多，分块越小",
            ),
        ),
        (
            say(en="Next to nothing: chunks get tiny", zh="几乎没有：分块越来越小"),
            say(
                en="tiny, but there are more and more steps: multiply the two",
                zh="分块是小了，可步数越来越多：把两个数乘起来",
            ),
        ),
        (say(en="Almost two gradients", zh="差一点就是两份梯度"), RIGHT),
    ],
    solution=lambda: say(
        en="2(n − 1) steps of 1/n each: a little less than 2, whatever n is.",
        zh="2(n − 1) 步，每步 1/n：不管 n 是多少，都比 2 少一点。",
    ),
)

choice(
    "08.race",
    lambda: say(
        en="From 4 to 8 GPUs of one machine: how much longer does each take?",
        zh="同一台机器里，从 4 块加到 8 块：两种办法各要多花多少时间？",
    ),
    lambda: [
        (
            say(en="Both about twice as long", zh="都差不多加倍"),
            say(
                en="the ring sends 1.75 gradients instead of 1.5: that is not twice as many",
                zh="环形从 1.5 份梯度变成 1.75 份，并没有加倍",
            ),
        ),
        (
            say(
                en="The star more than twice as long, the ring less than a quarter longer",
                zh="星形是原来的两倍多，环形多花不到四分之一",
            ),
            RIGHT,
        ),
        (
            say(en="Neither: more GPUs, more links", zh="都不会变慢：GPU 多了，链路也多了"),
            say(
                en="the star uses one of them at a time, the one at rank 0",
                zh="星形每次只用得上一条，就是 rank 0 的那条",
            ),
        ),
    ],
    solution=lambda: say(
        en="7 gradients one after the other instead of 3; around the ring 1.75 instead of 1.5.",
        zh="星形从 3 份梯度变成 7 份，一份接一份；环形从 1.5 份变成 1.75 份。",
    ),
)

choice(
    "08.equal",
    lambda: say(
        en="Are the gradients of the ranks equal, and equal to that of one process?",
        zh="各 rank 的梯度彼此相同吗？和一个进程算出来的相同吗？",
    ),
    lambda: [
        (
            say(en="Bit for bit, all three", zh="三份逐位相同"),
            say(
                en="the two ranks, yes; but one process adds up in another order, which may round otherwise",
                zh="两个 rank 确实如此；但一个进程求和的顺序不同，舍入也可能不同",
            ),
        ),
        (
            say(
                en="Bit for bit among the ranks; with one process up to rounding",
                zh="两个 rank 逐位相同；和一个进程只差舍入误差",
            ),
            RIGHT,
        ),
        (
            say(en="No: each rank has read other rows", zh="不同：每个 rank 读的行不同"),
            say(
                en="each has computed another gradient, but what it holds after all-reduce is everybody's average",
                zh="各自算出的梯度确实不同，但全归约之后，手里的是大家的平均",
            ),
        ),
    ],
    solution=lambda: say(
        en="Both hold the same average, and the average of two means over 12 rows is the mean over 24.",
        zh="两边手里是同一个平均；两个 12 行的平均再平均，就是 24 行的平均。",
    ),
)

choice(
    "08.faster",
    lambda: say(
        en="A batch of 8 images in all: on how many GPUs is DataParallel fastest?",
        zh="一个批次总共 8 幅图像：DataParallel 用几块 GPU 最快？",
    ),
    lambda: [
        (
            say(en="8: each computes one image", zh="8 块：每块只算一幅"),
            say(
                en="the computing gets shorter; what is done once for each replica does not",
                zh="计算是短了；可每个副本都要做一遍的事并没有变短",
            ),
        ),
        ("4", RIGHT),
        (
            say(en="1: nothing has to be copied", zh="1 块：什么也不用拷贝"),
            say(
                en="copying costs a few milliseconds; eight images on one GPU take more than twenty",
                zh="拷贝只要几毫秒；八幅图像都在一块 GPU 上算，要二十多毫秒",
            ),
        ),
    ],
    solution=lambda: say(
        en="Up to 4 GPUs the shorter computing outweighs the sharing, on 8 it no longer does.",
        zh="4 块以内，省下的计算抵得过分摊的代价；到了 8 块就抵不过了。",
    ),
)
