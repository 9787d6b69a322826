"""The function mode through which torch sees the simulated GPUs.

Every call of torch's Python API passes :meth:`MachineMode.__torch_function__`. Most take the short path:
see that all tensors are on one device, call the function, mark what it made as living there too. The
functions for which that is not true have a handler in :data:`HANDLERS`, filled by the modules beside this.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..handlers import HANDLERS, handles
from ..in_use import machine_in_use
from ..rules.mixed import run_mixed
from ..state.gpu import HOST, Gpu
from ..state.placement import gpu_of, put, put_again, put_all, tensors_in

_storage = Tensor.untyped_storage


class MachineMode(TorchFunctionMode):
    """Shows torch the GPUs of one machine."""

    def __init__(self, machine) -> None:
        self.machine = machine

    def __torch_function__(self, func, types, args=(), kwargs=None):
        # This is the path of every operation: no call, loop or allocation that is not needed.
        if func in HANDLERS:
            return HANDLERS[func](self, func, args, kwargs or {})
        home = False  # no tensor seen yet; None is the host
        special = False  # for general(), which must not run inside this try: its errors are the user's
        try:
            for arg in args:
                if isinstance(arg, Tensor):
                    gpu = _storage(arg)._labkit_mark.gpu
                    if gpu is not home:
                        if home is not False:
                            special = True
                            break
                        home = gpu
                elif (arg.__class__ is tuple or arg.__class__ is list) and not _numbers(arg):
                    special = True
                    break
            if kwargs and not special:
                for name, arg in kwargs.items():
                    if isinstance(arg, Tensor):
                        gpu = _storage(arg)._labkit_mark.gpu
                        if gpu is not home:
                            if home is not False:
                                special = True
                                break
                            home = gpu
                    elif (
                        arg.__class__ is tuple
                        or arg.__class__ is list
                        or (name == "device" and arg is not None)
                    ):
                        special = True
                        break
        except (NotImplementedError, RuntimeError, ValueError):
            special = True
        if special:
            return self.general(func, args, kwargs)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if home:
            if isinstance(result, Tensor):
                try:
                    storage = _storage(result)
                    if storage._labkit_mark is HOST:
                        # home.put(storage), written out
                        storage._labkit_mark = mark = home.marks[storage.nbytes()]
                        home.room = room = home.room - mark.block
                        if room < 0:
                            del mark
                            home.recount(storage)
                    elif home.suspended:  # a view, or a result written in place
                        raise stale(home)
                except KeyError:  # the first storage of its size
                    put(result, home)
                except (NotImplementedError, RuntimeError) as error:
                    if isinstance(error, torch.OutOfMemoryError) or home.machine is not self.machine:
                        raise
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
        try:
            gpus = {_storage(tensor)._labkit_mark.gpu for tensor in tensors}
        except (NotImplementedError, RuntimeError, ValueError):
            gpus = {gpu_of(tensor) for tensor in tensors}
        for gpu in gpus:
            if gpu is not None and gpu.machine is not self.machine:
                raise stale(gpu)
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
        for out in tensors_in(kwargs.get("out")):  # an out tensor of another size is given a new one
            put_again(out.untyped_storage())
        return result


def _numbers(values: tuple | list) -> bool:
    """Whether ``values`` is a short sequence of plain numbers, as shapes and strides are."""
    return len(values) <= 8 and all(value.__class__ is int for value in values)


class _Retired(TorchFunctionMode):
    """What the mode of a closed machine becomes: threads that outlive it see the one in use, if there is one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        machine = machine_in_use()
        if machine is None:
            return func(*args, **(kwargs or {}))
        with machine.entered():
            return func(*args, **(kwargs or {}))


_PLAIN = frozenset({bool, int, float, str, type(None), torch.Size, torch.dtype})


def stale(gpu: Gpu) -> RuntimeError:
    """The error for a tensor that was kept from another machine."""
    return RuntimeError(gpu.machine.stale_text(gpu))


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
    try:
        gpu = _storage(args[0])._labkit_mark.gpu
    except (NotImplementedError, RuntimeError, ValueError):
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
    # torch's own printing, which asks the tensor for its device. A subclass prints as its base would.
    with mode.machine.entered(), torch._C.DisableTorchFunctionSubclass():
        return torch._tensor_str._str(*args, **kwargs)


@handles(Tensor.__format__)
def _format(mode, func, args, kwargs):
    # f"{x}" prints, unless x is one number: then it formats that.
    if args[0].dim() and not args[1]:
        return _repr(mode, func, (args[0],), {})
    return func(*args, **kwargs)
