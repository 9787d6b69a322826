"""Count and place DistributedDataParallel's buckets, which its Reducer makes in C++.

A bucket is a flat tensor of the gradients of some parameters (torch/csrc/distributed/c10d/reducer.cpp,
initialize_buckets). The Reducer makes all at first, and again once the order of the gradients is known
(rebuild_buckets). Python meets a bucket in a communication hook, as the storage of gradients that are views, or never.
Until then, its bytes are held in its place; then its storage gets a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.base.patches import Patch

from .. import hooks
from ..state.current_machine import machine_in_use
from ..state.gpu import Gpu, TheMachine
from ..state.leaves import Held
from ..state.placement import gpu_of, put


def mark_arrived(tensor: Tensor, gpu: Gpu | None) -> None:
    """Mark ``tensor``, which C++ made, as on ``gpu``, and stop holding the bytes if it is a bucket."""
    if gpu is None or gpu_of(tensor) is not None:
        return
    if tensor.layout is torch.strided:
        gpu.leaves.release(tensor.untyped_storage().nbytes())
    put(tensor, gpu)


def gpu_of_bucket(tensor: Tensor, gpu: Gpu) -> Gpu | None:
    """Return ``gpu`` if ``tensor``, which C++ made without a mark, can be a bucket there; None for the host."""
    if tensor.layout is not torch.strided:
        return None
    return gpu if gpu.leaves.holds(tensor.untyped_storage().nbytes()) else None


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace the Reducer, and mark the tensors that a communication hook gets."""
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    real, bucket = distributed.Reducer, distributed.GradBucket
    # The unpatched methods, for the copies of buckets below.
    buffer, parameters = bucket.buffer, bucket.parameters

    class Reducer(real):  # type: ignore[misc, valid-type]
        """PyTorch's Reducer, with the bytes of its buckets counted."""

        def __init__(
            self, params: list[Tensor], bucket_indices: list[list[int]], *args: Any, **kwargs: Any
        ) -> None:
            super().__init__(params, bucket_indices, *args, **kwargs)
            self._labkit_held = Held()
            # local_used_map_dev_, on the device of the first parameter. Ranks exchange which parameters were used only
            # with find_unused_parameters, or a static graph.
            self._labkit_map = Held()
            first = gpu_of(params[0]) if params else None
            if first is not None and machine_in_use() is not None:
                unused = args[4] if len(args) > 4 else kwargs.get("find_unused_parameters", False)
                self._labkit_map.hold(first, 4 * len(params), met=bool(unused))
            self._hold(([params[at] for at in places], None) for places in bucket_indices)

        def _set_static_graph(self) -> None:
            super()._set_static_graph()
            self._labkit_map.can_be_met()

        def _rebuild_buckets(self) -> bool:
            rebuilt: bool = super()._rebuild_buckets()
            if rebuilt:
                buckets = super()._get_zeros_like_grad_buckets()
                self._hold([(parameters(each), buffer(each).dtype) for each in buckets])
            return rebuilt

        def _hold(self, buckets: Iterable[tuple[list[Tensor], torch.dtype | None]]) -> None:
            self._labkit_held.release()
            if machine_in_use() is None:
                return
            for params, dtype in buckets:
                sizes: dict[Gpu | None, int] = {}  # there is a bucket for each device
                for param in params:
                    gpu = gpu_of(param)
                    sizes[gpu] = sizes.get(gpu, 0) + param.numel() * (dtype or param.dtype).itemsize
                for gpu, size in sizes.items():
                    if gpu is not None:
                        self._labkit_held.hold(gpu, size)

    Reducer.__qualname__, Reducer.__module__ = real.__qualname__, real.__module__
    yield Patch(distributed, "Reducer", Reducer)
    yield Patch.wrap(bucket, "buffer", _get_surfaced)
    yield Patch.wrap(bucket, "gradients", _get_surfaced)


def _get_surfaced(get: Callable[[Any], Any], bucket: Any) -> Any:
    found = get(bucket)
    if machine_in_use() is not None:
        tensors = [found] if isinstance(found, Tensor) else found
        for tensor, param in zip(tensors, bucket.parameters(), strict=False):
            mark_arrived(tensor, gpu_of(param))
    return found
