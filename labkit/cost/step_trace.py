"""A step of DataParallel as the trace that it would leave, by the model of :mod:`labkit.cost.step`."""

from __future__ import annotations

from ..plans.split import split
from ..trace.events import Event, Trace
from .hardware import Hardware
from .step import Workload, data_parallel_step


def step_trace(work: Workload, hardware: Hardware, rows: int, gpus: int) -> Trace:
    """The events of one predicted step; it lasts as long as ``data_parallel_step(...)`` says.

    Copies leave and enter the home device, cuda:0, one after the other.
    """
    parts = dict(data_parallel_step(work, hardware, rows, gpus).parts)
    plan = split(rows, gpus)
    held = [found for found in plan.sizes if found]
    events: list[Event] = []
    at = 0.0

    def moves(
        part: str, phase: str, nbytes: float, *, direction: str = "forward", home: bool = False
    ) -> None:
        """A copy for each GPU but the home device, in turn; ``home``: they arrive there."""
        nonlocal at
        seconds = parts.get(part, 0.0) / max(len(held) - 1, 1)
        for gpu in range(1, len(held)):
            ends = ("cuda:0", f"cuda:{gpu}") if home else (f"cuda:{gpu}", "cuda:0")
            events.append(
                Event(
                    phase, *ends, direction=direction, nbytes=int(held[gpu] * nbytes), call=0, replica=gpu,
                    start=at + (gpu - 1) * seconds, seconds=seconds,
                )
            )  # fmt: skip
        at += parts.get(part, 0.0)

    def weights(part: str, direction: str) -> None:
        """All at the same time, as a pipeline through the GPUs."""
        nonlocal at
        for gpu in range(1, len(held)):
            ends = (f"cuda:{gpu}", "cuda:0") if direction == "forward" else ("cuda:0", f"cuda:{gpu}")
            events.append(
                Event(
                    "replicate", *ends, direction=direction, nbytes=int(work.parameter_bytes), call=0, replica=gpu,
                    start=at, seconds=parts.get(part, 0.0),
                )
            )  # fmt: skip
        at += parts.get(part, 0.0)

    def computing(part: str, direction: str) -> None:
        """Replicas start one after the other, as Python gets to them."""
        nonlocal at
        wait = hardware.replica_overhead if direction == "forward" and gpus > 1 else 0.0
        longest = parts[part] - wait * len(held)
        for gpu, found in enumerate(held):
            events.append(
                Event(
                    "parallel_apply", f"cuda:{gpu}", direction=direction, call=0, replica=gpu,
                    start=at + wait * (gpu + 1), seconds=longest * found / held[0],
                )
            )  # fmt: skip
        at += parts[part]

    moves("scatter", "scatter", work.input_bytes)
    weights("replicate", "forward")
    computing("forward", "forward")
    moves("gather", "gather", work.output_bytes, home=True)
    moves("gather backward", "gather", work.back_bytes, direction="backward")
    computing("backward", "backward")
    weights("reduce", "backward")
    return Trace(events, origin=0.0)
