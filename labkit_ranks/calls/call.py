"""A collective call of one rank: kind, tensors, and the line of the user's code."""

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

from labkit.base.ours import user_frame

# Functions of torch that wrap another call.
_BETWEEN = frozenset(
    "_call_impl _wrapped_call_impl wrapper decorate_context _fn __call__ inner wrapped __torch_function__".split()
)
# Functions of torch.distributed that are collectives, under a name other than the call's kind.
_PLAIN = frozenset(
    "all_gather_into_tensor reduce_scatter_tensor isend irecv batch_isend_irecv all_reduce_coalesced "
    "all_gather_coalesced".split()
)


def format_place(code: CodeType, line: int) -> str:
    """Format a place in code: ``"train.py:31 in step"``, or in a notebook ``"Cell In[5]:31 in step"``."""
    name, function = basename(code.co_filename).strip("<>"), code.co_qualname
    # IPython knows which cell of the notebook a file name means.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if number := shell and getattr(shell.compile, "_filename_map", {}).get(code.co_filename):
        name = f"Cell In[{number}]"
    return f"{name}:{line}" + ("" if function == "<module>" else f" in {function}")


@dataclass(slots=True, eq=False, repr=False)
class CollectiveCall:
    """A collective call or message of one rank.

    kind         "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
                 "all_to_all", "barrier", "send", "recv"; "all_gather_single", "reduce_scatter_single" and
                 "all_to_all_single" where one tensor holds the pieces of all members; "new_group", "split_group".
    inputs       tensors to read; ``outputs`` tensors to write (the same list if every tensor is both). Coalesced calls
                 have several; "all_gather", "gather", "scatter", "reduce_scatter" and "all_to_all" one per member.
    op           the name of the reduction ("SUM"), and ``factor`` the factor of PREMUL_SUM.
    root         the group rank that sends or receives everything; the peer of a send or recv.
    members      global ranks of the group to create (for "new_group"); ``own_group`` whether only members make it, so
                 that other ranks may make another group in the same call.
    splits       rows to send to each member, and to receive from each (for "all_to_all_single"); None for equal parts.
    group        the name of the group; ``desc`` its purpose ("default_pg", "mesh_dp").
    seq          the number of the call among the rank's collectives in this group, from 1; a message counts in its
                 pair.
    at, rank     group rank and global rank of the caller; ``ranks`` the global ranks of all members.
    device       the device of the caller's tensors ("cuda:1", "cpu"); ``bus`` the GPU's number on its ``node``.
    arrived      the rank's clock at the call, in seconds; ``timeout`` how long the rank waits for the others.
    backward     whether autograd made the call; ``async_op`` whether the caller goes on without waiting.
    code, line   the user's code that made the call; ``codes`` torch's code in between, innermost first.
    on_deadlock  function to call once nobody can complete the call any more.
    met          whether the call is completed and its values are written.
    watched      whether a recording was open; then ``event_facts`` keeps the facts of the tensors for the event.
    memo         shared intermediate results, and the state of a pending call: of a message "slot", "line", "away"
                 (sent), "held", "batch"; "communicator" (members that have connected, and all that must); whether the
                 rank has gone on ("enqueued"), computed since ("used"), waits on the host in any case ("timed"), or
                 has been told of the deadlock ("told"); what the GPU runs before the call ("behind") and after it
                 ("then").
    """

    kind: str
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    op: str = ""
    factor: Any = None
    root: int | None = None
    members: tuple[int, ...] = ()
    own_group: bool = False
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
    is_message: bool = False  # for two ranks, not all of the group
    # Whether the call creates a group and moves no tensors (NCCL: ncclCommSplit, which all of the parent call).
    makes_a_group: bool = False

    def __post_init__(self) -> None:
        alike = self.outputs is self.inputs
        self.inputs = list(self.inputs)
        self.outputs = self.inputs if alike else list(self.outputs)
        self.is_message = self.kind in ("send", "recv")
        self.makes_a_group = self.kind in ("new_group", "split_group")

    @classmethod
    def of_store(cls, function: str, keys: Sequence[str]) -> CollectiveCall:
        """Return a call that describes a wait for ``keys`` in a function of the store, such as ``get``."""
        call = cls(f"store.{function}", group=", ".join(map(repr, keys)))
        call.locate()
        return call

    @property
    def is_of_store(self) -> bool:
        return self.kind.startswith("store.")

    @property
    def place(self) -> str:
        """The user's line with the whole path: ``"/home/me/train.py:31 in step"``."""
        if self.code is None:
            return ""
        return f"{self.code.co_filename.strip('<>')}:{self.line} in {self.code.co_qualname}"

    @property
    def short_place(self) -> str:
        """The user's line without the folder: ``"train.py:31 in step"``."""
        return "" if self.code is None else format_place(self.code, self.line)

    @property
    def via(self) -> str:
        """The function of torch that the user's line called (``"Tensor.backward"``); "" if it called the collective."""
        name = self._called_function()
        return "" if name == self.kind or name in _PLAIN else name.replace(".<locals>", "")

    def _called_function(self) -> str:
        """Return the name of torch's function that the user's line called."""
        return next((code.co_qualname for code in reversed(self.codes) if code.co_name not in _BETWEEN), "")

    @property
    def name(self) -> str:
        """The kind, or for a message ``"isend"`` or ``"irecv"`` if the user's line called that."""
        called = self._called_function()
        return called if called in ("isend", "irecv") else self.kind

    @property
    def is_connected(self) -> bool:
        """Whether the members are connected. Until then the host waits in the call itself.

        ProcessGroupNCCL.cpp, initNCCLComm, for a group or a pair. If ``device_id=`` has made the communicator before,
        NCCL's src/transport.cc, ncclTransportP2pSetup, waits in bootstrapRecv. pytorch#108378, #129341, #88103.
        """
        come, members = self.memo.get("communicator", ((), frozenset()))
        return bool(members <= frozenset(come))

    @property
    def missing_first(self) -> int | None:
        """The first rank of the group or pair, whose key connects the others, if it has not come; else None."""
        come, members = self.memo.get("communicator", ((), frozenset()))
        first = min(members, default=None)
        return None if first is None or first in come else self.ranks[first]

    @property
    def waits_on_gpu(self) -> bool:
        """Whether only the GPU waits for the other members, while the host goes on (see ..rank.enqueued_calls)."""
        if self.backend != "nccl" or self.kind == "barrier" or self.makes_a_group or "timed" in self.memo:
            return False
        # torch/csrc/distributed/c10d/reducer.cpp reads shapes, bucket indices and the map of used parameters.
        counts = self.from_cpp and all(t.dtype == torch.int32 for t in self.inputs or self.outputs)
        shapes = any(code.co_name == "_verify_param_shape_across_processes" for code in self.codes)
        return self.is_connected and not counts and not shapes

    @property
    def place_of_gpu(self) -> tuple[int, int | str]:
        """A key of the GPU that holds the tensors, the same in all processes."""
        return self.node, self.device if self.bus is None else self.bus

    @property
    def pair(self) -> tuple[int, ...]:
        """Global ranks of a message's sender and receiver; () if any rank may be the sender."""
        if self.root is None:
            return ()
        there = self.ranks[self.root]
        return (self.rank, there) if self.kind == "send" else (there, self.rank)

    @property
    def matched_tag(self) -> int:
        """The tag that sender and receiver must share. NCCL ignores tags."""
        return self.tag if self.backend == "gloo" else 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs; of the outputs if there are none."""
        return self._shapes(self.inputs or self.outputs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(str(t.dtype).removeprefix("torch.") for t in self.inputs or self.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs; of the outputs for an all_gather, or if there are no inputs."""
        tensors = self.outputs if self.kind.startswith("all_gather") or not self.inputs else self.inputs
        return sum(t.numel() * t.element_size() for t in tensors)

    @staticmethod
    def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(t.shape) for t in tensors)

    def release(self) -> None:
        """Mark the call as completed and let its tensors go."""
        if self.watched:
            with torch._C.DisableTorchFunction():
                outputs = self._shapes(self.outputs)
                self.event_facts = {"shapes": self.shapes, "outputs": outputs, "nbytes": self.nbytes}
        self.inputs, self.outputs, self.met = [], [], True
        self.memo.clear()

    def locate(self) -> None:
        """Find the user's line that is running, and torch's code in between."""
        frame, self.codes = user_frame(sys._getframe(1))
        if frame is not None:
            self.code, self.line = frame.f_code, frame.f_lineno

    def __str__(self) -> str:
        return f"{self.kind} #{self.seq} of group {self.group} at {self.place}"
