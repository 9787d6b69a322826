"""``torch.cuda.memory_snapshot()`` and the history of memory: the segments of CUDA's allocator, which are invented.

While the history is recorded, each storage that is put on a GPU gets a mark of its own instead of the one for its size.
That nobody but us refers to a mark says that its storage is gone; it is told at the next one, or when somebody looks.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from labkit.base import ours

from .. import hooks
from ..state.gpu import BLOCK, Gpu, TheMachine
from ..state.marks import Mark
from ..torch_api.cuda import SMALL

# So many frames are kept of a call.
_MOST_FRAMES = 64


class _Asked(int):
    """The bytes of one storage: a key that is equal to no other, with the block's address and where it was made.

    A GPU sums the keys of its marks as sizes, so that a key which tells storages apart has to be a number too.
    """

    address: int
    frames: list[dict[str, Any]]
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def _references(marks: dict[int, Mark], key: int) -> int:
    return sys.getrefcount(dict.__getitem__(marks, key))


_IDLE = _references({0: Mark(None, 0)}, 0)


class _Recorded(dict[int, Mark]):
    """The marks of a GPU, of which each is given out once.

    most     of the events that ``trace`` keeps.
    framed   whether to keep frames.
    """

    def __init__(self, gpu: Gpu, most: int, framed: bool, skipped: list[str]) -> None:
        super().__init__(gpu.marks)
        self._gpu, self._framed, self._skipped = gpu, framed, skipped
        self.trace: deque[dict[str, Any]] = deque(maxlen=most)
        self._next = (2 * gpu.index + 3) << 39  # above those of storages that nobody recorded

    def __getitem__(self, size: int) -> Mark:
        self.look()
        key, mark = _Asked(size), Mark(self._gpu, -(-size // BLOCK) * BLOCK)
        key.address, key.frames = self._next, _frames() if self._framed else []
        self._next += mark.block
        self._tell(key, mark.block, "segment_alloc", "alloc")
        self[key] = mark
        return mark

    def look(self) -> None:
        """Tell of the storages that are gone."""
        for key in tuple(self):
            if isinstance(key, _Asked) and _references(self, key) <= _IDLE:
                self._tell(key, self.pop(key).block, "free_requested", "free_completed", "segment_free")

    def _tell(self, key: _Asked, block: int, *actions: str) -> None:
        for action in actions:
            if block and action not in self._skipped:
                self.trace.append({
                    "action": action, "addr": key.address, "size": block, "stream": 0, "frames": key.frames,
                    "time_us": time.time_ns() // 1000, "compile_context": "N/A", "user_metadata": "",
                })  # fmt: skip


def _frames() -> list[dict[str, Any]]:
    """Where the program is, from the innermost frame on; the machine's are left out."""
    found: list[dict[str, Any]] = []
    frame: Any = sys._getframe(2)
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        if not ours.is_hidden_file(code.co_filename):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found


@hooks.torch_c_answers.add
class _Snapshots:
    def __init__(self, machine: TheMachine) -> None:
        self._machine = machine
        self._traces: dict[Gpu, deque[dict[str, Any]]] = {}

    def _cuda_isHistoryEnabled(self) -> bool:
        return any(isinstance(gpu.marks, _Recorded) for gpu in self._machine.gpus)

    def _cuda_record_memory_history(
        self, enabled: str | None, context: str | None = "all", stacks: str = "all", max_entries: int = sys.maxsize,
        clear_history: bool = False, *_: object,
    ) -> None:  # fmt: skip
        skipped: Any = _[-1] if _ and isinstance(_[-1], list) else []
        for gpu in self._machine.gpus:
            before: list[dict[str, Any]] = [] if clear_history else [*self._trace(gpu)]
            gpu.marks = dict(gpu.marks)
            if enabled is not None:
                most = max_entries if enabled == "all" else 0
                gpu.marks = _Recorded(gpu, most, context is not None, skipped)
                gpu.marks.trace.extend(before)
                self._traces[gpu] = gpu.marks.trace

    def _cuda_record_memory_history_legacy(self, enabled: bool, record_context: bool, *more: Any) -> None:
        kept, context = "all" if enabled else None, "all" if record_context else None
        self._cuda_record_memory_history(kept, context, "all", *more[:1] or [sys.maxsize])

    def _trace(self, gpu: Gpu) -> deque[dict[str, Any]]:
        if isinstance(gpu.marks, _Recorded):
            gpu.marks.look()
        return self._traces.get(gpu, deque())

    def _cuda_memorySnapshot(self, *_: object) -> dict[str, Any]:
        traces = [[*self._trace(gpu)] for gpu in self._machine.gpus]
        return {
            "segments": [segment for gpu in self._machine.gpus for segment in _segments(gpu)],
            "device_traces": traces, "allocator_settings": {}, "external_annotations": [],
        }  # fmt: skip


def _segments(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """The segments of a snapshot, each with its one block; the addresses are invented, one after the other."""
    following = (2 * gpu.index + 2) << 39
    for asked, size, many in gpu.blocks():
        for _ in range(many):
            address, frames = following, []
            if isinstance(asked, _Asked):
                address, frames = asked.address, asked.frames
            else:
                following += size
            block = {
                "address": address, "size": size, "requested_size": int(asked), "state": "active_allocated",
                "frames": frames,
            }  # fmt: skip
            yield {
                "device": gpu.index, "address": address, "total_size": size, "allocated_size": size,
                "active_size": size, "requested_size": int(asked), "stream": 0,
                "segment_type": "small" if size <= SMALL else "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames, "blocks": [block],
            }  # fmt: skip
