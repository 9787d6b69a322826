"""One rank's part in one collective: what it called, with what, where in the user's code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from os.path import basename
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from labkit.base.ours import is_our_module, is_torch_module

# Functions of torch that only pass a call on.
_BETWEEN = frozenset(
    "_call_impl _wrapped_call_impl wrapper decorate_context _fn __call__ inner wrapped __torch_function__".split()
)
# Those that are a collective themselves, under another name than its kind.
_PLAIN = frozenset(
    "all_gather_into_tensor reduce_scatter_tensor isend irecv batch_isend_irecv all_reduce_coalesced "
    "all_gather_coalesced".split()
)


def format_place(code: CodeType, line: int) -> str:
    """``"train.py:31 in step"``; at the top of a file, ``"train.py:31"``; in a notebook ``"Cell In[5]:31 in step"``."""
    name, function = basename(code.co_filename).strip("<>"), code.co_qualname
    # IPython's own tracebacks name the notebook's cell that a file stands for.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if number := shell and getattr(shell.compile, "_filename_map", {}).get(code.co_filename):
        name = f"Cell In[{number}]"
    return f"{name}:{line}" + ("" if function == "<module>" else f" in {function}")


@dataclass(slots=True, eq=False, repr=False)
class CollectiveCall:
    """One rank's part in a collective of a group.

    kind      "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
              "barrier", "send", "recv"; "all_gather_single", "reduce_scatter_single" and "all_to_all_single" where one
              tensor holds the pieces of all; "new_group", "split_group".
    inputs    tensors that are read, ``outputs`` those that are written (the same list, where all are both): of a
              coalesced call, several; of "all_gather", "gather", "scatter", "reduce_scatter" and "all_to_all", one for
              each member.
    op        the reduction, by name ("SUM"), and ``factor`` of PREMUL_SUM.
    root      the rank in the group that sends or receives all; the peer of a send or recv.
    members   of "new_group" the world's ranks that the new group is to have.
    splits    of "all_to_all_single": how many rows go to each member, and come from each; None for equal ones.
    group     the group's name, and ``desc`` what it is for ("default_pg", "mesh_dp").
    seq       its number among the rank's collectives of this group, from 1; of messages, among those of the pair.
    at, rank  the caller's rank in the group, and in the world; ``ranks`` are the world's ranks of all members.
    node      the caller's node.
    device    the GPU that the caller's tensors are on, "cuda:1"; "cpu".
    bus       the number of that GPU among its node's, which a process may see under another one.
    arrived   the rank's clock when it called, in seconds; ``timeout`` is for how long it waits for the others.
    backward  whether autograd called it, and ``async_op`` whether the caller means to go on meanwhile.
    code      the user's code that called it, in ``line``; ``codes`` what of torch stands between, innermost first.
    on_stuck  to be called when it is known that it will never be met.
    memo      what its members' outputs share while it is computed, and where it stands until it is done: a message
              ("slot", "line", "away", "held", "batch"); who has come to its "communicator", and who is to; whether its
              rank has gone on ("enqueued"), has computed since ("used"), waits on the host in any case ("timed"), was
              told that nobody comes ("told"); what its GPU does before it ("behind") and after it ("then").
    met       whether it is done: all that it wants have come, and its values are written.
    told      what an event says of its tensors, if they are gone and a recording was open: ``watched``.
    """

    kind: str
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    op: str = ""
    factor: Any = None
    root: int | None = None
    members: tuple[int, ...] = ()
    splits: tuple[list[int] | None, list[int] | None] | None = None
    tag: int = 0
    group: str = ""
    desc: str = ""
    backend: str = ""
    seq: int = 0
    at: int = 0
    rank: int = 0
    ranks: tuple[int, ...] = ()
    node: int = 0
    device: str = ""
    bus: int | None = None
    arrived: float = 0.0
    timeout: timedelta | None = None
    from_cpp: bool = False
    backward: bool = False
    async_op: bool = False
    watched: bool = False
    code: CodeType | None = None
    line: int = 0
    codes: list[CodeType] = field(default_factory=list)
    on_deadlock: Callable[[], object] | None = None
    memo: dict[Any, Any] = field(default_factory=dict)
    met: bool = False
    event_facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        alike = self.outputs is self.inputs
        self.inputs = list(self.inputs)
        self.outputs = self.inputs if alike else list(self.outputs)

    @property
    def place(self) -> str:
        """The line of the user's code that called it: ``"train.py:31 in step"``."""
        if self.code is None:
            return ""
        return f"{self.code.co_filename.strip('<>')}:{self.line} in {self.code.co_qualname}"

    @property
    def short_place(self) -> str:
        """The same without the folder."""
        return "" if self.code is None else format_place(self.code, self.line)

    @property
    def via(self) -> str:
        """The function of torch that the user's line called, ``"Tensor.backward"``; "" if that was the collective."""
        name = next((code.co_qualname for code in reversed(self.codes) if code.co_name not in _BETWEEN), "")
        return "" if name == self.kind or name in _PLAIN else name.replace(".<locals>", "")

    @property
    def is_message(self) -> bool:
        """Whether two ranks have part in it, and not all of the group."""
        return self.kind in ("send", "recv")

    @property
    def is_connected(self) -> bool:
        """Whether it has connected its members, or a call before it has: until then the host waits in the call itself.

        ProcessGroupNCCL.cpp, initNCCLComm, of a group or a pair; where that was there before (``device_id=``), NCCL's
        src/transport.cc, ncclTransportP2pSetup, waits in bootstrapRecv. pytorch#108378, #129341, #88103.
        """
        come, members = self.memo.get("communicator", ((), frozenset()))
        return bool(members <= frozenset(come))

    @property
    def waits_on_gpu(self) -> bool:
        """Whether the GPU alone waits for its members, while the host goes on (see ..rank.enqueued_calls)."""
        if self.backend != "nccl" or self.kind == "barrier" or self.makes_a_group or "timed" in self.memo:
            return False
        # torch/csrc/distributed/c10d/reducer.cpp reads shapes, bucket indices and the map of used parameters.
        counts = self.from_cpp and all(t.dtype == torch.int32 for t in self.inputs or self.outputs)
        shapes = any(code.co_name == "_verify_param_shape_across_processes" for code in self.codes)
        return self.is_connected and not counts and not shapes

    @property
    def place_of_gpu(self) -> tuple[int, int | str]:
        """The same of two calls whose tensors are on one GPU."""
        return self.node, self.device if self.bus is None else self.bus

    @property
    def makes_a_group(self) -> bool:
        """Whether it moves no tensors, and a group comes of it (NCCL: ncclCommSplit, which all of the parent call)."""
        return self.kind in ("new_group", "split_group")

    @property
    def pair(self) -> tuple[int, ...]:
        """Of a message the world's ranks of its sender and its receiver; () if anybody may have sent it."""
        if self.root is None:
            return ()
        there = self.ranks[self.root]
        return (self.rank, there) if self.kind == "send" else (there, self.rank)

    @property
    def matched_tag(self) -> int:
        """The tag by which a message finds its receiver: NCCL takes no notice of tags."""
        return self.tag if self.backend == "gloo" else 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors that it brings; where it only receives, of those that it gets."""
        return self._shapes(self.inputs or self.outputs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(str(t.dtype).removeprefix("torch.") for t in self.inputs or self.outputs)

    @property
    def nbytes(self) -> int:
        """The bytes that it brings; of a gather to all, and where it only receives, those that it gets."""
        of = self.outputs if self.kind.startswith("all_gather") or not self.inputs else self.inputs
        return sum(t.numel() * t.element_size() for t in of)

    @staticmethod
    def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(t.shape) for t in tensors)

    def facts(self) -> dict[str, Any]:
        """The facts about the tensors for an event."""
        return {"shapes": self.shapes, "outputs": self._shapes(self.outputs), "nbytes": self.nbytes}

    def release(self) -> None:
        """Let the tensors go: it is done."""
        if self.watched:
            self.event_facts = self.facts()
        self.inputs, self.outputs, self.met = [], [], True
        self.memo.clear()

    def locate(self) -> None:
        """Note the line of the user's code from which this thread came here."""
        frame = sys._getframe(1)
        last, codes = frame, self.codes
        while frame is not None:
            name = frame.f_globals.get("__name__")
            if is_torch_module(name):
                codes.append(frame.f_code)
            elif not is_our_module(name) and name != "contextlib":  # which runs torch's context managers
                last = frame
                break
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        self.code, self.line = last.f_code, last.f_lineno

    def __str__(self) -> str:
        """The call as the text says it that tells what a rank waits for."""
        return f"{self.kind} #{self.seq} of group {self.group} at {self.place}"
