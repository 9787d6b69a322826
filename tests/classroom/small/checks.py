"""What the student's ``check(...)`` says."""

from labkit_classroom.checking import visible
from labkit_classroom.verdict import Hint

from . import drivers


@visible("split", "split", en="a function", zh="一个函数")
def _split(student):
    if drivers.split(student, [(9, 4)]) != [[3, 3, 3]]:
        yield Hint("open", "9 rows on 4 GPUs are 3, 3, 3", "9 行分给 4 块 GPU 是 3、3、3")


@visible("scatter", "scatter", en="a function", zh="一个函数")
def _scatter(student):
    yield from ()
