"""The seven collectives of ``torch._C`` that a CPU build lacks, on simulated GPUs.

They are what ``torch.nn.parallel`` and ``torch.cuda.comm`` call. Semantics as in PyTorch's
``torch/csrc/cuda/comm.cpp``: tensors on the first device come back by identity, pieces that already are
on their device are views of the input, uneven sizes follow ``chunk``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .gpu import Gpu
from .moves import move
from .placement import gpu_of, put


def _below_modes(collective):
    """Run ``collective`` as C++ would: none of its own tensor operations pass the function modes."""

    @functools.wraps(collective)
    def run(*args, **kwargs):
        with torch._C.DisableTorchFunction():
            return collective(*args, **kwargs)

    return run


class Collectives:
    """The collectives of one machine; each method stands for the ``torch._C`` function of its name."""

    def __init__(self, machine) -> None:
        self._machine = machine

    @_below_modes
    def _broadcast_coalesced(self, tensors, devices, buffer_size):
        self._check_source("tensors", tensors, devices[0])
        copies = [list(tensors)]
        for device in devices[1:]:
            gpu = self._machine.gpu(device)
            copies.append([move(self._machine, tensor.detach(), gpu, copy=True) for tensor in tensors])
        return copies

    @_below_modes
    def _broadcast(self, tensor, devices):
        if not devices:
            return []
        return [self._to(tensor, self._target(device)) for device in devices]

    @_below_modes
    def _broadcast_out(self, tensor, outs):
        for at, out in enumerate(outs):
            self._check_output(out, at)
            if out.shape != tensor.shape:
                raise RuntimeError(
                    "Expected all output tensors to have same shape as the source tensor "
                    f"{list(tensor.shape)}, but output tensor at index {at} has shape {list(out.shape)}"
                )
        return [out.copy_(tensor) for out in outs]

    @_below_modes
    def _scatter(self, tensor, devices, chunk_sizes=None, dim=0, streams=None):
        if not devices:
            raise RuntimeError("Expected at least one device to scatter to")
        self._check_streams(streams, devices)
        pieces = self._cut(tensor, len(devices), chunk_sizes, dim)
        return [self._to(piece, self._target(device)) for piece, device in zip(pieces, devices, strict=False)]

    @_below_modes
    def _scatter_out(self, tensor, outs, dim=0, streams=None):
        if not outs:
            raise RuntimeError("Expected at least one output tensor to scatter to")
        dim = self._wrapped(dim, tensor)
        for at, out in enumerate(outs):
            self._check_output(out, at)
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

    @_below_modes
    def _gather(self, tensors, dim, destination=None):
        shape, dim = self._gathered_shape(tensors, dim)
        target = None if destination == -1 else self._machine.gpu(destination)
        gathered = torch.cat([move(self._machine, tensor, target) for tensor in tensors], dim)
        if target is not None:
            put(gathered, target)
        return gathered

    @_below_modes
    def _gather_out(self, tensors, out, dim):
        shape, dim = self._gathered_shape(tensors, dim)
        if list(out.shape) != shape:
            raise RuntimeError(f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
        for tensor, place in zip(tensors, out.split([t.size(dim) for t in tensors], dim), strict=True):
            place.copy_(tensor)
        return out

    def _gathered_shape(self, tensors, dim: int) -> tuple[list[int], int]:
        if not tensors:
            raise RuntimeError("Expected at least one tensor to gather from")
        dim = self._wrapped(dim, tensors[0])
        expected = list(tensors[0].shape)
        for at, tensor in enumerate(tensors):
            if gpu_of(tensor) is None:
                raise RuntimeError(
                    f"Expected all input tensors to be CUDA tensors, but tensor at index {at} "
                    f"has device '{tensor.device}'"
                )
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

    def _check_output(self, out: Tensor, at: int) -> None:
        if gpu_of(out) is None:
            raise RuntimeError(
                f"Expected all output tensors to be CUDA tensors, but output tensor at index {at} "
                f"has device '{out.device}'"
            )

    def _check_streams(self, streams, devices) -> None:
        for at, (stream, device) in enumerate(zip(streams or (), devices, strict=False)):
            if stream is not None and stream.device_index != device:
                raise RuntimeError(
                    f"Expected the device associated with the stream at index {at} (was {stream.device_index}) "
                    f"to match the device supplied at that index (expected {device})"
                )

    def _target(self, device: int) -> Gpu:
        if device < 0:
            raise RuntimeError(f"Expected non-negative device index, but got {device}")
        return self._machine.gpu(device)

    def _wrapped(self, dim: int, tensor: Tensor) -> int:
        return range(max(tensor.dim(), 1))[dim]

    def _check_source(self, name, tensors, device) -> None:
        gpu = self._machine.gpu(device)
        for tensor in tensors:
            if gpu_of(tensor) is not gpu:
                raise RuntimeError("All tensors must be on devices[0]: " + str(device))

    def _cut(self, tensor: Tensor, count: int, sizes, dim: int):
        if sizes is None:
            return tensor.chunk(count, dim)
        if len(sizes) != count:
            raise RuntimeError(
                f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {count} "
                f"and len(chunk_sizes) = {len(sizes)}"
            )
        return tensor.split(list(sizes), dim)

    def _to(self, tensor: Tensor, gpu):
        return move(self._machine, tensor, gpu)
