"""A step of DataParallel as the trace that it would leave, by the model of :mod:`labkit.cost.step`."""

from __future__ import annotations

from ..plans.split import split
from ..trace.events import Event
from ..trace.trace import Trace
from .hardware import Hardware
from .step import Workload, data_parallel_step


def step_trace(work: Workload, hardware: Hardware, rows: int, gpus: int) -> Trace:
    """The events of one predicted step; it lasts as long as ``data_parallel_step(...)`` says.

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
    moves("gather backward", "gather", work.back_bytes, home=False, direction="backward")
    computing("backward")
    moves("reduce", "replicate", None, home=True, direction="backward")
    return Trace(events, origin=0.0)
