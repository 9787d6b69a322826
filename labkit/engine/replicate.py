"""replicate: a module copied to several devices, so that gradients come back to the original.

The copy is :class:`Broadcast`; its backward is the sum of the replicas' gradients, :class:`ReduceAdd`, and
each is the other's backward, so that second derivatives work too.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Function

from .devices import as_devices


class Broadcast(Function):
    """Copies of ``tensors`` on each of ``devices``, device by device. On the first they are the originals."""

    @staticmethod
    def forward(ctx, devices: list[torch.device], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.devices = devices
        copies = copy_to(tensors, devices)
        fixed = [at for at, needed in enumerate(ctx.needs_input_grad[1:]) if not needed]
        ctx.mark_non_differentiable(*(row[at] for row in copies for at in fixed))
        return tuple(tensor for row in copies for tensor in row)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *ReduceAdd.apply(ctx.devices, *grads)


class ReduceAdd(Function):
    """Gradients from each of ``devices``, device by device, summed on the first."""

    @staticmethod
    def forward(ctx, devices: list[torch.device], *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.devices = devices
        count = len(grads) // len(devices)
        rows = [grads[at : at + count] for at in range(0, len(grads), count)]
        return tuple(sum_on(devices[0], rows))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *Broadcast.apply(ctx.devices, *grads)


def copy_to(
    tensors: Sequence[Tensor], devices: Sequence[torch.device], apart: bool = True
) -> list[list[Tensor]]:
    """Copies of ``tensors`` on each device; they travel together, one transfer for each type.

    apart   whether each copy has a version counter of its own: writing to one in place must not look like
            a change of its neighbours to a graph that saved them. Without a graph it does not matter.
    """
    rows = [list(tensors)] + [[None] * len(tensors) for _ in devices[1:]]
    for places in _by_kind(tensors):
        group = [tensors[at] for at in places]
        joined = _flatten_dense_tensors(group) if _can_join(group) else None
        for device, row in zip(devices[1:], rows[1:], strict=True):
            if joined is None:
                pieces = [tensor.to(device) for tensor in group]
            else:
                pieces = _unflatten_dense_tensors(joined.to(device), group)
            for at, piece in zip(places, pieces, strict=True):
                row[at] = piece.data if apart else piece
    return rows


def sum_on(device: torch.device, rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The sum over ``rows`` (one for each device) of each of their tensors, on ``device``.

    Added in device order onto the first row, as PyTorch does, so that the sums are the same bit for bit.
    """
    if len(rows) == 1:
        return list(rows[0])
    sums: list[Tensor] = [None] * len(rows[0])
    for places in _by_kind(rows[0]):
        groups = [[row[at] for at in places] for row in rows]
        if all(_can_join(group) for group in groups):
            total = _flatten_dense_tensors(groups[0])
            if len(places) == 1:
                total = total.clone()  # flattening one tensor gives a view of the gradient itself
            for group in groups[1:]:
                total.add_(_flatten_dense_tensors(group).to(device))
            pieces = _unflatten_dense_tensors(total, groups[0])
        else:
            pieces = list(groups[0])
            for group in groups[1:]:
                pieces = [piece + other.to(device) for piece, other in zip(pieces, group, strict=True)]
        for at, piece in zip(places, pieces, strict=True):
            sums[at] = piece.data
    return sums


def _by_kind(tensors: Sequence[Tensor]) -> list[list[int]]:
    kinds = defaultdict(list)
    for at, tensor in enumerate(tensors):
        kinds[tensor.dtype, tensor.layout].append(at)
    return list(kinds.values())


def _can_join(tensors: Sequence[Tensor]) -> bool:
    # Joining forgets strides: channels_last weights must travel alone to arrive as channels_last. A 1 × 1
    # convolution's are contiguous either way, but their strides still choose the kernel that is used.
    return all(
        tensor.layout is torch.strided
        and tensor.is_contiguous()
        and (tensor.dim() < 4 or tensor.stride(1) == tensor.stride(2) * tensor.size(2))
        for tensor in tensors
    )


def replicate(network: nn.Module, devices: Sequence, detach: bool = False) -> list[nn.Module]:
    """Copies of ``network`` on each of ``devices`` (the first must be where the network is).

    With ``detach=False`` the replicas' parameters are connected to the originals by autograd. As in PyTorch
    they are plain tensors, so ``replica.parameters()`` is empty; buffers of the first replica are the
    originals, which is how BatchNorm keeps its running statistics.
    """
    devices = as_devices(devices)
    if not devices:
        return []
    parameters = list(network.parameters())
    buffers = list(network.buffers())
    learned = [buffer for buffer in buffers if buffer.requires_grad and not detach]
    fixed = [buffer for buffer in buffers if not (buffer.requires_grad and not detach)]
    copies = [{} for _ in devices]
    for tensors, apart in ((parameters, detach), (learned, detach), (fixed, True)):
        for row, found in zip(_broadcast(tensors, devices, apart), copies, strict=True):
            found.update(zip(map(id, tensors), row, strict=True))
    return [_rebuild(network, found) for found in copies]


def _broadcast(tensors: list[Tensor], devices: list[torch.device], detach: bool) -> list[Sequence[Tensor]]:
    if not tensors:
        return [[] for _ in devices]
    if detach:
        return copy_to(tensors, devices, apart=torch.is_grad_enabled())
    flat = Broadcast.apply(devices, *tensors)
    return [flat[at : at + len(tensors)] for at in range(0, len(flat), len(tensors))]


def _rebuild(network: nn.Module, copies: dict[int, Tensor]) -> nn.Module:
    """The module tree of ``network`` with each parameter and buffer replaced by its copy."""
    replicas: dict[int, nn.Module] = {}
    for module in network.modules():
        replicas[id(module)] = _twin(module)
    for module in network.modules():
        replica = replicas[id(module)]
        plain = type(module).__setattr__ is nn.Module.__setattr__
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else replicas[id(child)]
        for name, parameter in module._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
                continue
            copy = copies[id(parameter)]
            replica._former_parameters[name] = copy
            if plain and copy is not parameter:  # without gradients, the first replica's are the originals
                replica.__dict__[name] = copy  # what nn.Module.__setattr__ comes to, at a tenth of its cost
            else:
                setattr(replica, name, copy)
        for name, buffer in module._buffers.items():
            replica._buffers[name] = None if buffer is None else copies[id(buffer)]
    return replicas[id(network)]


def _twin(module: nn.Module) -> nn.Module:
    """A second object with the module's attributes, and without its parameters."""
    kind = type(module)
    if kind._replicate_for_data_parallel is not nn.Module._replicate_for_data_parallel:
        replica = module._replicate_for_data_parallel()  # RNNs, for example, have more to take along
        replica._former_parameters = OrderedDict()
        return replica
    # What nn.Module._replicate_for_data_parallel does, without a call of its __setattr__ for each attribute.
    state = module.__dict__.copy()
    state["_parameters"] = {}
    state["_buffers"] = state["_buffers"].copy()
    state["_modules"] = state["_modules"].copy()
    state["_is_replica"] = True
    state["_former_parameters"] = OrderedDict()  # as in PyTorch, where DDP looks for them
    replica = kind.__new__(kind)
    object.__setattr__(replica, "__dict__", state)
    return replica
