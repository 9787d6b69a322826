"""Schedules of a pipeline: when each stage runs the forward and backward of each micro-batch, from integers only.

A model is cut into stages. A micro-batch goes forward (``"F0"``) through all stages and backward (``"B0"``) again. A
stage does one task at a time, in the order of the schedule; a forward takes 1 unit of time, a message none. Between
forward and backward a micro-batch is alive on a stage, which keeps the activations.

An interleaved stage holds several chunks of layers, and its tasks name the chunk: ``"F0.1"``. Under zero bubble
``"B0"`` computes the gradient of the input only, and ``"W0"`` later that of the weights; the activations are kept until
then.
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
    """A stage's task from ``start`` to ``stop``: ``"F3"``, ``"B3"`` or ``"W3"``, ``"F3.1"`` of chunk 1."""

    name: str
    start: float
    stop: float

    @property
    def micro_batch(self) -> int:
        return int(self.name[1:].partition(".")[0])

    @property
    def chunk(self) -> int:
        return int(self.name.partition(".")[2] or 0)


@dataclass(frozen=True)
class Pipeline(Drawn):
    """A simulated schedule: the tasks of each stage, in order."""

    name: str
    stages: tuple[tuple[Task, ...], ...]

    @property
    def length(self) -> float:
        return _whole(max(tasks[-1].stop for tasks in self.stages))

    @property
    def bubble(self) -> float:
        """Return the share of the time in which a stage waits; all stages have the same work."""
        return 1 - sum(task.stop - task.start for task in self.stages[0]) / self.length

    def alive(self, stage: int) -> list[tuple[float, float]]:
        """Return (time, number) for each change in the number of micro-batches alive on ``stage``.

        A chunk counts as its share of the stage.
        """
        tasks = self.stages[stage]
        share = 1 / (1 + max(task.chunk for task in tasks))
        last = "W" if any(task.name[0] == "W" for task in tasks) else "B"
        changes = [
            (t.start, share) if t.name[0] == "F" else (t.stop, -share)
            for t in tasks
            if t.name[0] in ("F", last)
        ]
        # Keep the later of two changes at the same time: a backward ends, the next forward begins.
        counts = dict(zip((at for at, _ in changes), accumulate(more for _, more in changes), strict=True))
        return [next(same) for _, same in groupby(counts.items(), lambda change: change[1])]

    def peak(self, stage: int) -> float:
        """Return the largest number of micro-batches alive on ``stage``."""
        return _whole(max(count for _, count in self.alive(stage)))

    def __repr__(self) -> str:
        peaks = [self.peak(stage) for stage in range(len(self.stages))]
        return say(
            en=f"{self.name}: {self.length} units of time, bubble {self.bubble:.1%}, alive at most {peaks}",
            zh=f"{self.name}：{self.length} 个时间单位，气泡 {self.bubble:.1%}，各阶段最多同时留着 {peaks}",
        )


def _whole(value: float) -> float:
    """Return whole numbers as int, for what people read."""
    return int(value) if value == int(value) else value


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


def _interleaved(stage: int, stages: int, micro_batches: int) -> list[str]:
    """Return 1F1B over chunks, as Megatron-LM orders it: groups of ``stages`` micro-batches go through each chunk."""
    if micro_batches % stages:
        en, zh = f"a multiple of the {stages} stages", f"是 {stages}（阶段数）的倍数"
        raise ValueError(must("micro_batches", micro_batches, en=en, zh=zh))
    groups = [range(at, at + stages) for at in range(0, micro_batches, stages)]
    every = [(number, chunk) for group in groups for chunk in range(CHUNKS) for number in group]
    forward = [f"F{number}.{chunk}" for number, chunk in every]
    backward = [f"B{number}.{CHUNKS - 1 - chunk}" for number, chunk in every]
    ahead = min(2 * (stages - 1 - stage) + (CHUNKS - 1) * stages, len(every))
    turns = [name for pair in zip(forward[ahead:], backward, strict=False) for name in pair]
    return [*forward[:ahead], *turns, *backward[len(every) - ahead :]]


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> list[str]:
    """Return ZB-H1: 1F1B in which stage i computes the gradients of weights i micro-batches later."""
    order = []
    for name in _one_f_one_b(stage, stages, micro_batches):
        order.append(name)
        if name[0] == "B" and int(name[1:]) >= stage:
            order.append(f"W{int(name[1:]) - stage}")
    return order + [f"W{number}" for number in range(max(micro_batches - stage, 0), micro_batches)]


CHUNKS = 2
ORDERS: dict[str, Order] = {
    "GPipe": _gpipe, "1F1B": _one_f_one_b, "interleaved 1F1B": _interleaved, "zero bubble": _zero_bubble,
}  # fmt: skip


def pipeline(order: str | Order, stages: int, micro_batches: int, *, backward: int = 2) -> Pipeline:
    """Simulate a schedule, and return when each stage does which task.

    order      "GPipe", "1F1B", "interleaved 1F1B" (two chunks for each stage), "zero bubble" (ZB-H1), or a function:
               ``order(stage, stages, micro_batches)`` returns the tasks of a stage in order, such as ``["F0", "F1",
               "B0", "B1"]``.
    backward   the time of a backward; a forward takes 1. Zero bubble halves it.

    Raises TypeError or ValueError, naming the argument, and ValueError for a schedule that deadlocks.
    """
    stages, backward = integer("stages", stages, 1, MOST_GPUS), integer("backward", backward, 1)
    micro_batches = integer("micro_batches", micro_batches, 1, MOST_GPUS)
    make = order if callable(order) else ORDERS[one_of("order", order, tuple(ORDERS))]
    orders = [list(make(stage, stages, micro_batches)) for stage in range(stages)]
    for stage, names in enumerate(orders if callable(order) else ()):
        if sorted(map(str, names)) != sorted(_gpipe(stage, stages, micro_batches)):
            asked, en = f"order({stage}, {stages}, {micro_batches})", "F and B of each micro-batch, once"
            raise ValueError(must(asked, names, en=en, zh="让每个微批次的 F 和 B 各有一次"))
    every = [Task(name, 0, 0) for name in orders[0]]
    chunks, split = 1 + max(task.chunk for task in every), any(task.name[0] == "W" for task in every)
    takes = {"F": 1 / chunks, "B": backward / chunks / (1 + split), "W": backward / 2}
    done: dict[tuple[int, str] | None, float] = {None: 0}
    tasks: list[list[Task]] = [[] for _ in orders]
    while waiting := [stage for stage, names in enumerate(orders) if names]:
        ready = [stage for stage in waiting if _need(stage, stages, chunks, orders[stage][0]) in done]
        if not ready:
            en = ", ".join(f"stage {stage}: {orders[stage][0]}" for stage in waiting)
            zh = "，".join(f"阶段 {stage} 停在 {orders[stage][0]}" for stage in waiting)
            raise wrong(en=f"no stage can go on ({en})", zh=f"所有阶段都走不下去了（{zh}）")
        for stage in ready:
            name = orders[stage].pop(0)
            needed, before = done[_need(stage, stages, chunks, name)], tasks[stage]
            start = max(needed, before[-1].stop if before else 0)
            done[stage, name] = start + takes[name[0]]
            tasks[stage].append(Task(name, start, done[stage, name]))
    title = order if isinstance(order, str) else order.__name__
    return Pipeline(title, tuple(map(tuple, tasks)))


def _need(stage: int, stages: int, chunks: int, name: str) -> tuple[int, str] | None:
    """Return the (stage, task) that task ``name`` of ``stage`` needs; None for a task without needs."""
    way, own, chunk = name[0], name[1:].partition(".")[0], Task(name, 0, 0).chunk
    if way == "W":
        return stage, f"B{name[1:]}"
    last, step = (0, -1) if way == "F" else (stages - 1, 1)
    if stage != last:
        return stage + step, name
    if 0 <= chunk + step < chunks:  # another chunk of the model, at the other end of the stages
        return stages - 1 - last, f"{way}{own}.{chunk + step}"
    return None if way == "F" else (stage, f"F{name[1:]}")
