"""The function mode through which torch sees the simulated GPUs.

Every call of torch's Python API passes :meth:`MachineMode.__torch_function__`. Most take the short path:
see that all tensors are on one device, call the function, mark what it made as living there too. The
functions for which that is not true have a handler in :data:`HANDLERS`, filled by the modules beside this.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .gpu import HOST, Gpu
from .isolation import run_mixed
from .placement import gpu_of, put, put_all, tensors_in

_UNSEEN = object()
_storage = Tensor.untyped_storage

# function -> handler(mode, func, args, kwargs). Getters of C classes are fresh objects at every access
# but equal ones, so a dict finds them.
HANDLERS: dict[object, Callable] = {}


def handles(*functions: object) -> Callable:
    """Register the decorated function as the handler of ``functions`` (None entries are left out)."""

    def register(handler: Callable) -> Callable:
        HANDLERS.update((function, handler) for function in functions if function is not None)
        return handler

    return register


class MachineMode(TorchFunctionMode):
    """Shows torch the GPUs of one machine."""

    def __init__(self, machine) -> None:
        self.machine = machine

    def __torch_function__(self, func, types, args=(), kwargs=None):
        # This is the path of every operation: no call, loop or allocation that is not needed.
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs or {})
        home = _UNSEEN
        try:
            for arg in args:
                if isinstance(arg, Tensor):
                    gpu = _storage(arg)._labkit_mark.gpu
                    if gpu is not home:
                        if home is not _UNSEEN:
                            return self.general(func, args, kwargs)
                        home = gpu
                elif arg.__class__ is tuple or arg.__class__ is list:
                    return self.general(func, args, kwargs)
        except (NotImplementedError, RuntimeError):
            return self.general(func, args, kwargs)
        if kwargs:
            return self.general(func, args, kwargs)
        result = func(*args)
        if home is not _UNSEEN and home is not None:
            if home.machine is not self.machine:
                raise stale(home, self.machine)
            if isinstance(result, Tensor):
                try:
                    storage = _storage(result)
                    if storage._labkit_mark is HOST:
                        home.put(storage)
                except (NotImplementedError, RuntimeError):
                    put(result, home)
            elif result.__class__ not in _PLAIN:
                put_all(result, home)
        return result

    def retire(self) -> None:
        """Do nothing from now on, on whichever threads' stacks this mode still is."""
        self.__class__ = _Retired

    def general(self, func, args, kwargs):
        """Any call: tensors in lists and keywords, a ``device=`` keyword, devices that differ."""
        kwargs = kwargs or {}
        tensors = tensors_in(args, kwargs)
        gpus = {gpu_of(tensor) for tensor in tensors}
        for gpu in gpus:
            if gpu is not None and gpu.machine is not self.machine:
                raise stale(gpu, self.machine)
        target = self.machine.AS_INPUT
        if kwargs.get("device") is not None:
            target = self.machine.resolve(kwargs["device"])
            kwargs = {**kwargs, "device": self.machine.real(target, kwargs["device"])}
        if len(gpus) > 1:
            result = run_mixed(self, func, args, kwargs, tensors)
            if target is self.machine.AS_INPUT:
                return result
        else:
            result = func(*args, **kwargs)
        if target is self.machine.AS_INPUT:
            target = gpus.pop() if gpus else None
        if target is not None:
            put_all(result, target)
        return result


class _Retired(TorchFunctionMode):
    """What the mode of a closed machine becomes."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


_PLAIN = frozenset({bool, int, float, str, type(None), torch.Size, torch.dtype})


def stale(gpu: Gpu, machine: object) -> RuntimeError:
    """The error for a tensor that was kept from another machine."""
    return RuntimeError(
        f"a tensor is on {gpu.device} of {gpu.machine.describe()}, which is not the machine in use "
        f"({machine.describe()}): make the tensor (or the model) again, or move it with .cpu() or "
        f".to({str(gpu.device)!r}) first"
    )


@handles(
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "layout", "requires_grad", "is_leaf", "grad_fn", "ndim", "is_sparse",
                     "is_quantized", "is_mkldnn", "_version", "output_nr", "is_nested", "itemsize")
    ),
    *(
        getattr(Tensor, name)
        for name in ("size", "dim", "numel", "stride", "is_contiguous", "data_ptr", "requires_grad_",
                     "is_floating_point", "is_complex", "element_size", "storage_offset", "nelement",
                     "__len__", "is_same_size", "ndimension", "untyped_storage", "__hash__", "_is_view",
                     "is_inference",
                     "retain_grad", "is_set_to")
    ),
)  # fmt: skip
def _ask(mode, func, args, kwargs):
    """What a tensor can be asked wherever it is: nothing is made, nothing can mix."""
    return func(*args, **kwargs)


@handles(Tensor.device.__get__)
def _device(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    return func(*args) if gpu is None else gpu.device


@handles(Tensor.is_cuda.__get__)
def _is_cuda(mode, func, args, kwargs):
    return gpu_of(args[0]) is not None


@handles(Tensor.is_cpu.__get__)
def _is_cpu(mode, func, args, kwargs):
    return gpu_of(args[0]) is None and args[0].device.type == "cpu"


@handles(Tensor.get_device, torch.get_device)
def _get_device(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    return -1 if gpu is None else gpu.index


@handles(Tensor.__repr__)
def _repr(mode, func, args, kwargs):
    # torch's own printing, which asks the tensor for its device.
    with mode.machine.entered():
        return torch._tensor_str._str(*args, **kwargs)
