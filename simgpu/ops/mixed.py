"""Run a call with tensors on several devices operator by operator, and check each operator first.

The call runs under a dispatch mode, which sees each ATen operator below torch's Python API
(``torch/csrc/autograd/python_variable.cpp``, the Python key), and :mod:`..rules.operators` checks it as its CUDA
wrapper would. What CUDA allows (a 0-dim CPU tensor in an elementwise operation, CPU indices, copies) goes through.
Other calls pay nothing for this.
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
    """Call ``func`` with tensors on several devices, as the real machine would.

    home    the GPU for tensors that an operator makes from no other tensor.
    """
    if any(tensor.device.type == "meta" for tensor in tensors_in(args, kwargs)):
        return _with_meta(func, args, kwargs)
    check_function(func, args, kwargs)
    with at_work(home), _Replay(home):
        return func(*args, **kwargs)


def _with_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``func`` with a tensor on meta among others: torch takes the kernel for meta.

    MetaBit is the highest in BackendComponent (c10/core/DispatchKey.h). The kernel checks no devices, or refuses in its
    own words; results are on the GPU of the other tensors.
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
    """Dispatch mode to check and place the operators of a call on mixed devices."""

    def __init__(self, home: Gpu | None) -> None:
        self._home = home

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen operator of the call, after checking its devices as its CUDA wrapper would."""
        # A composite operator (CompositeImplicitAutograd in native_functions.yaml) has no CUDA wrapper: check its
        # parts. While this method runs the mode is off, hence ``with self``.
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
            # The operator may change dtype or layout inside a composite one: the result stays where its input is.
            self._home = home or self._home
        else:
            # E.g. torch.full(..., x.options()): options do not tell the GPU.
            home = self._home
        return put_all(func(*args, **kwargs), home)
