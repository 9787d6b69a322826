"""DataParallel: the four verbs in a row, as a function and as a module."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain

import torch
from torch import nn

from .devices import as_device, as_devices
from .lost import Watch
from .parallel_apply import parallel_apply
from .replicate import replicate
from .scatter_gather import gather, scatter_kwargs


def data_parallel(module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
    """``module(*inputs, **module_kwargs)`` computed on several GPUs: scatter, replicate, apply, gather.

    device_ids      the GPUs (default: all); the module must be on the first.
    output_device   where the result goes (default: the first GPU; -1: the CPU).
    dim             the dimension that holds the batch.
    """
    if not isinstance(inputs, tuple):
        inputs = (inputs,) if inputs is not None else ()
    devices = _choose(device_ids)
    if not devices:
        raise RuntimeError("there is no GPU: call the module itself, or labkit.simulate(gpus=2) first")
    output = devices[0] if output_device is None else as_device(output_device, "output_device")
    check_home(module, devices[0])
    inputs, module_kwargs = scatter_kwargs(inputs, module_kwargs, devices, dim)
    if len(devices) == 1:
        return module(*inputs[0], **module_kwargs[0])
    devices = devices[: len(inputs)]
    replicas = replicate(module, devices, detach=not torch.is_grad_enabled())
    outputs = parallel_apply(replicas, inputs, module_kwargs, devices)
    return gather(outputs, output, dim)


class DataParallel(nn.Module):
    """A drop-in for ``torch.nn.DataParallel``: same arguments, same results, clearer errors.

    Where it differs on purpose is listed in :mod:`labkit.engine.differences`.
    """

    _watched = False  # whether a call has been searched for attributes that are lost

    def __init__(
        self, module: nn.Module, device_ids: Sequence | None = None, output_device=None, dim: int = 0
    ):
        super().__init__()
        self.module = module
        self.dim = dim
        devices = _choose(device_ids)
        self.device_ids = [device.index for device in devices]
        if not devices:
            return
        self.output_device = (
            devices[0] if output_device is None else as_device(output_device, "output_device")
        )
        _warn_imbalance(self.device_ids)
        if len(devices) == 1:
            self.module.to(devices[0])

    def forward(self, *inputs, **kwargs):
        """The module's output for the whole batch, on ``output_device``."""
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        devices = as_devices(self.device_ids)
        check_home(self.module, devices[0])
        inputs, kwargs = self.scatter(inputs, kwargs, self.device_ids)
        if len(devices) == 1:
            return self.module(*inputs[0], **kwargs[0])
        replicas = self.replicate(self.module, self.device_ids[: len(inputs)])
        watch = None if self._watched else Watch(replicas[0])
        outputs = self.parallel_apply(replicas, inputs, kwargs)
        if watch:
            self._watched = True
            watch.report()
        return self.gather(outputs, self.output_device)

    def load_state_dict(self, state_dict, *args, **kwargs):
        """Also takes the wrapped module's own ``state_dict``, whose keys do not begin with ``module.``."""
        own = self.state_dict().keys()
        bare = own.isdisjoint(state_dict) and not own.isdisjoint(f"module.{key}" for key in state_dict)
        return (self.module if bare else super()).load_state_dict(state_dict, *args, **kwargs)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            module = self._modules.get("module") if name != "_modules" else None
            if module is None or not hasattr(module, name):
                raise
            raise AttributeError(
                f"{error}: it is the wrapped {type(module).__name__}'s. Write .module.{name} "
                "(a method called so runs on the first GPU alone)",
                name=name,
                obj=self,
            ) from None

    # Each step can be overridden, as in PyTorch.

    def scatter(self, inputs, kwargs, device_ids):
        return scatter_kwargs(inputs, kwargs, device_ids, self.dim)

    def replicate(self, module, device_ids):
        return replicate(module, device_ids, detach=not torch.is_grad_enabled())

    def parallel_apply(self, replicas, inputs, kwargs):
        return parallel_apply(replicas, inputs, kwargs, self.device_ids[: len(replicas)])

    def gather(self, outputs, output_device):
        return gather(outputs, output_device, self.dim)


def _choose(device_ids) -> list[torch.device]:
    """The devices meant by ``device_ids``; all GPUs for None, none if there is no GPU."""
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    devices = as_devices(range(count) if device_ids is None else device_ids)
    for device in devices:
        if device.type != "cuda" or device.index >= count:
            raise ValueError(
                f"device_ids: {device} is not one of the {count} GPUs, cuda:0 to cuda:{count - 1}"
            )
    if len(set(devices)) != len(devices):
        raise ValueError(
            f"device_ids: each GPU may be named once, got {[device.index for device in devices]}"
        )
    return devices


def check_home(module: nn.Module, home: torch.device) -> None:
    """Raise PyTorch's own error, with the tensor's name, if part of ``module`` is not on ``home``."""
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.device != home:
            raise RuntimeError(
                f"module must have its parameters and buffers on device {home} (device_ids[0]) but found one "
                f"of them on device: {tensor.device} ({name!r}). Call .to({str(home)!r}) on the module first"
            )


def _warn_imbalance(device_ids: Sequence[int]) -> None:
    """PyTorch's warning: one GPU has less than 75 % of another's memory or multiprocessors."""
    properties = [torch.cuda.get_device_properties(index) for index in device_ids]
    for name in ("total_memory", "multi_processor_count"):
        values = [getattr(found, name) for found in properties]
        if min(values) < 0.75 * max(values):
            small, large = device_ids[values.index(min(values))], device_ids[values.index(max(values))]
            warnings.warn(
                f"There is an imbalance between your GPUs. You may want to exclude GPU {small} which has less "
                f"than 75% of the memory or cores of GPU {large}. You can do so by setting the device_ids "
                "argument to DataParallel, or by setting the CUDA_VISIBLE_DEVICES environment variable.",
                stacklevel=3,
            )
            return
