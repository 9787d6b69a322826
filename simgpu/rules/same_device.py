"""Rules for pairs of tensors on the same device: gradient and tensor, optimizer state and parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..state.gpu import Gpu
from ..state.placement import gpu_of, name_of, place

ANYWHERE = object()  # in a list of GPUs: any device will do


def check_assigned_grad(tensor: Tensor, grad: Tensor | None = None) -> None:
    """Check ``tensor.grad = grad`` (``torch/csrc/autograd/python_variable.cpp``, ``THPVariable_set_grad``)."""
    if isinstance(grad, Tensor) and gpu_of(grad) is not gpu_of(tensor):
        mine, its = torch.device(place(tensor)), torch.device(place(grad))
        phrase, name = "located on device with index", "index"
        if mine.type != its.type:
            phrase, name = "with device type", "type"
        raise RuntimeError(
            f"attempting to assign a gradient {phrase} '{getattr(its, name)}' to a tensor {phrase} "
            f"'{getattr(mine, name)}'. Please ensure that the gradient and the tensor are on the same device"
        )


def check_seed(output: Any, grad: Any) -> None:
    """Check the gradient that backward starts from (``torch/csrc/autograd/engine.cpp``, ``validate_outputs``)."""
    if not isinstance(grad, Tensor) or not isinstance(output, Tensor):
        return
    at = gpu_of(grad)
    if at is None and grad.numel() == 1:
        return  # torch makes a single value below the mode, and moves it
    home = gpu_of(output)
    if at is not home and (home is not None or grad.numel() != 1):
        function = output.grad_fn.name() if output.grad_fn else "AccumulateGrad"
        _refuse_gradient(function, 0, home, at)


def check_returned(function: str, grads: Iterable[Any], homes: Iterable[Any]) -> None:
    """Check, as the engine does, that a Function's backward returns each gradient on the device of its input."""
    for index, (grad, home) in enumerate(zip(grads, homes, strict=False)):
        if isinstance(grad, Tensor) and home is not ANYWHERE and gpu_of(grad) is not home and grad.dim():
            _refuse_gradient(function, index, home, gpu_of(grad))


def _refuse_gradient(function: str, index: int, home: Gpu | None, at: Gpu | None) -> None:
    raise RuntimeError(
        f"Function {function} returned an invalid gradient at index {index} - expected device {name_of(home)} "
        f"but got {name_of(at)}"
    )


def check_generator(generator: Any, gpu: Gpu | None) -> None:
    """Check the device type of a generator (``aten/src/ATen/core/Generator.h``, ``check_generator``)."""
    if isinstance(generator, torch.Generator) and (generator.device.type == "cpu") != (gpu is None):
        raise RuntimeError(
            f"Expected a '{'cpu' if gpu is None else 'cuda'}' device type for generator but found "
            f"'{generator.device.type}'"
        )


def check_new_storage(tensor: Tensor, source: Any) -> None:
    """Check ``tensor.set_(source)``, a tensor or a storage (``aten/src/ATen/native/Resize.h``, ``checkSetStorage``)."""
    source = getattr(source, "_untyped_storage", source)  # a typed storage warns when asked for its device
    if source.device != tensor.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage on different device '
            f'"{source.device}".  This is no longer allowed; the devices must match.'
        )


def check_optimizer_entry(entry: Sequence[Tensor | None], home: Gpu | None) -> None:
    """Require a parameter, gradient and state on the same device, except for a step count on the host.

    ``aten/src/ATen/native/ForeachUtils.h``, ``_group_tensors_by_first_tensors_device_and_dtype``.
    """
    for tensor in entry:
        if tensor is not None and gpu_of(tensor) is not home and (gpu_of(tensor) is not None or tensor.dim()):
            raise RuntimeError(
                "Tensors of the same index must be on the same device and the same dtype except `step` "
                "tensors that can be CPU and float32/64 notwithstanding"
            )
