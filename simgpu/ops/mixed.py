"""Runs a call that is given tensors on several devices operator by operator, and checks each one first.

The call is replayed under a dispatch mode, which sees each ATen operator below torch's Python API
(``torch/csrc/autograd/python_variable.cpp``, the Python key), where :mod:`..rules.operators` says what its CUDA
wrapper would. What CUDA allows (a 0-dim CPU tensor in an elementwise operation, CPU indices, copies) goes
through. Only mixed calls pay.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from labkit.base.tree import tensors_in

from ..rules.functions import check_function
from ..rules.operators import check_lists, check_operator
from ..stack import OperatorMode
from ..state.current_machine import at_work
from ..state.gpu import Gpu
from ..state.placement import gpu_of, name_of, put_all


def run_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], home: Gpu | None) -> Any:
    """Call ``func`` whose tensor arguments are on several devices, as the real machine would.

    home    where the call is at work: tensors that are made from nothing are made there.
    """
    if any(tensor.device.type == "meta" for tensor in tensors_in(args, kwargs)):
        return _with_meta(func, args, kwargs)
    check_function(func, args, kwargs)
    with at_work(home), _Replay(home):
        return func(*args, **kwargs)


def _with_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with a tensor on meta, whose kernel is the one that torch takes then, whatever the others' devices.

    (c10/core/DispatchKey.h, BackendComponent: MetaBit is the highest.) It checks nothing, or finds the devices to
    differ in words of its own; what it makes beside a tensor on a GPU is there.
    """
    gpu = next(gpu for gpu in map(gpu_of, tensors_in(args, kwargs)) if gpu is not None)
    try:
        result = func(*args, **kwargs)
    except RuntimeError as error:
        if "meta" in str(error):
            raise type(error)(re.sub(r"\bcpu\b", name_of(gpu), str(error))) from None
        raise
    return put_all(result, gpu)


class _Replay(OperatorMode):
    """Checks and places the operators of one call."""

    def __init__(self, home: Gpu | None) -> None:
        self._home = home

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # An operator that is made of others (CompositeImplicitAutograd in native_functions.yaml) has no wrapper on
        # CUDA: its parts are checked, each by itself. While this method runs the mode is off, hence ``with self``.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if func.overloadpacket.__name__.startswith("_foreach_"):
            homes = check_lists(func, args, kwargs)
            result = func(*args, **kwargs)
            for made, at in zip(result or (), homes, strict=False):
                put_all(made, at)
            return result
        if tensors_in(args, kwargs):
            home = check_operator(func, args, kwargs)
            # A change of dtype or layout inside a composite function stays where its input is.
            self._home = home or self._home
        else:
            # Such as torch.full(..., x.options()): the options lost which GPU they were of.
            home = self._home
        return put_all(func(*args, **kwargs), home)
