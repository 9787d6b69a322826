"""The rubric of a small assignment: two questions, 2 points each."""

from labkit_classroom.judging import part, same
from labkit_classroom.verdict import Hint

from . import drivers


def numbers(draw):
    return {"base": draw.integer(1000, 9999) if draw else 1234}


@part("split", 2, en="pieces of ceil(rows / GPUs) rows", zh="每个分块 ⌈行数 / GPU 数⌉ 行")
def rule(ask, draw):
    cases = [(draw.integer(9, 99), draw.integer(2, 8)) for _ in range(8)]
    right = [
        [min(size, rows - at) for at in range(0, rows, size)]
        for rows, gpus in cases
        for size in [-(-rows // gpus)]
    ]
    got = ask(drivers.split, cases=cases)
    if not same(got, right):
        yield Hint(
            "wrong-rule",
            "it gives other sizes",
            "得到的行数不对",
            score=0.5 if same(got[:1], right[:1]) else 0,
        )


@part("scatter", 2, en="every row arrives", zh="每一行都送到")
def arrives(ask, draw):
    rows, count = draw.integer(9, 99), draw.integer(2, 8)
    batch = draw.tensor(rows, 3)
    if not same(ask(drivers.scatter, batch=batch, count=count), list(batch.chunk(count))):
        yield Hint("lost", "rows are missing", "有的行丢了")
