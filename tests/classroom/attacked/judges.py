"""Two judges that ask twice each, and hold a word that no worker may ever see: THE-JUDGES-WORD."""

from labkit_classroom.judging import part, same
from labkit_classroom.verdict import Hint

from . import drivers


@part("double", 2, en="numbers", zh="数")
def ints(ask, draw):
    for _ in range(2):
        x = draw.integer(1 << 20, 1 << 40)
        if not same(ask(drivers.double, x=x), 2 * x):
            yield Hint("wrong", "not doubled", "没有加倍")


@part("double", 2, en="tensors", zh="张量")
def tensors(ask, draw):
    x = draw.tensor(3, 2)
    if not same(ask(drivers.double, x=x), 2 * x):
        yield Hint("wrong", "not doubled", "没有加倍")


@part("triple", 1, en="numbers", zh="数")
def threes(ask, draw):
    x = draw.integer(1 << 20, 1 << 40)
    if not same(ask(drivers.triple, x=x), 3 * x):
        yield Hint("wrong", "not tripled", "没有三倍")
