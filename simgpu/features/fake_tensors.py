"""Fake tensors (``FakeTensorMode``) on simulated GPUs.

Fake tensors have no values and know their device, so calls go to their mode unchanged. As on a computer without CUDA,
the mode must not touch a GPU (torch/_subclasses/fake_tensor.py, avoid_device_init). Gradients are refused: autograd
needs C++'s guard of the device, and a build without CUDA may end the process (torch/csrc/autograd/input_metadata.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode
from torch.utils._device import _device_constructors

from labkit.base.language import wrong
from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from .. import hooks
from ..handlers import Handler, wraps_handlers
from ..ops.moves import OPERATORS_THAT_MOVE
from ..stack import fake_mode
from ..state.current_machine import call_with_machine, machine_in_use, replaces
from ..state.errors import NotSimulated
from ..state.gpu import Gpu, TheMachine
from ..state.placement import gpu_of, name_of

hooks.places_itself.add(lambda _: fake_mode() is not None)


class NoGradient(NotSimulated, NotImplementedError):
    """Error for a gradient of a fake tensor on a simulated GPU."""


def check_gradient(requires_grad: Any, gpu: Gpu | None) -> None:
    """Refuse a gradient of a fake tensor on ``gpu``: autograd would need C++'s guard of CUDA."""
    if requires_grad and gpu is not None and torch.is_grad_enabled():
        raise wrong(
            NoGradient,
            en=f"a fake tensor on {name_of(gpu)}, a GPU simulated by labkit, has no gradients (FakeTensorMode): "
            "work under torch.no_grad(), make it with device='cpu' or 'meta', or close the machine",
            zh=f"{name_of(gpu)} 是 labkit 模拟的 GPU，上面的 fake 张量没有梯度（FakeTensorMode）："
            "请在 torch.no_grad() 下操作，或者用 device='cpu' 或 'meta' 创建，或者关闭机器",
        )


@wraps_handlers(
    Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.type_as, *OPERATORS_THAT_MOVE,
    *_device_constructors(), torch.from_numpy, torch.frombuffer, torch.from_file,
)  # fmt: skip
def _place_fake_tensor(
    go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make or move a fake tensor by the name of the simulated GPU."""
    if fake_mode() is None:
        return go_on(mode, func, args, kwargs)
    moved = func in (Tensor.to, Tensor.cuda) and len(args) > 1
    device = args[1] if moved and isinstance(args[1], (str, int, torch.device)) else kwargs.get("device")
    if device is None and func is Tensor.cuda:
        device = "cuda"
    gpu = None if device is None else mode.machine.resolve(device)
    if gpu is not None:
        check_gradient(kwargs.get("requires_grad") or any(t.requires_grad for t in tensors_in(args[:1])), gpu)
        kwargs = {**kwargs, "device": gpu.device}
        if moved or func is Tensor.cuda:
            func, args = Tensor.to, (args[0], gpu.device, *args[2:])
            del kwargs["device"]
    return func(*args, **kwargs)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Tell FakeTensorMode that there is no GPU to touch."""
    avoid: Any = FakeTensorMode.avoid_device_init

    def avoids(self: Any) -> bool:
        return machine_in_use() is not None or avoid.fget(self)

    yield Patch(FakeTensorMode, "avoid_device_init", property(avoids))


@replaces(FakeTensorConverter, "from_real_tensor")
def _from_real(
    machine: TheMachine, real: Any, self: Any, fake_mode: Any, t: Any, *args: Any, **kwargs: Any
) -> Any:
    check_gradient(t.requires_grad, gpu_of(t))
    # The machine's mode may be off here.
    return call_with_machine(real, self, fake_mode, t, *args, **kwargs)


@replaces(FakeTensor, "requires_grad_")
def _require(machine: TheMachine, real: Any, self: Any, requires_grad: bool = True) -> Any:
    check_gradient(requires_grad, machine.resolve(self.fake_device))
    return real(self, requires_grad)


@hooks.backward_contexts.add
@contextmanager
def _check_fake_backward(machine: TheMachine, outputs: Any) -> Iterator[None]:
    """Refuse a backward pass through fake tensors on a GPU: C++ would end the process."""
    nodes = [one.grad_fn for one in outputs if isinstance(one, FakeTensor)] if machine.gpus else []
    visited: set[Any] = {node for node in nodes if node is not None}
    pending = list(visited)
    while pending:
        node = pending.pop()
        for data in node._input_metadata:
            if data.device.type == "cuda":
                check_gradient(True, machine.resolve(data.device))
        new = {after for after, _ in node.next_functions if after is not None} - visited
        visited |= new
        pending += new
    yield
