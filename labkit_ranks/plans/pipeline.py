"""The schedules of a pipeline: when each stage works at which micro-batch, there and back; integers alone.

A model is cut into stages. A micro-batch goes forward through all of them (``"F0"`` is the first one's way there) and
back (``"B0"``). A stage does one task at a time, in an order of its own: a forward takes 1 unit of time, a message
none. From its forward to its backward a micro-batch is alive on a stage, which keeps its activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from labkit.base.display import Drawn
from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer, must, one_of

Order = Callable[[int, int, int], Sequence[str]]


@dataclass(frozen=True)
class Task:
    """What a stage does from ``start`` to ``stop``: ``"F3"`` or ``"B3"``."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Pipeline(Drawn):
    """A schedule that was run through: the tasks of each stage, in order."""

    name: str
    stages: tuple[tuple[Task, ...], ...]

    @property
    def length(self) -> int:
        """The time that all of it takes."""
        return max(tasks[-1].stop for tasks in self.stages)

    @property
    def bubble(self) -> float:
        """The share of the time in which a stage waits; all stages have the same work."""
        return 1 - sum(task.stop - task.start for task in self.stages[0]) / self.length

    def alive(self, stage: int) -> list[tuple[int, int]]:
        """The moments at which the number of micro-batches alive on ``stage`` changes, each with the new number."""
        changes = [(t.start, 1) if t.name[0] == "F" else (t.stop, -1) for t in self.stages[stage]]
        # Of two changes at the same moment the later one counts: a backward ends, the next forward begins.
        counts = dict(zip((at for at, _ in changes), accumulate(more for _, more in changes), strict=True))
        return [next(same) for _, same in groupby(counts.items(), lambda change: change[1])]

    def peak(self, stage: int) -> int:
        """The most micro-batches that are alive on ``stage`` at a time."""
        return max(count for _, count in self.alive(stage))

    def __repr__(self) -> str:
        peaks = [self.peak(stage) for stage in range(len(self.stages))]
        return say(
            en=f"{self.name}: {self.length} units of time, bubble {self.bubble:.1%}, alive at most {peaks}",
            zh=f"{self.name}：{self.length} 个时间单位，气泡 {self.bubble:.1%}，各阶段最多同时留着 {peaks}",
        )


def _gpipe(stage: int, stages: int, micro_batches: int) -> list[str]:
    """All forwards, then all backwards."""
    return [f"{way}{number}" for way in "FB" for number in range(micro_batches)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[str]:
    """As many forwards as there are stages behind this one; then one forward and one backward in turn."""
    ahead = stages - 1 - stage
    order = [f"F{number}" for number in range(min(ahead, micro_batches))]
    for number in range(micro_batches):
        order += [f"F{number + ahead}"] * (number + ahead < micro_batches) + [f"B{number}"]
    return order


ORDERS: dict[str, Order] = {"GPipe": _gpipe, "1F1B": _one_f_one_b}


def pipeline(order: str | Order, stages: int, micro_batches: int, *, backward: int = 2) -> Pipeline:
    """Run a schedule through, and tell when each stage does what.

    order      "GPipe", "1F1B", or a function: ``order(stage, stages, micro_batches)`` gives the tasks of a stage in
               their order, such as ``["F0", "F1", "B0", "B1"]``.
    backward   how long a backward takes; a forward takes 1.

    Raises TypeError or ValueError that names the argument; ValueError, too, where no stage can go on.
    """
    stages, backward = integer("stages", stages, 1, MOST_GPUS), integer("backward", backward, 1)
    micro_batches = integer("micro_batches", micro_batches, 1, MOST_GPUS)
    make = order if callable(order) else ORDERS[one_of("order", order, tuple(ORDERS))]
    orders = [list(make(stage, stages, micro_batches)) for stage in range(stages)]
    for stage, names in enumerate(orders):
        if sorted(map(str, names)) != sorted(_gpipe(stage, stages, micro_batches)):
            asked, en = f"order({stage}, {stages}, {micro_batches})", "F and B of each micro-batch, once"
            raise ValueError(must(asked, names, en=en, zh="里每个微批次的 F 和 B 各有一次"))
    done: dict[tuple[int, str] | None, int] = {None: 0}
    tasks: list[list[Task]] = [[] for _ in orders]
    while waiting := [stage for stage, names in enumerate(orders) if names]:
        ready = [stage for stage in waiting if _need(stage, stages, orders[stage][0]) in done]
        if not ready:
            en = zh = ", ".join(f"stage {stage}: {orders[stage][0]}" for stage in waiting)
            raise wrong(en=f"no stage can go on ({en})", zh=f"所有阶段都走不下去了（{zh}）")
        for stage in ready:
            name = orders[stage].pop(0)
            start = max(done[_need(stage, stages, name)], *(task.stop for task in tasks[stage][-1:]), 0)
            done[stage, name] = start + (1 if name[0] == "F" else backward)
            tasks[stage].append(Task(name, start, done[stage, name]))
    title = order if isinstance(order, str) else order.__name__
    return Pipeline(title, tuple(map(tuple, tasks)))


def _need(stage: int, stages: int, name: str) -> tuple[int, str] | None:
    """The stage and its task that come before task ``name`` of ``stage``; None if it can begin at once."""
    if name[0] == "F":
        return (stage - 1, name) if stage else None
    return (stage + 1, name) if stage < stages - 1 else (stage, "F" + name[1:])
