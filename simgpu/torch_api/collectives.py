"""The seven collectives of ``torch._C`` that a CPU build lacks, on simulated GPUs.

``torch.nn.parallel`` and ``torch.cuda.comm`` call these. As in PyTorch's ``torch/csrc/cuda/comm.cpp``, tensors on the
first device come back by identity, pieces already on their device are views of the input, and uneven sizes follow
``chunk``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from labkit.trace import emitting as trace

from ..ops.moves import move, note_copy
from ..state.current_machine import without_function_modes
from ..state.gpu import Gpu, TheMachine
from ..state.placement import gpu_of, place, put
from ..state.streams import Stream

# The dispatch keys by which a view gets its base's version counter. Excluding them has the effect of .data, at a third
# of the cost.
_VIEWS = functools.reduce(
    DispatchKeySet.__or__,
    map(DispatchKeySet, (DispatchKey.ADInplaceOrView, DispatchKey.AutogradCPU, DispatchKey.AutogradCUDA)),
)


def _chunks(tensors: Sequence[Tensor], most: int) -> list[list[int]]:
    """Group the indices of tensors to send together: of one type, in order, up to about ``most`` bytes."""
    chunks: list[list[int]] = []
    open_chunks: dict[tuple[torch.dtype, torch.layout], tuple[list[int], int]] = {}
    for at, tensor in enumerate(tensors):
        kind = tensor.dtype, tensor.layout
        places, size = open_chunks.setdefault(kind, ([], 0))
        nbytes = tensor.nbytes if kind[1] is torch.strided else 0
        places.append(at)
        open_chunks[kind] = places, size + nbytes
        if size + 2 * nbytes >= most:  # PyTorch counts the last tensor twice
            chunks.append(open_chunks.pop(kind)[0])
    return chunks + [places for places, _ in open_chunks.values()]


def _check_broadcast_from(tensors: Iterable[Tensor], gpu: Gpu) -> None:
    """Check that all ``tensors`` are on ``gpu``, the first of the devices."""
    if any(gpu_of(tensor) is not gpu for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {gpu.index}")


def _check_on_gpu(kind: str, tensor: Tensor, index: int) -> None:
    """Require the ``kind`` ("input", "output") tensor number ``index`` on a GPU."""
    if gpu_of(tensor) is None:
        label = "output tensor" if kind == "output" else "tensor"
        raise RuntimeError(
            f"Expected all {kind} tensors to be CUDA tensors, but {label} at index {index} has device '{place(tensor)}'"
        )


def _check_streams(streams: Iterable[Any], devices: Iterable[int]) -> None:
    """Require each stream to belong to the device at the same index."""
    for at, (stream, device) in enumerate(zip(streams, devices, strict=False)):
        if stream is not None and stream.device_index != device:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {at} (was {stream.device_index}) "
                f"to match the device supplied at that index (expected {device})"
            )


class Collectives:
    """The collectives of a machine; each method replaces the ``torch._C`` function of the same name."""

    def __init__(self, machine: TheMachine) -> None:
        self._machine = machine

    @without_function_modes
    def _broadcast_coalesced(
        self, tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
    ) -> list[list[Tensor]]:
        """Return copies of `tensors` for each device, sent in buffers; the originals for the first."""
        gpus = [self._machine.gpu(device) for device in devices]
        _check_broadcast_from(tensors, gpus[0])
        copies: list[list[Any]] = [list(tensors)] + [[None] * len(tensors) for _ in devices[1:]]
        with torch.no_grad():
            for places in _chunks(tensors, buffer_size):
                group = [tensors[at] for at in places]
                for row, pieces in zip(copies[1:], self._send_coalesced(group, gpus), strict=True):
                    for at, piece in zip(places, pieces, strict=True):
                        row[at] = piece
        return copies

    def _send_coalesced(self, group: list[Tensor], gpus: list[Gpu]) -> list[list[Tensor]]:
        """Send the tensors of ``group`` to each GPU but the first as one tensor, which loses strides.

        The pieces share memory but have separate version counters, so autograd does not see views (comm.cpp, "Version
        Counter in comm.*_coalesced").
        """
        send = functools.partial(move, self._machine, copy=True, non_blocking=True)
        if group[0].layout is not torch.strided:
            return [[send(tensor, gpu) for tensor in group] for gpu in gpus[1:]]
        joined = put(torch._C._nn.flatten_dense_tensors(group), gpus[0])
        empty = [at for at, tensor in enumerate(group) if not tensor.numel()]
        rows = []
        for gpu in gpus[1:]:
            moved = send(joined, gpu)
            with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
                rows.append(torch._C._nn.unflatten_dense_tensors(moved, group))
            for at in empty:
                put(rows[-1][at], gpu)  # an empty tensor is no view of `moved`
        return rows

    @without_function_modes
    def _broadcast(self, tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
        return [self._move_to_gpu(tensor, device) for device in devices]

    @without_function_modes
    def _broadcast_out(self, tensor: Tensor, outs: Sequence[Tensor]) -> list[Tensor]:
        for at, out in enumerate(outs):
            _check_on_gpu("output", out, at)
            if out.shape != tensor.shape:
                raise RuntimeError(
                    "Expected all output tensors to have same shape as the source tensor "
                    f"{list(tensor.shape)}, but output tensor at index {at} has shape {list(out.shape)}"
                )
        return [out.copy_(tensor) for out in outs]

    @without_function_modes
    def _scatter(
        self,
        tensor: Tensor,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None = None,
        dim: int = 0,
        streams: Sequence[Stream | None] | None = None,
    ) -> list[Tensor]:
        """Cut `tensor` along `dim` into pieces, and return each on its device."""
        if not devices:
            raise RuntimeError("Expected at least one device to scatter to")
        _check_streams(streams or (), devices)
        if chunk_sizes is None:
            pieces = tensor.chunk(len(devices), dim)
        elif len(chunk_sizes) == len(devices):
            pieces = tensor.split(list(chunk_sizes), dim)
        else:
            raise RuntimeError(
                f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(devices)} "
                f"and len(chunk_sizes) = {len(chunk_sizes)}"
            )
        return [self._move_to_gpu(piece, device) for piece, device in zip(pieces, devices, strict=False)]

    @without_function_modes
    def _scatter_out(
        self, tensor: Tensor, outs: Sequence[Tensor], dim: int = 0, streams: object = None
    ) -> list[Tensor]:
        if not outs:
            raise RuntimeError("Expected at least one output tensor to scatter to")
        dim = self._wrap_dimension(dim, tensor)
        for at, out in enumerate(outs):
            _check_on_gpu("output", out, at)
            shape = list(out.shape)
            if out.dim() == tensor.dim():
                shape[dim] = tensor.size(dim)
            if shape != list(tensor.shape):
                raise RuntimeError(
                    f"Output tensor at index {at} has incorrect shape: {list(out.shape)}. Expected same shape "
                    f"except for scatter dim {dim} as the source tensor: {list(tensor.shape)}"
                )
        sizes = [out.size(dim) for out in outs]
        if sum(sizes) != tensor.size(dim):
            raise RuntimeError(
                f"Total size for output tensors along scatter dim {dim} does not match the source tensor size "
                f"at dim {dim}. Expected {tensor.size(dim)}, but got total size {sum(sizes)}"
            )
        return [out.copy_(piece) for out, piece in zip(outs, tensor.split(sizes, dim), strict=True)]

    @without_function_modes
    def _gather(self, tensors: Sequence[Tensor], dim: int, destination: int | None = None) -> Tensor:
        """Concatenate `tensors` along `dim` on GPU `destination`; -1 is the host."""
        _, dim = self._shape_together(tensors, dim)
        target = None if destination == -1 else self._machine.gpu(destination)
        started = trace.clock.now() if trace.recording is not None else 0.0
        # cat chooses the memory format as comm.cpp does (aten/src/ATen/native/TensorShape.cpp,
        # cat_compute_output_memory_format), but not the dtype where dtypes differ.
        if target is not None:
            target.make_room(sum(tensor.numel() for tensor in tensors) * tensors[0].element_size())
        gathered: Tensor = torch.cat([tensor.to(tensors[0].dtype) for tensor in tensors], dim)
        gathered = put(gathered.to(self._machine.real(target)), target)
        if trace.recording is not None:
            for tensor in tensors:
                note_copy(gpu_of(tensor), target, tensor, started)
        return gathered

    @without_function_modes
    def _gather_out(self, tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
        shape, dim = self._shape_together(tensors, dim)
        if list(out.shape) != shape:
            raise RuntimeError(f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
        for tensor, part in zip(tensors, out.split([t.size(dim) for t in tensors], dim), strict=True):
            started = trace.clock.now() if trace.recording is not None else 0.0
            part.copy_(tensor)
            if trace.recording is not None:
                note_copy(gpu_of(tensor), gpu_of(out), tensor, started)
        return out

    def _shape_together(self, tensors: Sequence[Tensor], dim: int) -> tuple[list[int], int]:
        if not tensors:
            raise RuntimeError("Expected at least one tensor to gather from")
        dim = self._wrap_dimension(dim, tensors[0])
        expected = list(tensors[0].shape)
        for at, tensor in enumerate(tensors):
            _check_on_gpu("input", tensor, at)
            if tensor.dim() != len(expected):
                raise RuntimeError(
                    "Expected all input tensors to have the same number of dimensions, but tensor at index "
                    f"{at}has {tensor.dim()} dimensions, (expected {len(expected)})"
                )
            expected[dim] = tensor.size(dim)
            if list(tensor.shape) != expected:
                raise RuntimeError(
                    f"Input tensor at index {at} has invalid shape {list(tensor.shape)}, but expected {expected}"
                )
        expected[dim] = sum(tensor.size(dim) for tensor in tensors)
        return expected, dim

    def _wrap_dimension(self, dim: int, tensor: Tensor) -> int:
        tensor.size(dim)  # raises torch's own error for a missing dimension
        return dim % tensor.dim()

    def _move_to_gpu(self, tensor: Tensor, device: int) -> Tensor:
        if device < 0:
            raise RuntimeError(f"Expected non-negative device index, but got {device}")
        return move(self._machine, tensor, self._machine.gpu(device), non_blocking=True)
