"""Fake tensors (``FakeTensorMode``) have no simulated GPU to be on, and say so.

They tell C++ the device that they stand for. Autograd then asks for that device's guard, which a build without CUDA
does not have: it would end the process (torch/csrc/autograd/input_metadata.cpp).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter

from ...base.patches import Patch
from ..in_use import machine_in_use
from ..state.gpu import Gpu
from ..state.placement import gpu_of, name_of

if TYPE_CHECKING:
    from ..machine import Machine

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_current = torch._C._get_dispatch_mode


class NoFake(NotImplementedError):
    """A fake tensor was to be on a simulated GPU."""


def check_fake(gpu: Gpu | None) -> None:
    """That nothing fake is made on ``gpu``."""
    if gpu is not None and _current(_FAKE) is not None:
        _refuse(name_of(gpu))


def _refuse(device: str) -> None:
    raise NoFake(
        f"a fake tensor cannot be on {device}, a GPU simulated by labkit: make it with device='cpu' or 'meta' "
        "(FakeTensorMode), or close the machine"
    )


def patches(machine: Machine) -> Iterator[Patch]:
    """What makes a fake tensor of a real one, and gives it to autograd."""
    convert, require = FakeTensorConverter.from_real_tensor, FakeTensor.requires_grad_

    @functools.wraps(convert)
    def from_real_tensor(self: Any, fake_mode: Any, t: Any, *args: Any, **kwargs: Any) -> Any:
        gpu = gpu_of(t) if machine_in_use() is not None and t.requires_grad else None
        if gpu is not None:
            _refuse(name_of(gpu))
        return convert(self, fake_mode, t, *args, **kwargs)

    def requires_grad_(self: Any, requires_grad: bool = True) -> Any:
        if requires_grad and machine_in_use() is not None and self.fake_device.type == "cuda":
            _refuse(str(self.fake_device))
        return require(self, requires_grad)

    yield Patch(FakeTensorConverter, "from_real_tensor", from_real_tensor)
    yield Patch(FakeTensor, "requires_grad_", requires_grad_)
