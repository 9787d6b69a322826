"""Schedules of a pipeline: when each stage runs the forward and backward of each micro-batch, from integers only.

A model is cut into stages. A micro-batch goes forward (``"F0"``) through all stages and backward (``"B0"``) again. A
stage does one task at a time, in the order of the schedule; a forward takes 1 unit of time, a message none. Between
forward and backward a micro-batch is alive on a stage, which keeps the activations.
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
    """A stage's task from ``start`` to ``stop``: ``"F3"`` or ``"B3"``."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Pipeline(Drawn):
    """A simulated schedule: the tasks of each stage, in order."""

    name: str
    stages: tuple[tuple[Task, ...], ...]

    @property
    def length(self) -> int:
        """Return the time of the whole schedule."""
        return max(tasks[-1].stop for tasks in self.stages)

    @property
    def bubble(self) -> float:
        """Return the share of the time in which a stage waits; all stages have the same work."""
        return 1 - sum(task.stop - task.start for task in self.stages[0]) / self.length

    def alive(self, stage: int) -> list[tuple[int, int]]:
        """Return (time, number) for each change in the number of micro-batches alive on ``stage``."""
        changes = [(t.start, 1) if t.name[0] == "F" else (t.stop, -1) for t in self.stages[stage]]
        # Keep the later of two changes at the same time: a backward ends, the next forward begins.
        counts = dict(zip((at for at, _ in changes), accumulate(more for _, more in changes), strict=True))
        return [next(same) for _, same in groupby(counts.items(), lambda change: change[1])]

    def peak(self, stage: int) -> int:
        """Return the largest number of micro-batches alive on ``stage``."""
        return max(count for _, count in self.alive(stage))

    def __repr__(self) -> str:
        peaks = [self.peak(stage) for stage in range(len(self.stages))]
        return say(
            en=f"{self.name}: {self.length} units of time, bubble {self.bubble:.1%}, alive at most {peaks}",
            zh=f"{self.name}：{self.length} 个时间单位，气泡 {self.bubble:.1%}，各阶段最多同时留着 {peaks}",
        )


def _gpipe(stage: int, stages: int, micro_batches: int) -> list[str]:
    """Return all forwards, then all backwards."""
    return [f"{way}{number}" for way in "FB" for number in range(micro_batches)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[str]:
    """Return one forward for each later stage, then forwards and backwards in turn."""
    ahead = stages - 1 - stage
    order = [f"F{number}" for number in range(min(ahead, micro_batches))]
    for number in range(micro_batches):
        order += [f"F{number + ahead}"] * (number + ahead < micro_batches) + [f"B{number}"]
    return order


ORDERS: dict[str, Order] = {"GPipe": _gpipe, "1F1B": _one_f_one_b}


def pipeline(order: str | Order, stages: int, micro_batches: int, *, backward: int = 2) -> Pipeline:
    """Simulate a schedule, and return when each stage does which task.

    order      "GPipe", "1F1B", or a function: ``order(stage, stages, micro_batches)`` returns the tasks of a stage in
               order, such as ``["F0", "F1", "B0", "B1"]``.
    backward   the time of a backward; a forward takes 1.

    Raises TypeError or ValueError, naming the argument, and ValueError for a schedule that deadlocks.
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
    """Return the (stage, task) that task ``name`` of ``stage`` needs; None for a task without needs."""
    if name[0] == "F":
        return (stage - 1, name) if stage else None
    return (stage + 1, name) if stage < stages - 1 else (stage, "F" + name[1:])
