"""Streams and events of the simulated GPUs.

Work runs when it is called, so every stream is always up to date and waiting costs nothing; what is kept
is the order of things on a virtual clock. The clock of a GPU advances with the bytes it allocates
(at 2 TB/s, about an A100's memory bandwidth) and by 5 µs for each record: the same program gives the
same times on every computer, later is never earlier, and no value is a prediction.
"""

from __future__ import annotations

import itertools
import threading

import torch

from .placement import gpu_of

LAUNCH = 5e-6  # seconds
_CUDA = 1  # the device type's number in C++


def stream_classes(machine_in_use, real_stream, real_event):
    """The classes that stand for ``torch.Stream`` and ``torch.Event`` (and torch.cuda's) on a machine."""
    ids = itertools.count(32)

    class Stream:
        """A stream of a simulated GPU: equal to another if device and id are."""

        def __init__(
            self, device=None, priority=0, *, stream_id=None, device_index=None, device_type=None, **_
        ):
            machine = machine_in_use()
            if device_index is not None:
                self._gpu = machine.gpu(device_index)
            else:
                gpu = machine.resolve("cuda" if device is None else device)
                if gpu is None:
                    raise RuntimeError(f"a stream needs a cuda device, got {device!r}")
                self._gpu = gpu
            self.stream_id = next(ids) if stream_id is None else stream_id
            self.priority = max(-1, min(0, priority))
            self._before = []

        @property
        def device(self):
            return self._gpu.device

        @property
        def device_index(self):
            return self._gpu.index

        @property
        def device_type(self):
            return _CUDA

        @property
        def cuda_stream(self):
            return self.stream_id

        @property
        def native_handle(self):
            return self.stream_id

        def query(self):
            return True

        @staticmethod
        def priority_range():
            return 0, -1

        def is_capturing(self):
            return False

        def synchronize(self):
            self._gpu.clock.advance(0.0)

        def record_event(self, event=None):
            event = Event() if event is None else event
            event.record(self)
            return event

        def wait_event(self, event):
            event.wait(self)

        def wait_stream(self, stream):
            self.wait_event(stream.record_event())

        def __enter__(self):
            current = machine_in_use().current
            self._before.append((current.index, current.stream(self._gpu.index)))
            current.set_stream(self)
            return self

        def __exit__(self, *exc_info):
            current = machine_in_use().current
            index, stream = self._before.pop()
            current.set_stream(stream)
            current.index = index

        def __eq__(self, other):
            return isinstance(other, Stream) and (self.stream_id, self._gpu) == (other.stream_id, other._gpu)

        def __hash__(self):
            return hash((self.stream_id, self._gpu.index))

        def __repr__(self):
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"

    class Event:
        """A point on the virtual clock."""

        def __init__(
            self, device=None, enable_timing=False, blocking=False, interprocess=False, external=False
        ):
            if isinstance(device, bool):
                device, enable_timing = None, device
            self._device = device
            self._timing = enable_timing
            self._time = None
            self._gpu = None

        @property
        def device(self):
            return None if self._gpu is None else self._gpu.device

        @property
        def event_id(self):
            return id(self)

        cuda_event = event_id

        def record(self, stream=None):
            stream = machine_in_use().current.stream() if stream is None else stream
            self._gpu = stream._gpu
            self._time = stream._gpu.clock.advance(LAUNCH)

        def wait(self, stream=None):
            stream = machine_in_use().current.stream() if stream is None else stream
            if self._time is not None:
                clock = stream._gpu.clock
                clock.advance(max(0.0, self._time - clock.now()))

        def query(self):
            return True

        def synchronize(self):
            return None

        def elapsed_time(self, end):
            """Milliseconds on the virtual clock from this event to ``end``."""
            for event in (self, end):
                if not event._timing:
                    raise ValueError("Both events must be created with argument 'enable_timing=True'.")
                if event._time is None:
                    raise ValueError("Both events must be recorded before calculating elapsed time.")
            if self._gpu is not end._gpu:
                raise RuntimeError(f"both events must be on one device, got {self.device} and {end.device}")
            return (end._time - self._time) * 1000

        def __repr__(self):
            return f"<torch.cuda.Event {'uninitialized' if self._time is None else f'{self._time:.6f} s'}>"

    for made, real in ((Stream, real_stream), (Event, real_event)):
        made.__module__, made.__qualname__ = real.__module__, real.__qualname__
    return Stream, Event


class Current(threading.local):
    """What each thread has chosen: a GPU, and a stream on each GPU. A new thread starts on GPU 0."""

    def __init__(self, machine, stream_class) -> None:
        self._machine = machine
        self._stream_class = stream_class
        self.index = 0
        self._streams: dict[int, object] = {}

    def stream(self, index: int | None = None):
        index = self.index if index is None or index < 0 else index
        if index not in self._streams:
            self._streams[index] = self.default_stream(index)
        return self._streams[index]

    def default_stream(self, index: int):
        return self._stream_class(stream_id=0, device_index=index)

    def set_stream(self, stream) -> None:
        self._streams[stream.device_index] = stream
        self.index = stream.device_index


def record_stream(tensor: torch.Tensor, stream) -> None:
    """``Tensor.record_stream``: nothing is freed early here, so there is nothing to hold back.

    Stands in for the method itself, whose C++ argument parser accepts no stream but torch's own.
    """
    if gpu_of(tensor) is None:
        raise RuntimeError(f"record_stream needs a tensor on a GPU, got one on {tensor.device}")
