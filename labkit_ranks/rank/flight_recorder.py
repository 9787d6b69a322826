"""Records a rank's last calls in PyTorch's Flight Recorder format, and writes them to a file when ranks hang.

As in PyTorch, ``TORCH_FR_BUFFER_SIZE`` or ``TORCH_NCCL_TRACE_BUFFER_SIZE`` says how many calls to keep. The format is
that of torch/csrc/distributed/c10d/FlightRecorder.hpp; ``torchfrtrace`` and ``labkit explain`` read it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from time import time_ns
from typing import Any

from labkit.base.language import say
from labkit.base.ours import is_our_module
from labkit.base.patches import Patch

from ..calls.call import CollectiveCall

VERSION = "2.10"
# ProcessGroupNCCL's names of calls that differ from labkit's.
NAMES = {
    "all_gather_single": "_all_gather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "barrier": "all_reduce_barrier",
}
DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}  # fmt: skip
_BEGAN = time_ns()  # zero of the ranks' clocks
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def _first_variable(names: Iterable[str], default: str) -> str:
    return next(filter(None, map(os.environ.get, names)), default)


def make_recorder(number: int) -> FlightRecorder | None:
    """Return a recorder for rank ``number`` if the environment asks for one; else None."""
    size = _first_variable(_SIZE, "0")
    if not size.isdigit() or int(size) == 0:
        return None
    return FlightRecorder(number, int(size), _first_variable(_FILE, "/tmp/nccl_trace_rank_"))


class FlightRecorder:
    """The last ``size`` calls of one rank.

    path   the name of the file without the rank's number at its end.
    """

    def __init__(self, number: int, size: int, path: str) -> None:
        self.number, self.path = number, path
        self._calls: deque[tuple[CollectiveCall, dict[str, Any]]] = deque(maxlen=size)
        self._count = 0
        self._groups: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._ids: dict[str, int] = {}

    def record_call(self, call: CollectiveCall, clock: float) -> None:
        """Record ``call``, which the rank makes at ``clock``."""
        if call.makes_a_group:
            return
        self._groups[call.group] = call.desc, call.ranks
        message, name = call.is_message, NAMES.get(call.kind, call.kind)
        if message:
            peer = call.at if call.root is None else call.root  # a receive from any rank
            name += f" {call.at}{'->' if call.kind == 'send' else '<-'}{peer}"
        brought, got = call.inputs or call.outputs, call.outputs or call.inputs
        last = self._calls[-1][1] if self._calls else {}
        entry = {
            "frames": list(_frames()),
            "record_id": self._count,
            "pg_id": self._ids.setdefault(call.group, len(self._ids)),
            "process_group": (call.group, call.desc),
            "thread_name": threading.current_thread().name,
            "thread_id": str(threading.get_ident()),
            "collective_seq_id": last.get("collective_seq_id", 0) if message else call.seq,
            "p2p_seq_id": call.seq if message else 0,
            "op_id": self._count + 1,
            "profiling_name": f"{call.backend or 'nccl'}:{name}",
            "time_created_ns": _BEGAN + round(clock * 1e9),
            "input_sizes": _nccl_sizes(brought, call),
            "input_dtypes": _dtypes(brought),
            "output_sizes": _nccl_sizes(got, call),
            "output_dtypes": _dtypes(got),
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "timeout_ms": round(call.timeout.total_seconds() * 1000) if call.timeout else 600_000,
            "is_p2p": message,
        }
        self._calls.append((call, entry))
        self._count += 1

    def dump(self, active: bool = False, frames: bool = True) -> dict[str, Any]:
        """Return the dump in PyTorch's format; with ``active``, only pending calls."""
        entries: list[dict[str, Any]] = []
        status: dict[str, dict[str, int]] = {}
        for call, entry in self._calls:
            state = "completed" if call.met else "started"
            one = {**entry, "state": state, "retired": call.met}
            if not frames:
                del one["frames"]
            if not (active and call.met):
                entries.append(one)
            unknown = {f"last_{what}_collective": -1 for what in _STATES}
            group_status = status.setdefault(str(entry["pg_id"]), unknown)
            if not entry["is_p2p"]:
                for what in _STATES[: 3 if call.met else 2]:
                    group_status[f"last_{what}_collective"] = call.seq
        config = {
            name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
            for name, (desc, ranks) in self._groups.items()
        }
        facts = {"version": VERSION, "pg_config": config, "comm_lib_version": "", "pg_status": status}
        return {**facts, "entries": entries}

    def write(self) -> str:
        """Write the file; return its name."""
        path = f"{self.path}{self.number}"
        with open(path, "wb") as file:
            pickle.dump(self.dump(), file, protocol=2)
        return path


_STATES = ("enqueued", "started", "completed")


def write_all(recorders: Sequence[FlightRecorder]) -> None:
    """Write the files of ranks that hang, and say so."""
    try:
        paths = [one.write() for one in recorders]
    except OSError as error:
        print(f"labkit: flight recorder: {error}", file=sys.stderr)
        return
    if paths:
        beginning = recorders[0].path
        en = f"flight recorder: {beginning}* has the last calls of the ranks: labkit explain {beginning}*"
        zh = f"飞行记录仪：各 rank 最后的调用已写入 {beginning}*，用 labkit explain {beginning}* 来看"
        print(f"labkit: {say(en=en, zh=zh)}", file=sys.stderr)


def _frames() -> Iterator[dict[str, Any]]:
    """Yield the lines that led here, innermost first, without labkit's."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not is_our_module(frame.f_globals.get("__name__")):
            yield {"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno}
        frame = frame.f_back


def _nccl_sizes(tensors: Sequence[Any], call: CollectiveCall) -> list[list[int]]:
    """Return the sizes for NCCL, which counts a list of one piece per member as one tensor."""
    sizes = [list(tensor.shape) for tensor in tensors]
    pieces = len(sizes) == len(call.ranks) > 1 and all(size == sizes[0] for size in sizes)
    gathers = call.kind in ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
    return [[len(sizes), *sizes[0]]] if pieces and gathers else sizes


def _dtypes(tensors: Sequence[Any]) -> list[str]:
    names = (str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return [DTYPES.get(name, name) for name in names]


def patches(here: Any, owner: Any) -> Iterator[Patch]:
    """Yield patches of PyTorch's functions for dumps, which return those of rank ``here()``."""

    def dump(
        includeCollectives: bool | None = None, includeStackTraces: bool | None = None, onlyActive: bool | None = None
    ) -> bytes:  # fmt: skip
        rank = here()
        flight = (rank and rank.flight) or FlightRecorder(0, 1, "")
        found = flight.dump(bool(onlyActive), includeStackTraces is not False)
        if includeCollectives is False:
            del found["entries"]
        return pickle.dumps(found, protocol=2)

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        yield Patch(owner, name, dump)
