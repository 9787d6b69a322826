"""The end of ``labkit run``: it names the lesson that explains an error, sums up the run, writes its timeline.

The script has the process for itself. The bootstrap (children/bootstrap) calls this module there once torch has been
imported; it speaks when Python has run the script and waited for its threads.
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

# Beginnings of what torch says, and the lesson about it. Of these the first that is found counts.
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
# A timeline of more events is not drawn any finer, and they take memory.
MOST_EVENTS = 50_000


@dataclass(frozen=True)
class Wanted:
    """The path of the timeline that is asked for, whether a summary is, and the GPU whose times it has."""

    timeline: str | None
    summary: bool
    times: str | None = None

    def text(self) -> str:
        return json.dumps(asdict(self))


class Counted:
    """The first events of a run; and of all of them the data-parallel calls, and the rows of each device."""

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
    """Watch this process, which sees its machine now, and say at its end what ``text`` (a :class:`Wanted`) asks for."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        hint = hint_of(error)
        if hint:
            print(hint, file=sys.stderr)

    sys.excepthook = sys.__excepthook__ = excepthook
    wanted = Wanted(**json.loads(text))
    if wanted.timeline is None and not wanted.summary:
        return

    from labkit.trace.recording import record  # with the engine: only for those who ask

    from . import times

    recording = record()
    trace = recording.__enter__()
    counted = Counted(MOST_EVENTS if wanted.timeline else 0)
    trace.events = counted.events
    clock = None if wanted.times is None else times.begin(wanted.times, trace)
    look = times.watch(trace, MOST_EVENTS, clock) if wanted.timeline else None

    def end() -> None:
        if look is not None:
            look("")
        recording.__exit__(None, None, None)
        if wanted.summary:
            print(summary(counted), file=sys.stderr)
        if wanted.timeline:
            title = Path(sys.argv[0]).name or "python"
            write_timeline(Path(wanted.timeline), trace, title, counted.dropped_events, wanted.times)

    atexit.register(end)


def write_timeline(path: Path, trace: Trace, title: str, left_out: int, times: str | None) -> None:
    from labkit.view.page import timeline_page

    gpu = accelerator(times).name if times else ""
    write(path, timeline_page(trace, title, left_out, gpu), "--timeline")


def write(path: Path, text: str, option: str) -> None:
    """Write ``text``, for which ``option`` asked. If that fails, a line on stderr says so; the run has ended anyway."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        print(f"labkit: {option}: {error}", file=sys.stderr)


# What torchrun tells each process in its environment; PyTorch says the same of what it misses there.
_OF_TORCHRUN = frozenset("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split())


def _wants_torchrun(error: BaseException) -> bool:
    if isinstance(error, KeyError):
        return error.args[:1] in {(name,) for name in _OF_TORCHRUN}
    return "env:// rendezvous: environment variable" in str(error)


def hint_of(error: BaseException) -> str | None:
    """The line that points to the lesson about ``error``, or to labkit torchrun; None if there is none."""
    if _wants_torchrun(error):
        script = Path(sys.argv[0]).name or "train.py"
        return WORDING["for-torchrun"](script=script)
    lesson = next((name for words, name in LESSONS if words in str(error)), None)
    return lesson and WORDING["explained"](lesson=lesson)


def summary(counted: Counted) -> str:
    """Says of each GPU how full it was and which rows it got, then lists what could not be simulated."""
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
