"""Ranks' clocks by the cost model of :mod:`labkit.cost` instead of this computer's time: ``--times h100``.

Operators take the time given by :mod:`labkit.cost.operators`; collectives of a group follow each other on the links
between its members. Other streams and calls without a wait overlap: a rank's clock is the clock of its first stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from labkit.cost.hardware import Accelerator, collective_seconds, copy_seconds
from labkit.cost.operators import operator_seconds
from labkit.trace import emitting
from simgpu import Gpu, hooks, machine_in_use
from simgpu.features.tensors_without_data import WatchingMode
from simgpu.state.streams import Event, Stream

from ..rank.clock import RankClock, TimedRank, use_rank_clocks
from ..rank.rank import current_rank, current_thread_rank

_Part = Callable[[Any], Any]


class ModelClock(RankClock):
    """The modelled clock of a rank.

    free       group -> the time from which its links are free; shared by all ranks.
    computed   seconds of operators on the first stream; ``operations`` counts their flops.
    waiting    seconds of waiting for late ranks; ``exposed`` are seconds of communication that nothing overlaps.
    """

    def __init__(self, gpu: Accelerator, free: dict[Any, float]) -> None:
        self.gpu, self.free = gpu, free
        self.computed = self.operations = self.waiting = self.exposed = 0.0
        self.busy: dict[int, float] = {}  # other streams -> the end of their work, by the rank's clock
        self.owed = 0.0  # the end of the communication that backward's end waits for

    def make_thread_clock(self) -> ModelClock:
        return self  # threads of a rank share the clock

    def seconds_run(self) -> float:
        return self.computed

    def parts(self) -> dict[str, float]:
        return {"compute": self.computed, "data": self.exposed, "waiting": self.waiting}

    def saw(self, func: Any, args: Any, kwargs: Any, results: Any, gpu: Gpu) -> None:
        """Add the time of an operator on ``gpu``."""
        rank = current_thread_rank()
        if rank is None:
            return
        if self.owed and torch._C._current_graph_task_id() == -1:
            self.pay(rank)
        flops, seconds = operator_seconds(func, args, kwargs, results, self.gpu)
        self.operations += flops
        stream = _side_stream(gpu)
        if stream is None:
            self.computed += seconds
        else:
            self.busy[stream] = max(self.busy.get(stream, 0.0), rank.clock()) + seconds

    def wait_until(self, rank: TimedRank, time: float) -> None:
        stream = None if rank is not current_rank() or rank.gpu is None else _side_stream(rank.gpu)
        self.hold(rank, stream, time)

    def hold(self, rank: TimedRank, stream: int | None, time: float) -> None:
        """Let ``stream`` of ``rank`` continue at ``time``; for the first stream, move the rank's clock."""
        if stream:
            self.busy[stream] = max(self.busy.get(stream, 0.0), time)
        else:
            rank.advance_to(time)

    def return_at(self, rank: TimedRank, began: float, seconds: float) -> None:
        rank.set_clock(began)

    def finish(self, slot: Any, seconds: float) -> float:
        call = next(iter(slot.calls.values()))
        every = call.outputs if call.kind.startswith("all_gather") else call.inputs or call.outputs
        nbytes = sum(one.numel() * one.element_size() for one in every)
        ranks, links = slot.pair or call.ranks, self.gpu.links
        each = max(1, len(machine.gpus)) if (machine := machine_in_use()) is not None else 8
        span = max(ranks) - min(ranks) + 1
        if min(ranks) // each != max(ranks) // each:
            span = max(span, links.machine_size + 1)
        way = call.group, slot.pair  # messages of different pairs use different links
        begins = max(slot.met, self.free.get(way, 0.0))
        seconds = collective_seconds(call.kind, nbytes, len(ranks), span, links)
        self.free[way] = round(begins + seconds, 12)  # as exact as a clock
        return self.free[way]

    def receive(self, rank: TimedRank, slot: Any, began: float, *, by_cpp: bool) -> None:
        if by_cpp:
            self.owed = max(self.owed, slot.finished)
            return
        rank.wait_until(slot.finished)
        passed, late = rank.clock() - began, max(0.0, slot.met - began)
        self.waiting += min(passed, late)
        self.exposed += max(0.0, passed - late)

    def pay(self, rank: TimedRank) -> None:
        before, self.owed, until = rank.clock(), 0.0, self.owed
        rank.wait_until(until)
        self.exposed += rank.clock() - before


def _side_stream(gpu: Gpu) -> int | None:
    """Return this thread's current stream on ``gpu``; None for the first stream."""
    machine = machine_in_use()
    stream = 0 if machine is None else machine.current.stream(gpu.index).stream_id
    return stream or None


def model_clock_of(rank: TimedRank | None) -> ModelClock | None:
    """Return the modelled clock of ``rank``; None without a model."""
    return rank.time if rank is not None and isinstance(rank.time, ModelClock) else None


def _stream_of(event: Event, stream: Stream | None) -> int | None:
    assert event._gpu is not None
    return _side_stream(event._gpu) if stream is None else stream.stream_id


@hooks.event_recorded.add
def _record(event: Event, stream: Stream | None) -> None:
    rank = current_rank()
    if rank is not None and (times := model_clock_of(rank)) is not None:
        event.__dict__["until"] = max(rank.clock(), times.busy.get(_stream_of(event, stream) or 0, 0.0))


@hooks.event_awaited.add
def _await(event: Event, stream: Stream | None) -> None:
    rank, time = current_rank(), event.__dict__.get("until")
    if rank is not None and time is not None and (times := model_clock_of(rank)) is not None:
        before = rank.clock()
        times.hold(rank, _stream_of(event, stream), time)
        times.exposed += rank.clock() - before


class _CopyClock(emitting.EventClock):
    """The clock of trace events while a model is in use: copies take the time of their link."""

    def span_of_event(
        self,
        started: float,
        phase: str,
        device: str,
        source: str | None = None,
        nbytes: int = 0,
        **facts: Any,
    ) -> tuple[float, float]:
        rank = current_thread_rank()
        times = model_clock_of(rank)
        if rank is None or times is None or threading.get_ident() != rank.thread:
            return super().span_of_event(started, phase, device)
        seconds = copy_seconds(nbytes, device, source, times.gpu.links)
        times.computed += seconds
        return started, seconds


@contextmanager
def model_clocks(gpu: Accelerator, begins: float | None = None) -> Iterator[None]:
    """Time ranks, collectives and streams by the model of ``gpu`` instead of this computer's time.

    Waiting for pipes, files and child processes takes no time either.

    begins   the initial time of the clocks; by default the clock of the first rank that runs.
    """
    free: dict[Any, float] = {}
    of: dict[TimedRank, ModelClock] = {}  # shared by the threads of a rank
    first = [] if begins is None else [begins]

    def clock_of(rank: TimedRank) -> ModelClock:
        if rank not in of:
            of[rank] = ModelClock(gpu, free)
            first.append(rank.clock())
            rank.set_clock(first[0])
        return of[rank]

    before = emitting.time_by(_CopyClock())
    try:
        with use_rank_clocks(clock_of):
            yield
    finally:
        emitting.time_by(before)


@contextmanager
def run_by_times(gpu: Accelerator | None, begins: float | None = None) -> Iterator[Callable[[_Part], _Part]]:
    """Time ranks by ``gpu``; yield a decorator for their functions. For None, leave the ranks' own clocks."""
    if gpu is None:
        yield lambda function: function
        return

    def with_times(function: _Part) -> _Part:
        def part(rank: Any) -> Any:
            with WatchingMode(rank.time.saw):
                return function(rank)

        return part

    with model_clocks(gpu, begins):
        yield with_times
