"""replicate: copy a module to several devices, so that gradients reach the original.

Corresponds to ``torch/nn/parallel/replicate.py``; :class:`.functions.Broadcast` copies the weights.
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
from .functions import Broadcast, apply, by_device, copy_to, groups_of


def replicate(network: nn.Module, devices: Sequence[Device], detach: bool = False) -> list[nn.Module]:
    """Copy ``network`` to each of ``devices``; the first is the source device, where the network must be.

    With ``detach=False`` the replicas' parameters are connected to the originals by autograd. As in PyTorch
    they are plain tensors, so ``replica.parameters()`` is empty; buffers of the first replica are the
    originals, which is how BatchNorm keeps its running statistics.
    """
    devices = as_devices(devices)
    if not devices:
        return []
    modules = list(network.modules())
    parameters, buffers = _collect_tensors(modules, "_parameters"), _collect_tensors(modules, "_buffers")
    if any(map(is_lazy, (*parameters, *buffers))):
        raise RuntimeError(
            # PyTorch's own words, and what to do.
            "Modules with uninitialized parameters can't be used with `DataParallel`"
            + say(
                en=f": {type(network).__name__} has lazy modules. Run a batch through the module itself first",
                zh=f"：{type(network).__name__} 里有 lazy 模块。先用一个批次运行一次模块本身",
            )
        )
    if any(tensor.device != devices[0] for tensor in chain(parameters, buffers)):
        check_source(network, devices[0])
    learned = [] if detach else [buffer for buffer in buffers if buffer.requires_grad]
    learned_ids = set(map(id, learned))
    fixed = [buffer for buffer in buffers if id(buffer) not in learned_ids]
    # A buffer that does not learn never goes through autograd: the first replica's must be the very tensor, and a
    # Function would return an alias of it.
    parts = [
        _broadcast(parameters, devices, detach),
        _broadcast(learned, devices, False),
        _broadcast(fixed, devices, True),
    ]
    copies = [list(chain(*part)) for part in zip(*parts, strict=True)]
    return _build_replicas(modules, [*parameters, *learned, *fixed], copies, detach)


def _collect_tensors(modules: list[nn.Module], kind: str) -> list[Tensor]:
    """Return the parameters or buffers of ``modules``, each once: a weight that two modules share is copied once."""
    tensors = (tensor for module in modules for tensor in getattr(module, kind).values())
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())


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
    return by_device(apply(Broadcast, devices, *tensors), devices)


def _build_replicas(
    modules: list[nn.Module], tensors: list[Tensor], copies: list[list[Tensor]], detached: bool
) -> list[nn.Module]:
    """Build the tree of ``modules`` (its root first) once for each of ``copies`` of its ``tensors``.

    Plans shared by all replicas are made once. If ``detached``, the first of ``copies`` are the originals.
    """
    places = {id(one): at for every in (modules, tensors) for at, one in enumerate(every)}
    places[id(None)] = -1  # an unset place refers to the None appended to each list
    plans = [_Plan(module, places) for module in modules]
    parents = [(at, plan.children) for at, plan in enumerate(plans) if plan.children]
    networks = []
    for number, own in enumerate(copies):
        given, original = [*own, None], detached and number == 0
        replicas = [plan.copy_module(given, original) for plan in plans]
        found = [*replicas, None]
        for at, children in parents:
            named = vars(replicas[at])["_modules"]
            for name, child in children:
                named[name] = found[child]
        networks.append(replicas[0])
    return networks


class _Plan:
    """A plan to copy a module, with the result of ``nn.Module._replicate_for_data_parallel``.

    PyTorch's method spends most of its time in ``nn.Module.__setattr__``; the plan sets attributes directly.

    children   (name, index) of each child; the index is that of the module in the list of all modules.
    """

    def __init__(self, module: nn.Module, places: dict[int, int]) -> None:
        self._module, self._kind = module, type(module)
        self.children, self._parameters, self._buffers = (
            [(name, places[id(found)]) for name, found in named.items()]
            for named in (module._modules, module._parameters, module._buffers)
        )
        # RNNs and scripted modules, for example, override the method to copy further state.
        self._own = self._kind._replicate_for_data_parallel is not nn.Module._replicate_for_data_parallel
        self._plain = self._kind.__setattr__ is nn.Module.__setattr__
        self._state: dict[str, Any] = {} if self._own else {**vars(module), "_is_replica": True}

    def copy_module(self, copies: list[Tensor | None], detached: bool) -> nn.Module:
        """Return a copy of the module without children.

        copies     all tensors of this replica; the plan knows the index of each parameter and buffer.
        detached   for the first replica of a forward without gradients, whose tensors are the original parameters.
        """
        if self._own:
            replica: nn.Module = self._module._replicate_for_data_parallel()
            state = vars(replica)
        else:
            replica, state = self._kind.__new__(self._kind), self._state.copy()
            state["_buffers"], state["_modules"] = {}, {}
            object.__setattr__(replica, "__dict__", state)
        named = state["_buffers"]
        for name, at in self._buffers:
            named[name] = copies[at]
        named = state["_parameters"] = NoParameters() if self._parameters or self._own else {}
        former: dict[str, Tensor] = {}
        state["_former_parameters"] = former  # as in PyTorch, where DDP looks for them
        for name, at in self._parameters:
            copy = copies[at]
            if copy is None:
                named[name] = None
                continue
            former[name] = copy
            if detached:
                # Without gradients the first replica's parameters are the original nn.Parameters. PyTorch's setattr
                # registers them, so only the first replica has parameters.
                named[name] = copy
            elif self._plain:
                state[name] = copy  # as nn.Module.__setattr__ does with a tensor that is no parameter
            else:
                setattr(replica, name, copy)
        return replica
