"""The end of ``labkit run``: a hint about an error, the summary of the run, and its timeline.

The bootstrap (simgpu/children/bootstrap) calls ``begin`` in the script's process once torch is imported. Output follows
when Python has run the script and waited for its threads.
"""

from __future__ import annotations

import atexit
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from labkit.base.language import say
from labkit.base.units import localized_bytes
from labkit.cost.hardware import accelerator
from labkit.trace.events import Event, First
from labkit.trace.trace import Trace

from .wording import Wording

WORDING = Wording("ending")

# Parts of PyTorch's error messages, each with the lesson to read; the first match counts.
LESSONS = (
    ("module must have its parameters and buffers on device", "05_devices"),
    ("Expected all tensors to be on the same device", "05_devices"),
    ("is different from other tensors on", "05_devices"),
    ("Attempting to deserialize object on", "05_devices"),
    ("invalid device ordinal", "05_devices"),
    ("has invalid shape", "06_batch_dim"),
    ("Expected input batch_size", "06_batch_dim"),
    ("Expected more than 1 value per channel when training", "08_memory"),
    ("CUDA out of memory", "08_memory"),
    ("chunk expects at least a 1-dimensional tensor", "04_primitives"),
    ("Distributed package doesn't have NCCL", "08_memory"),
)
# More events would take memory and not show in the timeline.
MOST_EVENTS = 50_000


@dataclass(frozen=True)
class EndingRequest:
    """The output requested for the end: path of the timeline, summary or not, and the GPU model for its times."""

    timeline: str | None
    summary: bool
    times: str | None = None

    def text(self) -> str:
        return json.dumps(asdict(self))


class RunCounts:
    """The first events of a run, and counts over all events: data-parallel calls, and rows of each device."""

    def __init__(self, most: int) -> None:
        self.events, self.dropped_events = First(most, self._see), 0
        self.calls: set[int] = set()
        self.rows: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()  # the calls in which a device got rows

    def _see(self, event: Event, kept: bool) -> None:
        self.dropped_events += not kept
        if event.phase == "scatter" and event.direction == "forward" and event.call is not None:
            self.calls.add(event.call)
            rows = next((shape[0] for shape in event.shapes if shape), 0)
            self.rows[event.device] += rows
            self.busy[event.device] += rows > 0


def begin(text: str) -> None:
    """Record this process, and print and write at its end what ``text``, an :class:`EndingRequest`, names."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        hint = hint_of(error)
        if hint:
            print(hint, file=sys.stderr)

    sys.excepthook = sys.__excepthook__ = excepthook
    request = EndingRequest(**json.loads(text))
    if request.timeline is None and not request.summary:
        return

    from labkit.trace.recording import record  # late: imports the engine

    from . import times

    recording = record()
    trace = recording.__enter__()
    counted = RunCounts(MOST_EVENTS if request.timeline else 0)
    trace.events = counted.events
    clock = None if request.times is None else times.begin_modelled_time(request.times, trace)
    sample = times.sample_memory(trace, MOST_EVENTS, clock) if request.timeline else None

    def end() -> None:
        if sample is not None:
            sample("")
        recording.__exit__(None, None, None)
        if request.summary:
            print(summary(counted), file=sys.stderr)
        if request.timeline:
            title = Path(sys.argv[0]).name or "python"
            write_timeline(Path(request.timeline), trace, title, counted.dropped_events, request.times)

    atexit.register(end)


def write_timeline(path: Path, trace: Trace, title: str, left_out: int, times: str | None) -> None:
    from labkit.view.page import timeline_page

    gpu = accelerator(times).name if times else ""
    write(path, timeline_page(trace, title, left_out, gpu), "--timeline")


def write(path: Path, text: str, option: str) -> None:
    """Write ``text`` to the path of ``option``; only print an error, since the run itself is over."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        print(f"labkit: {option}: {error}", file=sys.stderr)


# Environment variables that torchrun sets for each process.
_TORCHRUN_VARIABLES = frozenset("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split())


def _wants_torchrun(error: BaseException) -> bool:
    if isinstance(error, KeyError):
        return error.args[:1] in {(name,) for name in _TORCHRUN_VARIABLES}
    return "env:// rendezvous: environment variable" in str(error)


def hint_of(error: BaseException) -> str | None:
    """Return a line with the lesson about ``error``, or with the torchrun command; None if neither fits."""
    if _wants_torchrun(error):
        script = Path(sys.argv[0]).name or "train.py"
        return WORDING["for-torchrun"](script=script)
    lesson = next((name for words, name in LESSONS if words in str(error)), None)
    return lesson and WORDING["explained"](lesson=lesson)


def summary(counted: RunCounts) -> str:
    """Return the peak memory and the rows of each GPU, and the features that could not be simulated, as text."""
    from simgpu import machine_in_use
    from simgpu.fidelity import REFUSED

    machine = machine_in_use()
    if machine is None:
        return WORDING["no-machine"]()
    calls = len(counted.calls)
    lines = [WORDING["summary"](gpus=len(machine.gpus), calls=calls)]
    for gpu in machine.gpus:
        gpu.recount()
        peak, whole = localized_bytes(gpu.peak), localized_bytes(gpu.capacity)
        line = "  " + WORDING["gpu"](gpu=gpu.index, peak=peak, whole=whole)
        device, busy = str(gpu.device), counted.busy[str(gpu.device)]
        if calls and not busy:
            line += WORDING["idle"]()
        elif calls:
            line += say(
                en=f", {counted.rows[device]:,} row{'s' * (counted.rows[device] != 1)}",
                zh=f"，{counted.rows[device]:,} 行",
            )
            if busy < calls:
                line += WORDING["idle-in"](calls=calls - busy)
        lines.append(line)
    if REFUSED:
        lines.append(WORDING["refused"]())
        lines += [f"  {text} (×{count})" for text, count in REFUSED.most_common()]
    lines.append(WORDING["approximations"]())
    return "\n".join(lines)
