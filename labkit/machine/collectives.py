"""The seven collectives of ``torch._C`` that a CPU build lacks, on simulated GPUs.

They are what ``torch.nn.parallel`` and ``torch.cuda.comm`` call. Semantics as in PyTorch's
``torch/csrc/cuda/comm.cpp``: tensors on the first device come back by identity, pieces that already are
on their device are views of the input, uneven sizes follow ``chunk``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

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
        gpus = [self._machine.gpu(device) for device in devices]
        if gpu_of(tensor) is not None and gpus[0] is not gpu_of(tensor):
            raise RuntimeError(
                "Expected the first device index to be the same as the tensor's device index "
                f"({gpu_of(tensor).index}), got {gpus[0].index}"
            )
        return [self._to(tensor, gpu) for gpu in gpus]

    @_below_modes
    def _broadcast_out(self, tensor, outs):
        for at, out in enumerate(outs):
            if gpu_of(out) is None:
                raise RuntimeError(
                    f"Expected all output tensors to be CUDA tensors, but output tensor at index {at} "
                    "is a CPU tensor"
                )
            if out.shape != tensor.shape:
                raise RuntimeError(
                    f"Expected all output tensors to have same shape as the source tensor "
                    f"{list(tensor.shape)}, "
                    f"but output tensor at index {at} has shape {list(out.shape)}"
                )
        return [self._copy_into(out, tensor) for out in outs]

    @_below_modes
    def _scatter(self, tensor, devices, chunk_sizes=None, dim=0, streams=None):
        pieces = self._cut(tensor, len(devices), chunk_sizes, dim)
        targets = [None if device == -1 else self._machine.gpu(device) for device in devices]
        return [self._to(piece, gpu) for piece, gpu in zip(pieces, targets, strict=False)]

    @_below_modes
    def _scatter_out(self, tensor, outs, dim=0, streams=None):
        if not outs:
            raise RuntimeError("Expected at least one output tensor to scatter to")
        for at, out in enumerate(outs):
            if gpu_of(out) is None:
                raise RuntimeError(
                    f"Expected all output tensors to be CUDA tensors, but output tensor at index {at} "
                    "is a CPU tensor"
                )
            if out.dim() != tensor.dim():
                raise RuntimeError(
                    f"Output tensor at index {at} has incorrect number of dimensions: "
                    f"expected {tensor.dim()}, but got {out.dim()}"
                )
        sizes = [out.size(dim) for out in outs]
        if sum(sizes) != tensor.size(dim):
            raise RuntimeError(
                "Total size for output tensors along scatter dim "
                f"{dim} does not match: expected {tensor.size(dim)}, but got {sum(sizes)}"
            )
        return [
            self._copy_into(out, piece) for out, piece in zip(outs, tensor.split(sizes, dim), strict=True)
        ]

    @_below_modes
    def _gather(self, tensors, dim, destination=None):
        if not tensors:
            raise RuntimeError("Expected at least one tensor to gather from")
        first = tensors[0]
        for at, tensor in enumerate(tensors):
            if gpu_of(tensor) is None:
                raise RuntimeError(
                    f"Expected all input tensors to be CUDA tensors, but tensor at index {at} "
                    f"has device '{tensor.device}'"
                )
            self._check_gathered(first, tensor, at, dim)
        target = self._destination(destination)
        gathered = torch.cat([move(self._machine, tensor, target) for tensor in tensors], dim)
        if target is not None:
            put(gathered, target)
        return gathered

    @_below_modes
    def _gather_out(self, tensors, out, dim):
        if not tensors:
            raise RuntimeError("Expected at least one tensor to gather from")
        for at, tensor in enumerate(tensors):
            self._check_gathered(out, tensor, at, dim)
        total = sum(tensor.size(dim) for tensor in tensors)
        if out.size(dim) != total:
            raise RuntimeError(
                f"Expected out tensor to have size {total} in gather dim {dim}, but got {out.size(dim)}"
            )
        for tensor, place in zip(tensors, out.split([t.size(dim) for t in tensors], dim), strict=True):
            self._copy_into(place, tensor)
        return out

    def _check_gathered(self, first: Tensor, tensor: Tensor, at: int, dim: int) -> None:
        same = first.dim() == tensor.dim() and all(
            axis == dim % first.dim() or first.size(axis) == tensor.size(axis) for axis in range(first.dim())
        )
        if not same:
            expected = list(first.shape)
            if first.dim() == tensor.dim():
                expected[dim] = tensor.size(dim)
            raise RuntimeError(
                f"Input tensor at index {at} has invalid shape {list(tensor.shape)}, but expected {expected}"
            )

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

    def _destination(self, index):
        if index is None:
            return self._machine.gpu(self._machine.current.index)
        return None if index == -1 else self._machine.gpu(index)

    def _to(self, tensor: Tensor, gpu):
        return move(self._machine, tensor, gpu)

    def _copy_into(self, out: Tensor, tensor: Tensor) -> Tensor:
        return out.copy_(tensor)
