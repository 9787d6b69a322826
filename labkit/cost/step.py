"""Predict the seconds of one training step: on DataParallel, on DDP, and if nothing but computing took time.

The model and its limits:

* Computing takes time in proportion to rows, two thirds of it backward; the slowest GPU sets the pace.
* DataParallel does one thing after the other: scatter, broadcast of the weights, forward, gather, backward. A broadcast
  and the sum of gradients are pipelines through all GPUs: the weights pass each link once.
* DDP's all-reduce is a ring, 2 (n - 1) / n of the weights over each link. It overlaps with backward and slows it; the
  excess adds time, and at least the last bucket.
* The loader, the optimizer and the loss on the home device take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ..base.language import wrong
from ..base.numbers import amount
from ..plans.buckets import BUCKET  # the last bucket is sent when backward is over
from ..plans.split import split
from ..trace.events import Event
from ..trace.trace import Trace
from .hardware import Hardware, all_reduce_seconds

_BACKWARD = 2 / 3


@dataclass(frozen=True)
class Workload:
    """The computing and the data of a step.

    seconds_per_row  forward and backward of one row on one GPU.
    parameter_bytes  of the weights, and of their gradients.
    input_bytes      per row.
    output_bytes     per row, gathered by DataParallel.
    gradient_bytes   per row, of the output's gradient; ``output_bytes`` by default.
    """

    seconds_per_row: float
    parameter_bytes: int
    input_bytes: int = 0
    output_bytes: int = 0
    gradient_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "gradient_bytes" or value is not None:
                amount(field.name, value)

    @property
    def backward_bytes(self) -> int:
        """Bytes per row of the gradient that goes back to the replicas."""
        return self.output_bytes if self.gradient_bytes is None else self.gradient_bytes

    back_bytes = backward_bytes  # the former name


@dataclass(frozen=True)
class Step:
    """A step as consecutive parts: pairs of a name and seconds."""

    parts: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(seconds for _, seconds in self.parts)


def perfect_step(work: Workload, rows: int, gpus: int) -> Step:
    """Predict a step of ``rows`` rows in all if only computing took time: the null model."""
    forward, backward = computing_seconds(work, rows, gpus)
    return Step((("forward", forward), ("backward", backward)))


def data_parallel_step(work: Workload, hardware: Hardware, rows: int, gpus: int) -> Step:
    """Predict a step of ``nn.DataParallel`` with ``rows`` rows in all on ``gpus`` GPUs of one machine.

    Raises ValueError if a machine has fewer GPUs.
    """
    if gpus > hardware.machine_size:
        raise wrong(
            en=f"gpus must be at most {hardware.machine_size}, the GPUs of one machine of {hardware.name}, "
            f"got {gpus}: DataParallel cannot reach another machine",
            zh=f"gpus 不能大于 {hardware.machine_size}（一台 {hardware.name} 机器的 GPU 数），现在是 {gpus}："
            "DataParallel 用不到别的机器",
        )
    if gpus == 1:
        return perfect_step(work, rows, 1)
    plan = split(rows, gpus)
    working = sum(held > 0 for held in plan.sizes)
    forward, backward = computing_seconds(work, rows, gpus)
    away = rows - plan.sizes[0]  # rows that leave the home device
    speed, messages = hardware.copy_bandwidth, (working - 1) * hardware.latency
    weights = work.parameter_bytes / speed * (working > 1) + messages
    return Step(
        (
            ("scatter", away * work.input_bytes / speed + messages),
            ("replicate", weights),
            ("forward", forward + working * hardware.replica_overhead),
            ("gather", away * work.output_bytes / speed + messages),
            ("gather backward", away * work.backward_bytes / speed + messages),
            ("backward", backward),
            ("reduce", weights),
        )
    )


def ddp_step(work: Workload, hardware: Hardware, rows: int, gpus: int) -> Step:
    """Predict a step of ``DistributedDataParallel`` with ``rows`` rows in all on ``gpus`` GPUs, on one machine or
    several.
    """
    reduce = all_reduce_seconds(work.parameter_bytes, hardware, gpus)
    last = reduce * min(1.0, BUCKET / max(work.parameter_bytes, 1))
    forward, backward = ddp_computing(work, hardware, -(-rows // gpus), reduce > last)
    return Step((("forward", forward), ("backward", backward), ("all-reduce", max(last, reduce - backward))))


def ddp_computing(work: Workload, hardware: Hardware, rows: int, beside: bool) -> tuple[float, float]:
    """Return the seconds of DDP's forward and backward; ``beside``: all-reduces run beside backward and slow it."""
    forward, backward = (
        seconds * (1 + hardware.ddp_overhead) for seconds in computing_seconds(work, rows, 1)
    )
    return forward, backward * (1 + hardware.ddp_contention * beside)


@dataclass(frozen=True)
class Overlap:
    """A step with overlap: seconds of forward and backward, and each bucket's bytes, begin and end of its
    all-reduce.
    """

    forward: float
    backward: float
    sums: tuple[tuple[int, float, float], ...]

    @property
    def computing_end(self) -> float:
        """When backward is over."""
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        """The whole step."""
        return max(self.computing_end, self.sums[-1][2])


def overlap(
    work: Workload, hardware: Hardware, rows: int, gpus: int, buckets: Sequence[Sequence[int]]
) -> Overlap:
    """Predict a step with ``rows`` rows on each of ``gpus`` GPUs, whose gradients are sent in ``buckets`` of bytes.

    Backward's time is shared out by bytes: a gradient is there when as large a share of it is over.
    """
    sizes = [sum(bucket) for bucket in buckets]
    lasting = [all_reduce_seconds(size, hardware, gpus) for size in sizes]
    forward, backward = ddp_computing(work, hardware, rows, sum(lasting[:-1]) > 0)
    made, free, sums = 0, 0.0, []
    for size, seconds in zip(sizes, lasting, strict=True):
        made += size
        start = max(free, forward + backward * made / sum(sizes))
        free = start + seconds
        sums.append((size, start, free))
    return Overlap(forward, backward, tuple(sums))


def computing_seconds(work: Workload, rows: int, gpus: int) -> tuple[float, float]:
    """Return the seconds of forward and backward of the largest piece."""
    seconds = -(-rows // gpus) * work.seconds_per_row
    return seconds * (1 - _BACKWARD), seconds * _BACKWARD


def step_trace(work: Workload, hardware: Hardware, rows: int, gpus: int) -> Trace:
    """Return the events of a predicted step, as long as :func:`data_parallel_step` says.

    Copies leave and enter the home device, cuda:0, one after the other.
    """
    parts = dict(data_parallel_step(work, hardware, rows, gpus).parts)
    held = [found for found in split(rows, gpus).sizes if found]
    events: list[Event] = []
    at = 0.0

    def moves(
        part: str, phase: str, row_bytes: float | None, *, home: bool, direction: str = "forward"
    ) -> None:
        """A copy for each GPU but the home device; ``home``: they arrive there. ``row_bytes``: None for the weights."""
        nonlocal at
        seconds = parts.get(part, 0.0)
        for gpu in range(1, len(held)):
            # Weights go as a pipeline through all GPUs at the same time, rows in turn.
            start, lasts, nbytes = at, seconds, int(work.parameter_bytes)
            if row_bytes is not None:
                lasts = seconds / (len(held) - 1)
                start, nbytes = at + (gpu - 1) * lasts, int(held[gpu] * row_bytes)
            ends = ("cuda:0", f"cuda:{gpu}") if home else (f"cuda:{gpu}", "cuda:0")
            events.append(
                Event(
                    phase, *ends, direction=direction, nbytes=nbytes, call=0, replica=gpu, start=start, seconds=lasts
                )
            )  # fmt: skip
        at += seconds

    def computing(direction: str) -> None:
        """Replicas start one after the other, as Python gets to them."""
        nonlocal at
        wait = hardware.replica_overhead if direction == "forward" and gpus > 1 else 0.0
        longest = parts[direction] - wait * len(held)
        for gpu, found in enumerate(held):
            events.append(
                Event(
                    "parallel_apply", f"cuda:{gpu}", direction=direction, call=0, replica=gpu,
                    start=at + wait * (gpu + 1), seconds=longest * found / held[0],
                )
            )  # fmt: skip
        at += parts[direction]

    moves("scatter", "scatter", work.input_bytes, home=False)
    moves("replicate", "replicate", None, home=False)
    computing("forward")
    moves("gather", "gather", work.output_bytes, home=True)
    moves("gather backward", "gather", work.backward_bytes, home=False, direction="backward")
    computing("backward")
    moves("reduce", "replicate", None, home=True, direction="backward")
    return Trace(events, origin=0.0)
