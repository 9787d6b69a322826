"""replicate: a module copied to several devices, so that gradients come back to the original.

The copy is :class:`Broadcast`; its backward is the sum of the replicas' gradients, :class:`ReduceAdd`, and
each is the other's backward, so that second derivatives work too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Function
from torch.cuda.comm import broadcast_coalesced
from torch.nn.parameter import is_lazy

from .devices import as_devices
from .lost import NoParameters


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
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, *ReduceAdd.apply(ctx.devices, *grads)
        return None, *sum_on(ctx.devices[0], _rows(grads, ctx.devices))


class ReduceAdd(Function):
    """Gradients from each of ``devices``, device by device, summed on the first."""

    @staticmethod
    def forward(ctx, devices: list[torch.device], *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.devices = devices
        return tuple(sum_on(devices[0], _rows(grads, devices)))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *Broadcast.apply(ctx.devices, *grads)


def _rows(tensors: Sequence[Tensor], devices: Sequence[torch.device]) -> list[Sequence[Tensor]]:
    """What came device by device, a row for each device."""
    count = len(tensors) // len(devices)
    return [tensors[at : at + count] for at in range(0, len(tensors), count)]


def copy_to(tensors: Sequence[Tensor], devices: Sequence[torch.device]) -> list[list[Tensor]]:
    """``tensors`` on each device: the originals on the first, copies on the others.

    Those that can travel together do, in PyTorch's own coalesced broadcast. Each copy has a version counter of
    its own: writing to one in place must not look like a change of its neighbours to a graph that saved them.
    """
    rows = [list(tensors)] + [[None] * len(tensors) for _ in devices[1:]]
    # Complex numbers would come back as pairs of real ones.
    together = [at for at, one in enumerate(tensors) if _can_join([one]) and not one.is_complex()]
    if together and len(devices) > 1:
        sent = broadcast_coalesced([tensors[at] for at in together], [device.index for device in devices])
        for row, copies in zip(rows[1:], sent[1:], strict=True):
            for at, copy in zip(together, copies, strict=True):
                row[at] = copy
    for at in set(range(len(tensors))).difference(together):
        for device, row in zip(devices[1:], rows[1:], strict=True):
            row[at] = tensors[at].to(device).data
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
        total = _joined_sum(device, groups)
        pieces = (
            _separate_sum(device, groups) if total is None else _unflatten_dense_tensors(total, groups[0])
        )
        for at, piece in zip(places, pieces, strict=True):
            sums[at] = piece.data
    return sums


def _joined_sum(device: torch.device, groups: list[list[Tensor]]) -> Tensor | None:
    """The sum of the groups, each flattened into one tensor; None if they cannot be joined."""
    if not _can_join(groups[0]):
        return None
    total = _flatten_dense_tensors(groups[0])
    if len(groups[0]) == 1:
        total = total.clone()  # flattening one tensor gives a view of the gradient itself
    for group in groups[1:]:
        if any(tensor.layout is not torch.strided for tensor in group):
            return None
        total.add_(_flatten_dense_tensors(group).to(device))
    return total


def _separate_sum(device: torch.device, groups: list[list[Tensor]]) -> list[Tensor]:
    sums = groups[0]
    for group in groups[1:]:
        sums = [piece + other.to(device) for piece, other in zip(sums, group, strict=True)]
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
    if any(map(is_lazy, (*parameters, *buffers))):
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with `DataParallel`: "
            f"{type(network).__name__} has lazy modules. Run a batch through the module itself first"
        )
    learned = [buffer for buffer in buffers if buffer.requires_grad and not detach]
    fixed = [buffer for buffer in buffers if not (buffer.requires_grad and not detach)]
    copies = [{} for _ in devices]
    for tensors, apart in ((parameters, detach), (learned, detach), (fixed, True)):
        for row, found in zip(_broadcast(tensors, devices, apart), copies, strict=True):
            found.update(zip(map(id, tensors), row, strict=True))
    return _rebuild(network, copies)


def _broadcast(tensors: list[Tensor], devices: list[torch.device], detach: bool) -> list[Sequence[Tensor]]:
    if not tensors:
        return [[] for _ in devices]
    if detach:
        return copy_to(tensors, devices)
    flat = Broadcast.apply(devices, *tensors)
    return [flat[at : at + len(tensors)] for at in range(0, len(flat), len(tensors))]


def _rebuild(network: nn.Module, rows: list[dict[int, Tensor]]) -> list[nn.Module]:
    """The module tree of ``network`` once for each of ``rows``, with parameters and buffers replaced.

    A row gives the copy that stands for the tensor with a given ``id``. What all replicas have in common is
    looked up once.
    """
    modules = list(network.modules())
    places = {id(module): at for at, module in enumerate(modules)}
    plans = [
        (
            module,
            [(name, None if child is None else places[id(child)]) for name, child in module._modules.items()],
            [(name, None if tensor is None else id(tensor)) for name, tensor in module._parameters.items()],
            [(name, None if tensor is None else id(tensor)) for name, tensor in module._buffers.items()],
        )
        for module in modules
    ]
    networks = []
    for copies in rows:
        replicas = [_twin(module) for module in modules]
        for replica, (module, children, parameters, buffers) in zip(replicas, plans, strict=True):
            state = replica.__dict__
            for name, at in children:
                state["_modules"][name] = None if at is None else replicas[at]
            for name, tensor in buffers:
                state["_buffers"][name] = None if tensor is None else copies[tensor]
            for name, tensor in parameters:
                if tensor is None:
                    state["_parameters"][name] = None
                    continue
                copy = state["_former_parameters"][name] = copies[tensor]
                if id(copy) == tensor:
                    state["_parameters"][name] = (
                        copy  # without gradients, the first replica's are the originals
                    )
                elif type(module).__setattr__ is nn.Module.__setattr__:
                    state[name] = copy  # what nn.Module.__setattr__ comes to, at a tenth of its cost
                else:
                    setattr(replica, name, copy)
        networks.append(replicas[0])
    return networks


def _twin(module: nn.Module) -> nn.Module:
    """A second object with the module's attributes, and without its parameters."""
    kind = type(module)
    if kind._replicate_for_data_parallel is not nn.Module._replicate_for_data_parallel:
        replica = module._replicate_for_data_parallel()  # RNNs, for example, have more to take along
        replica._former_parameters = {}
        replica._parameters = NoParameters()
        return replica
    # What nn.Module._replicate_for_data_parallel does, without a call of its __setattr__ for each attribute.
    replica = kind.__new__(kind)
    state = replica.__dict__
    state.update(module.__dict__)
    state["_parameters"] = NoParameters() if module._parameters else {}
    state["_buffers"] = state["_buffers"].copy()
    state["_modules"] = state["_modules"].copy()
    state["_is_replica"] = True
    state["_former_parameters"] = {}  # as in PyTorch, where DDP looks for them
    return replica
