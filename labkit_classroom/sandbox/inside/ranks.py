"""Run the ranks of an answer, each in its own process, and relay their collectives through the driver's process.

The driver's process runs no student's code. It opens :func:`labkit.ranks` with a thread for each rank: every call on
torch.distributed travels from the rank's process through a socket to its thread, which makes the call. So an answer
can reach neither the trace nor the group nor other ranks' inputs, and ranks share nothing but their calls.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, init_process_group  # type: ignore[attr-defined]  # not in its stubs

import labkit
from labkit.base.language import say
from labkit.turns import here
from labkit_ranks.calls import semantics
from labkit_ranks.calls.call import CollectiveCall
from labkit_ranks.group import process_group
from labkit_ranks.group.slot import PlainTensors, Slot
from labkit_ranks.processes import process_patches
from labkit_ranks.processes.call_packing import RemoteCode
from labkit_ranks.rank.rank import current_thread_rank
from labkit_ranks.rank.visible_gpus import gpus_of_environment
from simgpu import machine_in_use
from simgpu.children.environment import parse_description

from . import frames

# To import before ranks are forked, for messages alone; and for optimizers and wrappers, too. torch._dynamo writes a
# file when it is first imported, and a rank may write none.
FOR_MESSAGES = "labkit_ranks.threads.world", __name__
MODULES = (*FOR_MESSAGES, "torch._dynamo", "torch.distributed.fsdp")
GPUS = 8  # of the machine that all workers share
# The fields of a call, besides its tensors and its line in the source.
_FACTS = ("kind", "op", "factor", "root", "splits", "tag", "group")
Work = Callable[..., Any]  # work(student, **share), which returns plain data


def run(
    student: Any,
    work: Work,
    shares: Sequence[dict[str, Any]],
    *,
    gpus: int | None = None,
    joins: bool = True,
    notice: Callable[[int, Any, set[int]], Any] = lambda rank, told, waiting: None,
    threads: bool = False,
    isolated: bool = True,
) -> dict[str, Any]:
    """Call ``work(student, **share)`` on one rank for each of ``shares``; return results, calls and sent bytes.

    gpus      GPUs of one machine, if there are several machines.
    joins     let the ranks join a group before ``work`` begins.
    notice    called in this process when a rank calls :func:`tell_judge`: with the rank's number, what it told, and the
              numbers of the ranks that wait for a call or for ``notice``.
    threads   let ranks be threads of this process where no fork server starts them, as in a student's notebook.
    isolated  forbid the ranks to write files and open sockets, by which they could reach one another.
    """
    size, results, stuck, waiting = len(shares), list[Any](), list[str](), set[int]()
    torch.manual_seed(0)
    with ExitStack() as stack:
        links, server = [], getattr(student, "rank_server", None)
        if server:
            stack.callback(server.end_ranks)
        if server or not threads:
            same = {"size": size, "gpus": gpus or size, "joins": joins, "isolated": isolated}
            orders = [{"rank": rank, "share": share, **same} for rank, share in enumerate(shares)]
            links = [stack.enter_context(_start_rank(student, server, work, order)) for order in orders]
        ranks = stack.enter_context(labkit.ranks(size, nodes=size // (gpus or size)))

        def on_rank() -> Any:
            rank = dist.get_rank()
            return (
                _relay_calls(links[rank], rank, notice, waiting) if links else work(student, **shares[rank])
            )

        try:
            results = list(ranks.run(on_rank))
        except RuntimeError as error:
            if not threads or not hasattr(error, "report"):  # a deadlock, which labkit has reported
                raise
            stuck = [line.strip() for line in str(error).splitlines() if line.startswith("  rank")]
        events = [event for event in ranks.trace if event.phase in ("collective", "stuck")]
    sends = [event for event in events if event.name == "send" and event.nbytes]
    return {
        "results": results,
        "stuck": stuck,
        "called": sorted({event.name for event in events}),
        "calls": [(event.name, event.nbytes) for event in events if event.rank == 0],
        "sent": [sum(event.nbytes for event in sends if event.rank == rank) for rank in range(size)],
        "messages": [sum(event.rank == rank for event in sends) for rank in range(size)],
        "to": sorted({event.ranks for event in sends}),
    }


class Link:
    """A socket that carries frames between a rank's process and the driver's."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._stream = end, end.makefile("rwb")

    def send(self, value: object) -> None:
        self._stream.write(frames.pack(value))
        self._stream.flush()

    def receive(self) -> Any:
        return frames.read(self._stream)  # type: ignore[arg-type]  # a stream of both directions

    def ask(self, **question: Any) -> Any:
        self.send(question)
        return self.receive()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the socket, which ends the rank's process."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._socket.close()


# -- in the driver's process


def _start_rank(student: Any, server: RankServer | None, work: Work, order: dict[str, Any]) -> Link:
    here_end, there_end = socket.socketpair()
    link = Link(here_end)
    if server:
        server.start_rank(there_end.fileno(), order["gpus"])
        link.send({**order, **student.order(work)})
    elif os.fork() == 0:
        here_end.close()
        torch.set_num_threads(1)
        labkit.simulate(gpus=order["gpus"])  # a new one: CUDA does not survive a fork
        process_patches.inherit()
        _run_rank(Link(there_end), order, lambda: (student, work))
    there_end.close()
    return link


def _relay_calls(
    link: Link, rank: int, notice: Callable[[int, Any, set[int]], Any], waiting: set[int]
) -> Any:
    """Make the calls of the rank's process in this thread; return the result of its work."""
    default: Any = dist.distributed_c10d._get_default_group()
    known, works = {default._name: default}, list[Any]()
    task: Any = here.task
    while True:
        try:
            asked = task.run_outside(link.receive)
        except (EOFError, OSError):
            raise RuntimeError(say(en=f"rank {rank} has ended", zh=f"rank {rank} 已经结束")) from None
        do, reply = asked.pop("do"), dict[str, Any]()
        if do == "done":
            if asked["error"]:
                raise type(str(asked["error"]["kind"]), (Exception,), {})(asked["error"]["message"])
            return asked["value"]
        if do in ("wait", "notice"):
            waiting.add(rank)
        if do == "call":
            works.append(_make_call(known[asked["group"]], asked))
        elif do == "new_group":
            known[asked["name"]] = dist.new_group(list(asked["ranks"]))
        elif do == "notice":
            reply["value"] = notice(rank, asked["told"], waiting)
        elif do == "test":
            reply["done"] = works[asked["number"]].is_completed()
        elif do == "wait":
            work = works[asked["number"]]
            if work.call.kind == "send":
                work.wait()
            else:
                work.wait_on_host()
                reply["values"] = [tensor.cpu() for tensor in work.results]
                reply["source"] = work.slot.calls[0].at if work.slot.pair else 0
                work.wait()
        waiting.discard(rank)
        link.send(reply)


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for ``condition`` while other ranks' calls go on. For a ``notice`` that delays its rank."""
    end, task = time.monotonic() + seconds, here.task
    while not condition() and time.monotonic() < end:
        task.run_outside(partial(time.sleep, 0.01))  # type: ignore[union-attr]  # a rank's thread has a task


def _make_call(group: Any, asked: dict[str, Any]) -> Any:
    inputs = [tensor.cuda() for tensor in asked["inputs"]]
    outputs = inputs
    if asked["outputs"] is not None:
        outputs = [torch.empty(shape, dtype=_dtype(name)).cuda() for shape, name in asked["outputs"]]
    call = CollectiveCall(inputs=inputs, outputs=outputs, **{name: asked[name] for name in _FACTS})
    call.desc, call.at = group._desc, group._rank
    call.rank, call.ranks = current_thread_rank().number, group.transport().ranks  # type: ignore[union-attr]  # a rank's thread
    call.code, *call.codes = (RemoteCode(*words) for words in asked["codes"])  # type: ignore[assignment]
    call.line = asked["line"]
    return group._make_work(call, list(call.inputs if call.kind == "send" else call.outputs), None)


def _dtype(name: str) -> torch.dtype:
    if name not in frames.DTYPES:
        raise frames.Garbled(name)
    found: torch.dtype = getattr(torch, name)
    return found


class RankServer:
    """A process that forks the ranks of an answer, one for each socket that it gets. It never holds a driver's data.

    load           returns the student's answers and the work to do with them, in a rank's process.
    is_sandboxed   whether there are no other processes than this one, its parent, and those that ranks start.
    """

    def __init__(self, load: Callable[[Mapping[str, Any]], tuple[Any, Work]], is_sandboxed: bool) -> None:
        self._control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                self._control.close()
                _serve_ranks(there, load, is_sandboxed)
            finally:
                os._exit(0)
        there.close()

    def start_rank(self, fd: int, gpus: int) -> None:
        """Start a rank's process on a machine of ``gpus`` at the other end of the socket ``fd``."""
        socket.send_fds(self._control, [b"%d" % gpus], [fd])

    def end_ranks(self) -> None:
        """End all ranks, and the processes that they have started."""
        with suppress(OSError):  # a rank may have ended the server
            self._control.send(b"end")
            self._control.recv(1)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def open_machine() -> Any:
    """Return the machine that this process has from its parent, or else open one, which takes long in each rank."""
    if (machine := machine_in_use()) is None:
        torch.set_num_threads(1)
        torch.manual_seed(0)  # of all GPUs, too
        machine = labkit.simulate(gpus=GPUS)
    return machine


def _show_gpus(count: int) -> None:
    """Let this process and its future children see ``count`` GPUs."""
    machine = open_machine()
    process_patches.inherit()
    machine.description = replace(parse_description(machine.description), gpus=count).text()
    gpus_of_environment(machine).show(machine)


def _serve_ranks(
    control: socket.socket, load: Callable[[Mapping[str, Any]], tuple[Any, Work]], is_sandboxed: bool
) -> None:
    """Fork a rank for each socket that arrives at ``control``, and end all at a word without one."""
    ranks, shown = list[int](), 0
    while True:
        told, fds, _, _ = socket.recv_fds(control, 8, 1)
        if not told:
            return
        if fds:
            if shown != (shown := int(told)):
                _show_gpus(shown)
                gc.freeze()  # a collection in a rank would copy the memory pages of all objects
            if (rank := os.fork()) == 0:
                control.close()
                os.dup2(fds[0], 3)
                os.closerange(4, 4096)
                link = Link(socket.socket(fileno=3))
                order = link.receive()
                _run_rank(link, order, partial(load, order))
            ranks.append(rank)
            os.close(fds[0])
            continue
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        if is_sandboxed:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all but this process and the first one of the sandbox
        for rank in ranks:
            os.waitpid(rank, 0)
        ranks.clear()
        control.send(b".")


# -- in a rank's process

_link: Link | None = None


def tell_judge(told: Any = None) -> Any:
    """Tell the driver's process; return the value of ``notice``, an argument of :func:`run`."""
    assert _link is not None
    return _link.ask(do="notice", told=told)["value"]


def join_group(rank: int, size: int) -> None:
    """Join the default group as this rank, for tensors on the host and on simulated GPUs."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=3))  # waiting is useless: no other rank writes into this store
    init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=size)


def _run_rank(link: Link, order: Mapping[str, Any], load: Callable[[], tuple[Any, Work]]) -> None:
    """Run one rank and end the process. ``load`` returns the student's answers and the work to do with them."""
    global _link
    value, error = None, None
    try:
        _link = link
        rank, gpus = order["rank"], order["gpus"]
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(order["size"]), LOCAL_RANK=str(rank % gpus), LOCAL_WORLD_SIZE=str(gpus),
            GROUP_RANK=str(rank // gpus), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511",
        )  # fmt: skip
        process_group.make_process_transport = lambda group: _RelayTransport(link, group)
        if order["joins"]:
            torch.cuda.set_device(rank % gpus)
            join_group(rank, order["size"])
        student, work = load()
        value = work(student, **order["share"])
        frames.pack(value)
    except BaseException as raised:
        value, error = None, {"kind": type(raised).__name__, "message": str(raised)[:2000]}
    with suppress(OSError):
        link.send({"do": "done", "value": value, "error": error})
    sys.stdout.flush()
    os._exit(0)


class _RelayTransport:
    """A transport (see :mod:`labkit_ranks.group.slot`) that sends each call to the driver's process."""

    def __init__(self, link: Link, group: Any) -> None:
        self._link, self._made, self.ranks = link, 0, group.ranks

    def submit(self, call: CollectiveCall) -> Slot:
        codes = [
            (code.co_filename, code.co_name, code.co_qualname) for code in (call.code, *call.codes) if code
        ]
        outputs = None
        if call.outputs is not call.inputs:
            outputs = [(tuple(out.shape), str(out.dtype).removeprefix("torch.")) for out in call.outputs]
        facts = {name: getattr(call, name) for name in _FACTS}
        with PlainTensors():
            self._link.ask(
                do="call", inputs=call.inputs, outputs=outputs, codes=codes, line=call.line, **facts
            )
        slot = _RelayedSlot(self._link, call, _numbers.setdefault("next", 0))
        _numbers["next"] += 1
        return slot

    def flush(self) -> None:
        """Do nothing: no completed call is pending."""

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        self._link.ask(do="new_group", name=str(call.seq), ranks=list(call.members))
        return [call]


_numbers: dict[str, int] = {}  # "next": the number of this process's next call


class _RelayedSlot(Slot):
    def __init__(self, link: Link, call: CollectiveCall, number: int) -> None:
        super().__init__(1)
        self._link, self._call, self._number = link, call, number

    def is_completed(self) -> bool:
        if super().is_completed():
            return True
        if self._link.ask(do="test", number=self._number)["done"]:
            self._receive()
        else:
            time.sleep(0.001)  # leave the processor to other ranks while polling
        return super().is_completed()

    def wait_for_members(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
    ) -> bool:
        self._receive()
        return True

    def _receive(self) -> None:
        call, found = self._call, self._link.ask(do="wait", number=self._number)
        sender = CollectiveCall("send")
        sender.at = found.get("source", 0)
        self.calls = {0: sender, 1: call}
        pairs = list(zip(call.outputs, found.get("values", ()), strict=False))
        self.finish(lambda _: semantics.write_outputs(pairs))
