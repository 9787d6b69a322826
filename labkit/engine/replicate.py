"""replicate: a module copied to several devices, so that gradients come back to the original.

It answers to ``torch/nn/parallel/replicate.py``; the copying of the weights is :class:`.functions.Broadcast`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..base.language import say
from .devices import Device, as_devices
from .explain import NoParameters
from .functions import Broadcast, apply, copy_to, groups_of


def replicate(network: nn.Module, devices: Sequence[Device], detach: bool = False) -> list[nn.Module]:
    """Copies of ``network`` on each of ``devices``; the first is the source device, where the network must be.

    With ``detach=False`` the replicas' parameters are connected to the originals by autograd. As in PyTorch
    they are plain tensors, so ``replica.parameters()`` is empty; buffers of the first replica are the
    originals, which is how BatchNorm keeps its running statistics.
    """
    devices = as_devices(devices)
    if not devices:
        return []
    # Each once: a weight that two modules share is copied once.
    parameters, buffers = list(network.parameters()), list(network.buffers())
    if any(map(is_lazy, (*parameters, *buffers))):
        raise RuntimeError(
            # PyTorch's own words, and what to do.
            "Modules with uninitialized parameters can't be used with `DataParallel`"
            + say(
                en=f": {type(network).__name__} has lazy modules. Run a batch through the module itself first",
                zh=f"：{type(network).__name__} 里有 lazy 模块。先用一个批次运行一次模块本身",
            )
        )
    check_source(network, devices[0])
    learned = [] if detach else [buffer for buffer in buffers if buffer.requires_grad]
    learned_ids = set(map(id, learned))
    fixed = [buffer for buffer in buffers if id(buffer) not in learned_ids]
    # A buffer that does not learn never goes through autograd: the first replica's must be the very tensor, and a
    # Function would return an alias of it.
    rows = [
        _broadcast(parameters, devices, detach),
        _broadcast(learned, devices, False),
        _broadcast(fixed, devices, True),
    ]
    copies = [list(chain(*row)) for row in zip(*rows, strict=True)]
    return _rebuilt(list(network.modules()), [*parameters, *learned, *fixed], copies)


def check_source(network: nn.Module, source: torch.device) -> None:
    """Raise PyTorch's own error, with the tensor's name, if one of the network's tensors is not on ``source``."""
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        if tensor.device != source:
            raise RuntimeError(
                f"module must have its parameters and buffers on device {source} (device_ids[0]) but found one "
                f"of them on device: {tensor.device}"
                + say(
                    en=f" ({name!r}). Call .to({str(source)!r}) on the module first",
                    zh=f"（{name!r}）。先对模块调用 .to({str(source)!r})",
                )
            )


def _broadcast(
    tensors: Sequence[Tensor], devices: list[torch.device], detach: bool
) -> Sequence[Sequence[Tensor]]:
    if not tensors:
        return [[] for _ in devices]
    if detach:
        return copy_to(tensors, devices, groups_of(tensors))
    flat = apply(Broadcast, devices, *tensors)
    return [flat[at : at + len(tensors)] for at in range(0, len(flat), len(tensors))]


def _rebuilt(modules: list[nn.Module], tensors: list[Tensor], rows: list[list[Tensor]]) -> list[nn.Module]:
    """The tree of ``modules`` (its root first) once for each of ``rows``, which stand for its ``tensors``.

    What all replicas have in common is looked up once, not for each of them.
    """
    places = {id(found): at for found_all in (modules, tensors) for at, found in enumerate(found_all)}
    plans = [_Plan(module, places) for module in modules]
    networks = []
    for row in rows:
        replicas = [plan.twin() for plan in plans]
        for replica, plan in zip(replicas, plans, strict=True):
            plan.fill(replica, replicas, row)
        networks.append(replicas[0])
    return networks


class _Plan:
    """How one module is copied: what ``nn.Module._replicate_for_data_parallel`` and replicate's loops come to.

    Written out, because ``nn.Module.__setattr__`` for each attribute of each replica is most of PyTorch's time.
    """

    __slots__ = ("_buffers", "_children", "_kind", "_module", "_own", "_parameters", "_plain", "_state")

    def __init__(self, module: nn.Module, places: dict[int, int]) -> None:
        self._module, self._kind = module, type(module)
        self._children = [(n, None if m is None else places[id(m)]) for n, m in module._modules.items()]
        self._parameters = [
            (n, t, None if t is None else places[id(t)]) for n, t in module._parameters.items()
        ]
        self._buffers = [(n, None if t is None else places[id(t)]) for n, t in module._buffers.items()]
        # RNNs and scripted modules, for example, have more to take along, and say how.
        self._own = self._kind._replicate_for_data_parallel is not nn.Module._replicate_for_data_parallel
        self._plain = self._kind.__setattr__ is nn.Module.__setattr__
        self._state: dict[str, Any] = {} if self._own else {**vars(module), "_is_replica": True}

    def twin(self) -> nn.Module:
        """A second object with the module's attributes, and without its parameters."""
        if self._own:
            own: nn.Module = self._module._replicate_for_data_parallel()
            own._parameters = NoParameters()
            own._former_parameters = {}  # type: ignore[assignment]  # no module, to torch's types
            return own
        replica: nn.Module = self._kind.__new__(self._kind)
        state = self._state.copy()
        state["_parameters"] = NoParameters() if self._parameters else {}
        state["_buffers"], state["_modules"] = {}, {}
        state["_former_parameters"] = {}  # as in PyTorch, where DDP looks for them
        object.__setattr__(replica, "__dict__", state)
        return replica

    def fill(self, replica: nn.Module, replicas: list[nn.Module], copies: list[Tensor]) -> None:
        """Give ``replica`` its children, of ``replicas``, and its tensors, of ``copies``."""
        state = vars(replica)
        for name, at in self._children:
            state["_modules"][name] = None if at is None else replicas[at]
        for name, at in self._buffers:
            state["_buffers"][name] = None if at is None else copies[at]
        for name, original, at in self._parameters:
            if at is None:
                state["_parameters"][name] = None
                continue
            copy = state["_former_parameters"][name] = copies[at]
            if copy is original:
                # Without gradients the first replica's parameters are the originals, and nn.Parameters: PyTorch's
                # setattr registers them, so that this replica alone has parameters.
                state["_parameters"][name] = copy
            elif self._plain:
                state[name] = copy  # what nn.Module.__setattr__ comes to with a tensor that is no parameter
            else:
                setattr(replica, name, copy)
