"""The four collectives as autograd Functions, each with the dual for its backward.

:class:`Broadcast` and :class:`ReduceAdd` are each other's backward, and so are :class:`Scatter` and :class:`Gather`; so
derivatives of any order work. They correspond to ``torch/nn/parallel/_functions.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Function
from torch.cuda.comm import broadcast_coalesced

# Bytes of a joined copy, which takes as much memory again (torch.cuda.comm's buffer_size).
_TOGETHER = 10 * 2**20


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply(*args)``, which torch leaves without types."""
    return function.apply(*args)


class Broadcast(Function):
    """Copies of ``tensors`` on each of ``devices``, device by device. On the first they are the originals."""

    @staticmethod
    def forward(ctx: Any, devices: list[torch.device], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.devices = devices
        # Autograd gives a gradient the dtype of its tensor (torch/csrc/autograd/engine.cpp, validate_outputs), so
        # tensors grouped now can be grouped in backward too.
        ctx.groups = groups_of(tensors)
        copies = copy_to(tensors, devices, ctx.groups)
        fixed = [at for at, needed in enumerate(ctx.needs_input_grad[1:]) if not needed]
        # Without this a frozen weight's copies would require gradients, as every output of a Function does.
        ctx.mark_non_differentiable(*(there[at] for there in copies for at in fixed))
        return tuple(chain(*copies))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, *apply(ReduceAdd, ctx.devices, *grads)
        return None, *sum_on(ctx.devices[0], by_device(grads, ctx.devices), ctx.groups)


class ReduceAdd(Function):
    """Gradients from each of ``devices``, device by device, summed on the first."""

    @staticmethod
    def forward(ctx: Any, devices: list[torch.device], *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.devices = devices
        given = by_device(grads, devices)
        return tuple(sum_on(devices[0], given, groups_of(given[0])))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *apply(Broadcast, ctx.devices, *grads)


class Scatter(Function):
    """``tensor`` cut along ``dim`` as torch.chunk cuts it (or into ``sizes``), one piece for each device.

    With fewer pieces than devices the last devices get none. A piece that is on its device already is a
    view of the input.
    """

    @staticmethod
    def forward(
        ctx: Any, devices: list[torch.device], sizes: list[int] | None, dim: int, tensor: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.dim, ctx.source = dim, tensor.device
        pieces = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
        return tuple(piece.to(device) for piece, device in zip(pieces, devices, strict=False))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, apply(Gather, ctx.source, ctx.dim, *grads)


class Gather(Function):
    """``tensors`` from several devices, concatenated along ``dim`` on ``device``. Scalars become a vector."""

    @staticmethod
    def forward(ctx: Any, device: torch.device, dim: int, *tensors: Tensor) -> Tensor:
        ctx.dim, ctx.devices = dim, [tensor.device for tensor in tensors]
        ctx.scalars = dim == 0 and all(tensor.dim() == 0 for tensor in tensors)
        if ctx.scalars:
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; "
                "will instead unsqueeze and return a vector.",
                stacklevel=2,
            )
            tensors = tuple(tensor.view(1) for tensor in tensors)
        ctx.sizes = [tensor.size(dim) for tensor in tensors]
        return torch.cat([tensor.to(device) for tensor in tensors], dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = apply(Scatter, ctx.devices, ctx.sizes, ctx.dim, grad)
        return None, None, *((piece[0] for piece in grads) if ctx.scalars else grads)


def by_device(tensors: Sequence[Tensor], devices: Sequence[torch.device]) -> list[Sequence[Tensor]]:
    """Split tensors in the order of ``devices`` into a sequence for each device."""
    count = len(tensors) // len(devices)
    return [tensors[at : at + count] for at in range(0, len(tensors), count)]


def groups_of(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Group tensors to be sent as one: their positions, by dtype, in order.

    Joining forgets strides: channels_last weights must travel alone to arrive as channels_last. A 1 × 1
    convolution's are contiguous either way, but their strides still choose the kernel that is used.
    """
    groups: list[list[int]] = []
    room: dict[torch.dtype, int] = {}  # bytes that the last group of each type may still take
    last: dict[torch.dtype, list[int]] = {}
    # Bypass function modes (torch.set_default_device, a simulated machine) to ask for strides: a mode costs twenty
    # times as much as the answer, for each weight in each call.
    with torch._C.DisableTorchFunction():
        for at, tensor in enumerate(tensors):
            if (
                tensor.layout is torch.strided
                and tensor.is_contiguous()
                and (tensor.dim() < 4 or tensor.stride(1) == tensor.stride(2) * tensor.size(2))
            ):
                kind = tensor.dtype
                if room.get(kind, 0) <= 0:
                    room[kind], last[kind] = _TOGETHER, []
                    groups.append(last[kind])
                room[kind] -= tensor.nbytes
                last[kind].append(at)
    return groups


def _alone(count: int, groups: list[list[int]]) -> set[int]:
    """Return the positions below ``count`` that are in no group."""
    return set(range(count)).difference(*groups)


def copy_to(
    tensors: Sequence[Tensor], devices: list[torch.device], groups: list[list[int]]
) -> list[list[Tensor]]:
    """Copy ``tensors`` to each device: the originals on the first, copies on the others.

    Those that can travel together do, in PyTorch's own coalesced broadcast. Each copy has a version counter of
    its own: writing to one in place must not look like a change of its neighbours to a graph that saved them
    (torch/csrc/cuda/comm.cpp, "Version Counter in comm.*_coalesced").
    """
    if len(devices) == 1:
        return [list(tensors)]
    # The coalesced broadcast would give complex numbers back as pairs of real ones.
    joined = [at for group in groups if not tensors[group[0]].is_complex() for at in group]
    alone = sorted(_alone(len(tensors), [joined]))
    sent = broadcast_coalesced([tensors[at] for at in joined], devices) if joined else [[] for _ in devices]
    copies = [list(tensors), *sent[1:]]
    if joined != list(range(len(tensors))):  # dtypes alternate, or some tensors are sent alone
        for at, device in enumerate(devices[1:], start=1):
            placed = dict(zip(joined, sent[at], strict=True))
            placed |= {place: tensors[place].to(device).data for place in alone}
            copies[at] = [placed[place] for place in range(len(tensors))]
    return copies


def sum_on(device: torch.device, given: list[Sequence[Tensor]], groups: list[list[int]]) -> list[Tensor]:
    """Sum each weight's gradients on ``device``; ``given`` has the gradients of all weights by device.

    Added in device order, as ``torch.cuda.comm.reduce_add`` does, so that the sums are the same bit for bit.
    """
    if len(given) == 1:
        return list(given[0])
    weights = range(len(given[0]))
    alone = _alone(len(weights), groups)
    sums: dict[int, Tensor] = {}
    for places in groups:
        group = [[gradients[at] for at in places] for gradients in given]
        try:
            # Flatten device by device: each flat copy is freed once added. (A single tensor is not copied.)
            total = _sum(device, map(_flatten_dense_tensors, group), fresh=len(places) > 1)
        except RuntimeError:
            # Look for sparse gradients only after flattening failed: asking each would cost more than the sum.
            if not any(gradient.is_sparse for gradients in group for gradient in gradients):
                raise
            alone.update(places)
            continue
        sums.update(zip(places, _unflatten_dense_tensors(total, group[0]), strict=True))
    for at in alone:
        own = [gradients[at] for gradients in given]
        if not all(gradient.is_sparse for gradient in own):
            # A replica that does not use the weight has a gradient of zeros, and that is dense.
            own = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in own]
        sums[at] = _sum(device, iter(own))
    with torch._C.DisableTorchFunction():
        # .data: a version counter for each, as in copy_to.
        return [sums[at].data for at in weights]


def _sum(device: torch.device, tensors: Iterator[Tensor], *, fresh: bool = False) -> Tensor:
    """Sum ``tensors`` on ``device``, which holds the first. A ``fresh`` first tensor is added to in place."""
    total = next(tensors)
    for tensor in tensors:
        # The first addition makes a new tensor: other code may still hold the gradient.
        total = total.add_(tensor.to(device)) if fresh else total + tensor.to(device)
        fresh = not total.is_sparse
    return total
