"""Ranks' clocks by the model of :mod:`labkit.cost`, in place of this computer's: ``--times h100``.

An operator takes what :mod:`labkit.cost.operators` says; a collective what its bytes take on the links between its
members, one after the other in each group. What runs on another stream, or has not been waited for, goes beside: the
clock of a rank is that of its first stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from labkit.base.patches import Patch, Patches
from labkit.cost.hardware import Accelerator, collective_seconds, copy_seconds
from labkit.cost.operators import operator_seconds
from labkit.trace import emitting
from simgpu.features.hollow import Seen
from simgpu.state.gpu import Gpu
from simgpu.state.in_use import machine_in_use
from simgpu.state.streams import Event, Stream

from ..group.slot import Slot
from ..group.works import SlotWork
from ..rank import clock
from ..rank.clock import Timed
from ..rank.rank import Rank, rank_here, timed_here

_Part = Callable[[Any], Any]


class Times:
    """The modelled clock of one rank's thread, which :func:`..rank.clock.own_time` gives there.

    computed   seconds of operators on the first stream, ``operations`` how many they did.
    waiting    seconds in which others had not come, ``exposed`` those in which bytes were on their way.
    """

    def __init__(self, gpu: Accelerator) -> None:
        self.gpu, self.process = gpu, os.getpid()
        self.computed = self.operations = self.waiting = self.exposed = 0.0
        self.busy: dict[int, float] = {}  # other streams, and till when they are, by the rank's clock
        self.owed = 0.0  # till when bytes are on their way that the end of backward waits for

    def now(self) -> float:
        return self.computed

    def parts(self) -> dict[str, float]:
        return {"compute": self.computed, "data": self.exposed, "waiting": self.waiting}

    def saw(self, func: Any, args: Any, kwargs: Any, results: Any, gpu: Gpu) -> None:
        """An operator ran on ``gpu``."""
        rank = rank_here()
        if rank is None:
            return
        if self.owed and torch._C._current_graph_task_id() == -1:
            self.pay(rank)
        flops, seconds = operator_seconds(func, args, kwargs, results, self.gpu)
        self.operations += flops
        stream = _side(gpu)
        if stream is None:
            self.computed += seconds
        else:
            self.busy[stream] = max(self.busy.get(stream, 0.0), rank.clock()) + seconds

    def pay(self, rank: Timed) -> None:
        before, self.owed, until = rank.clock(), 0.0, self.owed
        rank.wait_until(until)
        self.exposed += rank.clock() - before


def _side(gpu: Gpu) -> int | None:
    """The stream that this thread has chosen on ``gpu``, unless it is the first."""
    machine = machine_in_use()
    stream = 0 if machine is None else machine.current.stream(gpu.index).stream_id
    return stream or None


def _times() -> Times | None:
    """The modelled clock of this thread's rank; None if it has none."""
    found = getattr(clock.here, "time", None)
    return found if isinstance(found, Times) else None


def times_here() -> Times:
    """The same, of a rank while :func:`modelled` is in."""
    found = _times()
    assert found is not None
    return found


def _members(work: Slot) -> tuple[str, float, tuple[int, ...]]:
    call = next(iter(work.calls.values()))
    every = call.outputs if call.kind.startswith("all_gather") else call.inputs or call.outputs
    nbytes = sum(one.numel() * one.element_size() for one in every)
    return call.kind, nbytes, work.pair or call.ranks


@contextmanager
def modelled(gpu: Accelerator, begins: float | None = None) -> Iterator[None]:
    """While ranks run, their clocks, collectives and streams go by the times that the model says.

    What this computer takes for it counts nothing, nor does a rank's waiting for pipes, files and children.

    begins   what the clocks show at first; by default that of the first rank that runs.
    """
    free: dict[Any, float] = {}
    of: dict[Timed, Times] = {}  # all threads of a rank have one
    first = [] if begins is None else [begins]
    finish, wait, future = Slot.finish, SlotWork.wait, SlotWork.get_future
    until, record, waits = Timed.wait_until, Event.record, Event.wait
    away, begin_turn, measured = Rank._away, Timed.begin_turn, emitting.lasted

    def finished(slot: Slot, write: Any) -> None:
        kind, nbytes, ranks = _members(slot)
        group = next(iter(slot.calls.values())).group
        finish(slot, write)
        each = max(1, len(machine.gpus)) if (machine := machine_in_use()) is not None else 8
        span = max(ranks) - min(ranks) + 1
        if min(ranks) // each != max(ranks) // each:
            span = max(span, gpu.links.machine_size + 1)
        way = group, slot.pair  # messages between other ranks take other links
        begins = max(slot.met, free.get(way, 0.0))
        slot.finished = free[way] = begins + collective_seconds(kind, nbytes, len(ranks), span, gpu.links)

    def waited(work: SlotWork, timeout: Any = None) -> bool:
        times, rank = _times(), work.rank
        began = rank.clock() if rank is not None else 0.0
        result = wait(work, timeout)
        if times is not None and rank is not None:
            passed, late = rank.clock() - began, max(0.0, work.slot.met - began)
            times.waiting += min(passed, late)
            times.exposed += max(0.0, passed - late)
        return result

    def of_future(work: SlotWork) -> Any:
        times = _times()
        if times is None:
            return future(work)
        times.busy[-1] = 0.0  # the clock stands while C++ takes the Work
        found = future(work)
        del times.busy[-1]
        times.owed = max(times.owed, work.slot.finished)
        return found

    def wait_until(rank: Timed, time: float) -> None:
        times = _times()
        stream = None if times is None or rank is not timed_here() or rank.gpu is None else _side(rank.gpu)
        if times is not None and -1 in times.busy:
            return
        if times is None or stream is None:
            until(rank, time)
        else:
            times.busy[stream] = max(times.busy.get(stream, 0.0), time)

    def recorded(event: Event, stream: Stream | None = None) -> None:
        record(event, stream)
        times, rank = _times(), timed_here()
        if times is not None and rank is not None and event._gpu is not None:
            at = _side(event._gpu) if stream is None else stream.stream_id
            event.__dict__["until"] = max(rank.clock(), times.busy.get(at or 0, 0.0)) if at else rank.clock()

    def waits_for(event: Event, stream: Stream | None = None) -> None:
        waits(event, stream)
        times, rank, time = _times(), timed_here(), event.__dict__.get("until")
        if times is None or rank is None or time is None or event._gpu is None:
            return
        at = _side(event._gpu) if stream is None else stream.stream_id
        if at:
            times.busy[at] = max(times.busy.get(at, 0.0), time)
        else:
            before = rank.clock()
            until(rank, time)
            times.exposed += rank.clock() - before

    def lasted(
        started: float, phase: str, device: str, source: str | None = None, nbytes: int = 0, **facts: Any
    ) -> tuple[float, float]:
        times = _times()
        if times is None:
            return measured(started, phase, device, source=source, nbytes=nbytes, **facts)
        seconds = copy_seconds(nbytes, device, source, gpu.links)
        times.computed += seconds
        return started, seconds

    def begun(rank: Timed) -> None:
        new = rank not in of
        clock.here.time = of.setdefault(rank, Times(gpu))
        begin_turn(rank)
        if new:
            first.append(rank.clock())
            rank.set_clock(first[0])

    def stood(rank: Rank, wait: Callable[[], Any]) -> Any:
        before = rank.clock()
        result = away(rank, wait)
        rank.set_clock(before)
        return result

    table = [
        Patch(Slot, "finish", finished), Patch(SlotWork, "wait", waited), Patch(SlotWork, "get_future", of_future),
        Patch(Timed, "wait_until", wait_until), Patch(Event, "record", recorded), Patch(Event, "wait", waits_for),
        Patch(Timed, "begin_turn", begun), Patch(Rank, "_away", stood),
        Patch(emitting, "lasted", lasted),
    ]  # fmt: skip
    with Patches(lambda: table):
        try:
            yield
        finally:
            for times in of.values():
                times.process = -1  # a thread that goes on takes a clock of its own


@contextmanager
def timed(gpu: Accelerator | None, begins: float | None = None) -> Iterator[Callable[[_Part], _Part]]:
    """While ranks run by ``gpu``'s times (None: by their own): gives what makes a rank's function run so."""
    if gpu is None:
        yield lambda function: function
        return

    def with_times(function: _Part) -> _Part:
        def part(rank: Any) -> Any:
            with Seen(times_here().saw):
                return function(rank)

        return part

    with modelled(gpu, begins):
        yield with_times
