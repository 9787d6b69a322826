"""``torch.nested.nested_tensor`` in its strided layout: it takes the tensors to the first one's device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...base.patches import Patch
from ...base.tree import tensors_in
from .. import hooks
from ..state.gpu import TheMachine
from ..state.in_use import machine_in_use
from ..state.placement import gpu_of, put


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The function of C++ that makes nested tensors."""
    real = torch._C._nested.nested_tensor

    @functools.wraps(real)
    def nested_tensor(tensor_list: Any, *, device: Any = None, **options: Any) -> Tensor:
        tensors = tensors_in(tensor_list)
        if machine_in_use() is not machine:
            return real(tensor_list, device=device, **options)
        target = machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
        if device is not None:
            device = machine.real(target, device)
        nested: Tensor = real(tensor_list, device=device, **options)
        if target is not None:
            put(nested, target)
        return nested

    yield Patch(torch._C._nested, "nested_tensor", nested_tensor)
