"""Exercises of lesson 08: which rows a rank reads, what all-reduce leaves in a gradient, what ZeRO saves."""

from __future__ import annotations

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import A_NUMBER, numbers


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
    "08.zero",
    A_NUMBER,
    solution=lambda: say(
        en="`9`: 4 for the weights, 4 for the gradients, and 8/8 = 1 for this rank's shard of the optimizer state.",
        zh="`9`：权重 4，梯度 4，再加这个 rank 的优化器状态分片 8/8 = 1。",
    ),
)
def _zero(value: float) -> Hints:
    return {
        9: RIGHT,
        9e9: RIGHT,
        16: say(
            en="16 is DDP, with nothing sharded; in stage 1 each rank keeps only its part of the optimizer state",
            zh="16 是 DDP，什么都没有分片；第 1 阶段，每个 rank 只留优化器状态里自己的那一份",
        ),
        2: say(
            en="16 / 8 is stage 3, where everything is sharded; stage 1 leaves weights and gradients whole",
            zh="16 / 8 是第 3 阶段，全都分片；第 1 阶段里，权重和梯度仍是完整的",
        ),
        5.5: say(
            en="4 + 12/8 is stage 2; in stage 1 the gradients are not sharded yet",
            zh="4 + 12/8 是第 2 阶段；第 1 阶段还没有把梯度分片",
        ),
        8: say(
            en="sharded does not mean gone: one eighth of the optimizer state is still on each rank",
            zh="分片不等于消失：每个 rank 上仍有八分之一的优化器状态",
        ),
        ANY_OTHER: say(
            en="weights 4 + gradients 4 + a shard of the optimizer state, one of 8",
            zh="权重 4 + 梯度 4 + 优化器状态的一个分片（八分之一）",
        ),
    }


choice(
    "08.equal",
    lambda: say(
        en="Are the weights of the ranks equal, and equal to those of one process?",
        zh="各 rank 的权重彼此相同吗？和一个进程训练出来的相同吗？",
    ),
    lambda: [
        (
            say(
                en="Bit for bit, among themselves and with one process",
                zh="彼此逐位相同，和一个进程也逐位相同",
            ),
            say(
                en="among themselves, yes; but one process adds up in another order, which rounds otherwise",
                zh="彼此确实如此；但一个进程求和的顺序不同，舍入也就不同",
            ),
        ),
        (
            say(
                en="Bit for bit among themselves; with one process up to rounding",
                zh="彼此逐位相同；和一个进程只差舍入误差",
            ),
            RIGHT,
        ),
        (
            say(en="Only about equal: each rank reads other rows", zh="都只是差不多：每个 rank 读的行不同"),
            say(
                en="each rank computes another gradient, but all step with the same average",
                zh="每个 rank 算出的梯度不同，但大家走的那一步用的是同一个平均",
            ),
        ),
    ],
    solution=lambda: say(
        en="The same start and the same average gradient in every step: the same weights.",
        zh="起点相同，每一步的平均梯度相同，权重就相同。",
    ),
)

choice(
    "08.faster",
    lambda: say(
        en="This loop in one process, in two, in four: which is fastest?",
        zh="这个循环，用一个、两个、四个进程：哪个最快？",
    ),
    lambda: [
        (
            say(en="Four: each has a quarter of the rows", zh="四个：每个只有四分之一的行"),
            say(
                en="each has less to compute, but in every step all wait for each other: is there enough to compute?",
                zh="每个要算的少了，但每一步大家都要互相等：要算的东西够多吗？",
            ),
        ),
        (say(en="One", zh="一个"), RIGHT),
        (
            say(en="All about the same", zh="都差不多"),
            say(en="then the waiting would have to cost nothing", zh="那互相等待就得一点代价也没有"),
        ),
    ],
    solution=lambda: say(
        en="The task is tiny, and all-reduce is in every step: sharing costs more than it saves.",
        zh="任务太小，而每一步都有全归约：分摊的代价比省下的多。",
    ),
)

choice(
    "08.stuck",
    lambda: say(en="What happens to rank 0, if nobody steps in?", zh="要是没人管，rank 0 会怎样？"),
    lambda: [
        (
            say(en="It goes on with its own gradient", zh="用自己的梯度继续"),
            say(
                en="all-reduce gives a result only when everybody has sent theirs",
                zh="人人都发送之后，全归约才有结果",
            ),
        ),
        (say(en="It fails, or waits until the time limit", zh="报错，或者一直等到时限"), RIGHT),
        (
            say(en="It starts rank 1 again", zh="重新启动 rank 1"),
            say(
                en="a rank knows nothing of how the others are started: that is the launcher's job",
                zh="rank 并不管别人怎么启动：那是启动器的事",
            ),
        ),
    ],
    solution=lambda: say(
        en="It waits for a sum that never comes, until the connection breaks or the time is up.",
        zh="它在等一个永远不会来的和，直到连接断开或时间用完。",
    ),
)
