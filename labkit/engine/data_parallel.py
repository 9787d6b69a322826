"""DataParallel: the four verbs in a row, as a function and as a module."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..base.language import say, wrong
from .devices import Device, as_device, as_devices
from .explain import Attributes
from .gather import gather
from .parallel_apply import parallel_apply
from .replicate import check_source, replicate
from .scatter import scatter_kwargs


def data_parallel(
    module: nn.Module,
    inputs: Any,
    device_ids: Sequence[Device] | None = None,
    output_device: Device | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Compute ``module(*inputs, **module_kwargs)`` on several GPUs: scatter, replicate, apply, gather.

    device_ids      the GPUs (default: all); the module must be on the first, the source device.
    output_device   where the result goes (default: the source device; -1: the CPU).
    dim             the dimension that holds the batch.
    """
    if not isinstance(inputs, tuple):
        inputs = (inputs,) if inputs is not None else ()
    devices = _choose(device_ids)
    if not devices:
        raise wrong(
            RuntimeError,
            en="there is no GPU: call the module itself, or labkit.simulate(gpus=2) first",
            zh="没有 GPU：直接调用模块本身，或者先执行 labkit.simulate(gpus=2)",
        )
    output = devices[0] if output_device is None else as_device(output_device, "output_device")
    pieces, keywords = scatter_kwargs(inputs, module_kwargs, devices, dim)
    if len(devices) == 1:
        check_source(module, devices[0])
        return module(*pieces[0], **keywords[0])
    devices = devices[: len(pieces)]
    replicas = replicate(module, devices, detach=not torch.is_grad_enabled())
    return gather(parallel_apply(replicas, pieces, keywords, devices), output, dim)


class DataParallel(nn.DataParallel[nn.Module]):
    """A drop-in for ``torch.nn.DataParallel``: same arguments, same results, clearer errors.

    A subclass, because many scripts ask for an ``nn.DataParallel`` before they take ``.module``; every step is labkit's
    own. ``docs/differences.md`` lists the intended differences.
    """

    module: nn.Module
    device_ids: list[int]
    output_device: int
    src_device_obj: torch.device

    _watched = False  # whether a call has been searched for attributes that are lost

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[Device] | None = None,
        output_device: Device | None = None,
        dim: int = 0,
    ) -> None:
        nn.Module.__init__(self)  # PyTorch's own would choose and check the devices its way
        self.module = module
        self.dim = dim
        devices = _choose(device_ids)
        self.device_ids = [device.index for device in devices]
        if not devices:
            return
        output = devices[0] if output_device is None else as_device(output_device, "output_device")
        self.output_device = -1 if output.type == "cpu" else output.index
        self.src_device_obj = devices[0]
        _warn_imbalance(self.device_ids)
        if len(devices) == 1:
            self.module.to(devices[0])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's output for the whole batch, on ``output_device``."""
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        pieces, keywords = self.scatter(inputs, kwargs, self.device_ids)
        if len(self.device_ids) == 1:
            check_source(self.module, self.src_device_obj)
            return self.module(*pieces[0], **keywords[0])
        replicas = self.replicate(self.module, self.device_ids[: len(pieces)])
        given = None if self._watched else Attributes(replicas[0])
        outputs = self.parallel_apply(replicas, pieces, keywords)
        if given:
            self._watched = True
            given.warn_of_lost()
        return self.gather(outputs, self.output_device)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state dict; also the wrapped module's own, whose keys do not begin with ``module.``."""
        own = self.state_dict().keys()
        # Compare how many keys match with and without the prefix: a layer may be called "module" too.
        bare = len(own & {f"module.{key}" for key in state_dict}) > len(own & state_dict.keys())
        load = self.module.load_state_dict if bare else super().load_state_dict
        return load(state_dict, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            module = self._modules.get("module") if name != "_modules" else None
            if module is None or not hasattr(module, name):
                raise
            raise AttributeError(
                say(
                    en=f"{error}: it is the wrapped {type(module).__name__}'s. Write .module.{name} "
                    "(a method called so runs on the first GPU alone)",
                    zh=f"{error}：它属于被包装的 {type(module).__name__}，要写成 .module.{name}"
                    "（这样调用的方法只在第一块 GPU 上运行）",
                ),
                name=name,
                obj=self,
            ) from None

    # Each step can be overridden, as in PyTorch.

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Device]
    ) -> Any:
        return scatter_kwargs(inputs, kwargs, device_ids, self.dim)

    def replicate(self, module: nn.Module, device_ids: Sequence[Device]) -> list[nn.Module]:
        return replicate(module, device_ids, detach=not torch.is_grad_enabled())

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        return parallel_apply(replicas, inputs, kwargs, self.device_ids[: len(replicas)])

    def gather(self, outputs: Sequence[Any], output_device: Device) -> Any:
        return gather(outputs, output_device, self.dim)


def _choose(device_ids: Sequence[Device] | None) -> list[torch.device]:
    """Return the devices in ``device_ids``; all GPUs for None, none if there is no GPU."""
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    devices = as_devices(range(count) if device_ids is None else device_ids)
    for device in devices:
        if device.type != "cuda" or device.index >= count:
            raise wrong(
                en=f"device_ids: {device} is not one of the {count} GPUs, cuda:0 to cuda:{count - 1}",
                zh=f"device_ids：{device} 不在这 {count} 块 GPU 之中（cuda:0 到 cuda:{count - 1}）",
            )
    if len(set(devices)) != len(devices):
        listed = [device.index for device in devices]
        raise wrong(
            en=f"device_ids: each GPU may be named once, got {listed}",
            zh=f"device_ids：每块 GPU 只能写一次，现在是 {listed}",
        )
    return devices


def _warn_imbalance(device_ids: Sequence[int]) -> None:
    """Warn as PyTorch does if one GPU has less than 75 % of another's memory or multiprocessors."""
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
