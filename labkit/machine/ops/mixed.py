"""How a call runs that is given tensors on several devices: operator by operator, each one checked first.

The call is replayed under a dispatch mode, which sees each ATen operator below torch's Python API
(``torch/csrc/autograd/python_variable.cpp``, the Python key), where :mod:`..rules.operators` says what its CUDA
wrapper would. What CUDA allows (a 0-dim CPU tensor in an elementwise operation, CPU indices, copies) goes
through. Only mixed calls pay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...base.tree import tensors_in
from ..rules.functions import check_function
from ..rules.operators import check_lists, check_operator
from ..state.gpu import Gpu
from ..state.placement import put_all


def run_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], home: Gpu | None) -> Any:
    """Call ``func`` whose tensor arguments are on several devices, as the real machine would.

    home    where the call is at work: tensors that are made from nothing are made there.
    """
    check_function(func, args, kwargs)
    with _Replay(home):
        return func(*args, **kwargs)


class _Replay(TorchDispatchMode):
    """Checks and places the operators of one call."""

    def __init__(self, home: Gpu | None) -> None:
        super().__init__()
        self._home = home

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # An operator that is made of others (CompositeImplicitAutograd in native_functions.yaml) has no wrapper on
        # CUDA: its parts are checked, each by itself. While this method runs the mode is off, hence ``with self``.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if func.overloadpacket.__name__.startswith("_foreach_"):
            homes = check_lists(func, args, kwargs)
            result = func(*args, **kwargs)
            for made, at in zip(result or (), homes, strict=False):
                if at is not None:
                    put_all(made, at)
            return result
        if tensors_in(args, kwargs):
            home = check_operator(func, args, kwargs)
            # A change of dtype or layout inside a composite function stays where its input is.
            self._home = home or self._home
        else:
            # Such as torch.full(..., x.options()): the options lost which GPU they were of.
            home = self._home
        result = func(*args, **kwargs)
        if home is not None:
            put_all(result, home)
        return result
