"""Streams and events of the simulated GPUs.

Work runs when it is called, so every stream is always up to date and waiting costs nothing. Each GPU has a virtual
clock, which advances with the bytes allocated (at 2 TB/s, about an A100's memory bandwidth) and by 5 µs for each
record. The same program gives the same times on every computer, and none is a prediction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from labkit.base.language import wrong
from labkit.base.patches import Patch

from .. import hooks
from .current_machine import machine_in_use, require_machine
from .gpu import Gpu, TheMachine
from .placement import gpu_of

LAUNCH = 5e-6  # seconds
HIGHEST = -3  # priority; PyTorch uses four levels (c10/cuda/CUDAStream.h, priority_range)
CUDA = 1  # the device type's number in C++ (c10/core/DeviceType.h)


class Stream:
    """Replacement of ``torch.Stream`` and ``torch.cuda.Stream``, equal to another of the same GPU and id.

    torch.cuda makes a new object from C++'s three numbers at each request (torch/cuda/__init__.py, current_stream).
    """

    __module__, __qualname__ = torch.Stream.__module__, torch.Stream.__qualname__

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        **_: object,
    ) -> None:
        machine = require_machine()
        where = "cuda" if device is None else device
        gpu = machine.resolve(where if device_index is None else device_index)
        if gpu is None:
            raise wrong(
                RuntimeError,
                en=f"a stream needs a cuda device, got {device!r}",
                zh=f"流需要 cuda 设备，现在是 {device!r}",
            )
        self._gpu: Gpu = gpu
        self.stream_id: int = next(machine.stream_ids) if stream_id is None else stream_id
        self.priority = max(HIGHEST, min(0, priority))

    device_type = CUDA

    @property
    def device(self) -> torch.device:
        return self._gpu.device

    @property
    def device_index(self) -> int:
        return self._gpu.index

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    native_handle = cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream  # the protocol's version, the handle

    def query(self) -> bool:
        return True

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, HIGHEST

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        for tell in hooks.host_waited:
            tell(require_machine())

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def __enter__(self) -> Stream:
        require_machine().current.enter(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        require_machine().current.leave()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self._gpu) == (other.stream_id, other._gpu)

    def __hash__(self) -> int:
        return hash((self.stream_id, self._gpu.index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"


class Event:
    """Replacement of ``torch.Event`` and ``torch.cuda.Event``: a point on the virtual clock of a GPU."""

    __module__, __qualname__ = torch.Event.__module__, torch.Event.__qualname__

    def __init__(
        self,
        device: Any = None,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        # torch.Event begins with the device, torch.cuda.Event with enable_timing.
        self._timing = device if isinstance(device, bool) else enable_timing
        self._time: float | None = None
        self._gpu: Gpu | None = None

    @property
    def device(self) -> torch.device | None:
        return None if self._gpu is None else self._gpu.device

    @property
    def event_id(self) -> int:
        return 0 if self._time is None else id(self)  # CUDA makes an event when it is first recorded

    cuda_event = event_id

    def record(self, stream: Stream | None = None) -> None:
        gpu = (require_machine().current.stream() if stream is None else stream)._gpu
        if self._gpu is not None and self._gpu is not gpu:  # c10/cuda/CUDAEvent.h, record
            raise RuntimeError(
                f"Event device {self._gpu.index} does not match recording stream's device {gpu.index}."
            )
        self._gpu = gpu
        self._time = self._gpu.clock.advance(LAUNCH)
        for tell in hooks.event_recorded:
            tell(self, stream)

    def wait(self, stream: Stream | None = None) -> None:
        clock = (require_machine().current.stream() if stream is None else stream)._gpu.clock
        if self._time is not None:
            # A later event of another GPU advances this GPU's clock; a past event costs nothing.
            clock.advance(max(0.0, self._time - clock.time()))
        for tell in hooks.event_awaited:
            tell(self, stream)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        for wait in hooks.device_waited:
            wait(require_machine())

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds on the virtual clock from this event to ``end``."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._gpu is not end._gpu:
            raise wrong(
                RuntimeError,
                en=f"both events must be on one device, got {self.device} and {end.device}",
                zh=f"两个事件必须在同一个设备上，现在是 {self.device} 和 {end.device}",
            )
        return (end._time - self._time) * 1000

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._time is None else f'{self._time:.6f} s'}>"


class Current(threading.local):
    """Each thread's current GPU, and its current stream on each GPU. A new thread starts on GPU 0."""

    def __init__(self) -> None:
        self.index = 0
        self._streams: dict[int, Stream] = {}
        # For each open ``with``: the previous GPU, and the previous stream on the GPU of the entered stream.
        self._before: list[tuple[int, Stream]] = []

    def stream(self, index: int | None = None) -> Stream:
        """Return the current stream of GPU ``index``; for None or a negative number, of the current GPU."""
        index = self.index if index is None or index < 0 else index
        if index not in self._streams:
            self._streams[index] = Stream(stream_id=0, device_index=index)
        return self._streams[index]

    def set_stream(self, stream: Stream) -> None:
        self._streams[stream.device_index] = stream
        self.index = stream.device_index

    def enter(self, stream: Stream) -> None:
        """Choose ``stream`` and its GPU, until :meth:`leave`."""
        self._before.append((self.index, self.stream(stream.device_index)))
        self.set_stream(stream)

    def leave(self) -> None:
        """Undo :meth:`enter`."""
        if self._before:  # empty: the stream entered was another machine's
            self.index, stream = self._before.pop()
            self._streams[stream.device_index] = stream


def stream_on(gpu: Gpu | None) -> Stream | None:
    """Return this thread's current stream on ``gpu``; None for the host, or a GPU of another machine."""
    if gpu is None or gpu.machine is not machine_in_use():
        return None
    stream: Stream = gpu.machine.current.stream(gpu.index)
    return stream


def restore_stream(stream: Stream | None) -> AbstractContextManager[object]:
    """Return a context manager that makes ``stream`` and its GPU current, for the backward of a tensor made there.

    The engine guards a node's stream, that of its first output on a GPU, around its hooks and its backward
    (torch/csrc/autograd/engine.cpp, evaluate_function; function.h, Node::stream).
    """
    return nullcontext() if stream is None or stream._gpu.machine is not machine_in_use() else stream


def _record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    # Do nothing: no memory is freed early here. The real method's argument parser accepts only torch's own streams.
    if not isinstance(stream, Stream):
        raise TypeError(
            f"record_stream(): argument 's' (position 1) must be Stream, not {type(stream).__name__}"
        )
    if gpu_of(tensor) is None:
        raise wrong(
            RuntimeError,
            en=f"record_stream needs a tensor on a GPU, got one on {tensor.device}",
            zh=f"record_stream 需要 GPU 上的张量，现在在 {tensor.device} 上",
        )


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace streams and events under each of their names in torch."""
    for owner in (torch, torch.cuda, torch.cuda.streams):
        yield Patch(owner, "Stream", Stream)
        yield Patch(owner, "Event", Event)
    yield Patch(torch.Tensor, "record_stream", _record_stream)
