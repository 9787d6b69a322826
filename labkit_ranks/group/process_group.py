"""The process group of simulated ranks, in place of ProcessGroupNCCL and ProcessGroupGloo.

The group turns arguments into a ``CollectiveCall`` (:mod:`..calls.call`). :mod:`..calls.checks` refuses what NCCL or
gloo refuses. A transport (:mod:`.slot`) matches the call with those of the other members, and
:mod:`..calls.semantics` computes their results.

C++ (DDP's Reducer, functional collectives) calls the methods by their C++ names, through pybind's trampolines
(torch/csrc/distributed/c10d/PyProcessGroup.hpp); Python calls the same methods. Each returns a Work to wait for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import ProcessGroup

from labkit.trace import emitting as trace
from simgpu import Gpu

from ..calls import checks, faults
from ..calls.call import CollectiveCall
from ..rank.enqueued_calls import wait_on_host
from ..rank.memory_samples import sample_memory
from ..rank.rank import current_rank, current_thread_rank
from .arguments import facts_of_options, flatten_tensors, make_options, set_device, to_list
from .dispatch_modes import dispatch_call, needs_dispatch
from .slot import Transport
from .works import SlotWork, Works

# torch.distributed passes on what users gave; a call from any other file comes from C++.
_PYTHON = "distributed_c10d.py"


# Typed as Any: torch declares more signatures than PyTorch calls.
_Base: Any = ProcessGroup


class SimulatedProcessGroup(_Base):  # type: ignore[misc]
    """A process group of ``size`` ranks whose tensors are on simulated GPUs, or on the host.

    backends   the backend of each device type: {"cuda": "nccl"}, {"cpu": "gloo", "cuda": "nccl"}.
    """

    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        backends: dict[str, str],
        ranks: Sequence[int],
        timeout: timedelta | float,
    ) -> None:
        here = current_thread_rank()
        checks.check_rank_and_size(rank, size, None if here is None else here.size)
        super().__init__(rank, size)
        if not isinstance(timeout, timedelta):  # C++ takes seconds too
            timeout = timedelta(seconds=timeout)
        self.store, self.backends, self.timeout = store, backends, timeout
        self._rank, self._size = rank, size
        self.ranks = tuple(ranks) or tuple(range(size))
        self.options = SimpleNamespace(_timeout=timeout, global_ranks_in_group=list(ranks), group_name="")
        self._name, self._desc = "", "undefined"
        # The GPU of tensors that C++ makes: the model's (see .group_patches), or the current one if None.
        self.home: Gpu | None = None
        self.first_device = ""  # the GPU of the first tensor
        self._transport: Any = None
        self._splits = 0
        self.latest = 0  # the number of its latest collective
        # The numbers of the messages of each pair of members.
        self.pairs: dict[tuple[int, int], int] = {}
        self._coalesced: list[Any] | None = None
        self.destroyed = False
        # Read once (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, the constructor).
        self._blocking_wait = os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") != "0"

    # Attributes and small answers.

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return next(iter(reversed(self.backends.values())))

    _get_backend_name = name

    def getBackendName(self) -> str:
        """Return the name for C++. DDP's logger (logger.cpp) casts a group called gloo to a class of its own."""
        return "simulated gloo" if self.name() == "gloo" else self.name()

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name
        # Not at the first call: all members are making the group now, but some may never make a call. And all must
        # count the groups of one name in the order of creation.
        self.transport()

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.backends]

    def _get_backend(self, device: torch.device | str) -> SimulatedProcessGroup:
        kind = torch.device(device).type
        if kind not in self.backends:
            # torch/csrc/distributed/c10d/ProcessGroup.hpp, getBackend
            raise RuntimeError(f"Could not find the backend type for device type {kind}.")
        return self

    @property
    def uid(self) -> int:
        return 0

    def get_group_store(self) -> Any:
        return self.store

    def _get_sequence_number_for_group(self) -> int:
        return self.latest

    def _do_nothing(self, *args: object) -> None:
        """Do nothing: there are no connections, timings or counts of C++ to change."""

    _wait_for_pending_works = _set_sequence_number_for_group = _enable_collectives_timing = _do_nothing
    _group_start = _group_end = eager_connect_single_device = perform_nocolor_split = _do_nothing

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.timeout = self.options._timeout = timeout

    set_timeout = _add_ephemeral_timeout = _set_default_timeout

    @property
    def supports_splitting(self) -> bool:
        return "nccl" in self.backends.values()

    def comm_split_count(self) -> int:
        return self._splits

    def split_group(
        self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None,
        group_name: str | None = None, group_desc: str | None = None, device_types: Any = None,
    ) -> SimulatedProcessGroup | None:  # fmt: skip
        """Return a group of the members ``ranks``; None in the other members."""
        self._splits += 1
        if self.bound_device_id is not None:
            self._start_call("split_group").wait()
        if self._rank not in ranks:
            return None
        kinds = set(self.backends) if device_types is None else {device.type for device in device_types}
        child = SimulatedProcessGroup(
            self.store, ranks.index(self._rank), len(ranks),
            backends={kind: name for kind, name in self.backends.items() if kind in kinds},
            ranks=[self.ranks[rank] for rank in ranks], timeout=timeout or self.timeout,
        )  # fmt: skip
        if opts is not None:
            opts.global_ranks_in_group = list(child.ranks)
            child.options = opts
        child._set_group_name(group_name or f"{self._name}:split:{self._splits}")
        child._set_group_desc(group_desc or f"{self._desc}:split")
        return child

    def announce_new_group(self, name: str, ranks: Sequence[int], backends: Collection[str]) -> None:
        """Announce the creation of a group of ``ranks`` to all ranks of this default group.

        name   the number of the rank's call of ``new_group``, or a hash if only the members create the group.

        Raises :class:`..calls.faults.Mismatch` if another rank's group of this number has other members.
        """
        call = CollectiveCall("new_group", members=tuple(ranks))
        if numbered := name.isdecimal():
            call.group, call.at, call.rank, call.seq = (
                self._name,
                self._rank,
                self.ranks[self._rank],
                int(name),
            )
            call.locate()
            wrong = faults.mismatch_error(self.transport().announce(call))
            if wrong is not None:
                raise wrong
        # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, performNocolorSplit and initNCCLComm: ncclCommSplit.
        if self.bound_device_id is not None and "nccl" in backends and self.supports_splitting:
            self._start_call("new_group", members=call.members, own_group=not numbered).wait()

    def shutdown(self) -> None:
        if self._transport is not None and not self.destroyed:
            wait_on_host(current_rank(), self._transport.flush)
        self.destroyed = True

    def abort(self) -> None:
        self.destroyed = True

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts, tensors = make_options(c10d.AllreduceOptions, opts, *more, **named), to_list(tensors)
        return self._start_call("all_reduce", tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, c10d.AllreduceCoalescedOptions() if opts is None else opts)

    def broadcast(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts, tensors = make_options(c10d.BroadcastOptions, opts, *more, **named), to_list(tensors)
        sent = tensors if opts.rootRank == self._rank else []
        return self._start_call("broadcast", sent, tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts, tensors = make_options(c10d.ReduceOptions, opts, *more, **named), to_list(tensors)
        return self._start_call("reduce", tensors, tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._start_call("all_gather", to_list(inputs), flatten_tensors(to_list(outputs)), opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if any(self.backends.get(tensor.device.type) == "nccl" for tensor in inputs):
            raise NotImplementedError("ProcessGroupNCCL does not support allgather_coalesced")
        # A list for each rank, of a tensor for each input.
        of_each = [[[row[k] for row in outputs]] for k in range(len(inputs))]
        return Works([self.allgather(out, [own], opts) for out, own in zip(of_each, inputs, strict=True)])

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._start_call("all_gather_single", inputs, outputs, opts)

    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts = make_options(c10d.GatherOptions, opts, *more, **named)
        gathered = flatten_tensors(outputs) if outputs else []
        return self._start_call("gather", to_list(inputs), gathered, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts = make_options(c10d.ScatterOptions, opts, *more, **named)
        pieces = flatten_tensors(inputs) if inputs else []
        return self._start_call("scatter", pieces, to_list(outputs), opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        opts = make_options(c10d.ReduceScatterOptions, opts, *more, **named)
        pieces, into = flatten_tensors(inputs), to_list(outputs)
        return self._start_call("reduce_scatter", pieces, into, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = c10d.ReduceScatterOptions() if opts is None else opts
        return self._start_call("reduce_scatter_single", inputs, outputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._start_call("all_to_all", to_list(inputs), to_list(outputs), opts)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, out_sizes: Any = None, in_sizes: Any = None, opts: Any = None
    ) -> Any:
        splits = list(in_sizes or ()) or None, list(out_sizes or ()) or None
        return self._start_call("all_to_all_single", [tensor], [output], opts, splits=splits)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Any:
        return self._start_call("barrier", opts=opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.barrier().wait()

    # Messages.

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        return self._start_call("send", to_list(tensors), root=to, tag=tag)

    def recv(self, tensors: Any, source: int | None, tag: int = 0) -> Any:
        return self._start_call("recv", outputs=to_list(tensors), root=source, tag=tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    def _start_coalescing(self, device: object) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: object) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return Works(works)

    # Making a call.

    def _start_call(
        self, kind: str, inputs: Any = (), outputs: Any = (), opts: Any = None, **facts: Any
    ) -> Any:
        """Make a call of the current rank, and return its Work."""
        call = CollectiveCall(kind, inputs, outputs, **facts_of_options(opts), **facts)
        call.group, call.desc, call.at = self._name, self._desc, self._rank
        call.ranks = self.transport().ranks
        call.rank = call.ranks[call.at]
        caller: Any = sys._getframe(1)
        while caller.f_code.co_filename == __file__:
            caller = caller.f_back
        call.from_cpp = not caller.f_code.co_filename.endswith(_PYTHON)
        call.locate()
        if needs_dispatch(call):
            return dispatch_call(self, call, lambda brought: self._make_work(brought, brought.outputs, opts))
        return self._make_work(call, list(call.inputs if call.kind == "send" else call.outputs), opts)

    def _make_work(self, call: CollectiveCall, results: list[Any], opts: Any) -> Any:
        """Submit a call with plain tensors, and return its Work."""
        rank = current_rank()
        call.watched = trace.recording is not None
        call.backward = torch._C._current_graph_task_id() != -1
        for brought in (call.inputs, call.outputs):
            for at, tensor in enumerate(brought):
                if type(tensor) is not Tensor and (wait := getattr(tensor, "trigger_wait", None)):
                    brought[at] = wait()  # the pending result of a functional collective
        with torch._C.DisableTorchFunction():
            set_device(self, call, opts)
            call.backend = self.backends.get(call.device.partition(":")[0], "")
            checks.check_call(call, self)
        if call.is_message:
            pair = (call.at, call.root or 0) if call.kind == "send" else (call.root or 0, call.at)
            call.seq = self.pairs[pair] = self.pairs.get(pair, 0) + 1
            if self._coalesced is not None or any(c.co_name == "batch_isend_irecv" for c in call.codes):
                call.memo["batch"] = True
        else:
            self.latest += 1
            call.seq = self.latest
        if rank is not None:
            call.arrived, call.node = rank.clock(), rank.node
            rank.record_call(call)
            if call.watched:
                sample_memory(rank, call.kind, call.device if call.inputs or call.outputs else "")
        call.timeout = call.timeout or self.timeout
        if self._blocking_wait:
            call.memo["timed"] = True
        slot = self.transport().submit(call)
        if slot.error is not None:  # raise now: the Work may never be waited for
            raise slot.error
        work = SlotWork(call, slot, results, rank)
        if not (call.is_connected or "batch" in call.memo):
            work.connect()
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def transport(self) -> Any:
        """Return the transport: between threads if this thread is a rank, else between processes."""
        if self._transport is None:
            rank = current_thread_rank()
            if rank is not None:
                self._transport = rank.world.transports.join(self, rank)
            else:
                assert make_process_transport is not None
                self._transport = make_process_transport(self)
        return self._transport

    def __repr__(self) -> str:
        return f"<{self.name()} group {self._name} of {self._size}: rank {self._rank}>"


# Set by .group_patches: makes the transport between processes.
make_process_transport: Callable[[SimulatedProcessGroup], Transport] | None = None
