"""``torch.cuda.memory_snapshot()``: the segments of CUDA's allocator, with invented addresses and without a history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import hooks
from ..state.gpu import Gpu, TheMachine
from ..torch_api.cuda import SMALL


@hooks.torch_c_answers.add
class _Snapshots:
    def __init__(self, machine: TheMachine) -> None:
        self._machine = machine

    def _cuda_isHistoryEnabled(self) -> bool:
        return False

    def _cuda_memorySnapshot(self, *_: object) -> dict[str, Any]:
        return {
            "segments": [segment for gpu in self._machine.gpus for segment in _segments(gpu)],
            "device_traces": [[] for _ in self._machine.gpus], "allocator_settings": {}, "external_annotations": [],
        }  # fmt: skip


def _segments(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Yield a segment with a single block for each storage, at successive addresses."""
    address = (2 * gpu.index + 2) << 39
    for requested, size, many in gpu.blocks():
        for _ in range(many):
            block = {
                "address": address, "size": size, "requested_size": requested, "state": "active_allocated",
                "frames": [],
            }  # fmt: skip
            yield {
                "device": gpu.index, "address": address, "total_size": size, "allocated_size": size,
                "active_size": size, "requested_size": requested, "stream": 0,
                "segment_type": "small" if size <= SMALL else "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [block],
            }  # fmt: skip
            address += size
