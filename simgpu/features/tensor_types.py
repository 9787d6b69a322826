"""Tensor types by name: ``tensor.type()`` and the old ``torch.cuda.FloatTensor`` classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.base.patches import CType, Patch

from .. import hooks
from ..handlers import handles
from ..ops.mode import MachineMode
from ..ops.moves import move
from ..state.gpu import TheMachine
from ..state.placement import gpu_of, type_name


@handles(Tensor.type)
def _type(mode: MachineMode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.get("dtype")
    if wanted is None:
        return type_name(tensor)
    if isinstance(wanted, LegacyType):
        wanted = wanted.name
    if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
        target = gpu_of(tensor) or mode.machine.resolve("cuda")
        return move(mode.machine, tensor, target, dtype=_dtype_of(wanted))
    if isinstance(wanted, torch.dtype):
        at = gpu_of(tensor)
        return tensor.to(wanted) if at is None else move(mode.machine, tensor, at, dtype=wanted)
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    return move(mode.machine, tensor, None, dtype=_dtype_of(name))


def _dtype_of(name: str) -> torch.dtype:
    return torch.empty(0).type(name.replace("torch.cuda.", "torch.")).dtype


_NOT_RECOMMENDED = (
    "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as "
    "torch.tensor(data, dtype=*, device='cuda') to create tensors."
)


class LegacyType(type):
    """Metaclass of the replacements of ``torch.cuda.FloatTensor`` and its kin."""

    name: str
    warned = False  # warn once per process

    def __instancecheck__(cls, tensor: object) -> bool:
        return isinstance(tensor, Tensor) and tensor.type() == cls.name

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        # torch/csrc/tensor/python_tensor.cpp, Tensor_new
        if not LegacyType.warned or torch.is_warn_always_enabled():
            warnings.warn(_NOT_RECOMMENDED, stacklevel=2)
            LegacyType.warned = True
        kind: Any = getattr(torch, cls.__name__)
        if args and all(type(size) is int for size in args):
            return torch.empty(args, dtype=kind.dtype, device="cuda" if device is None else device)
        host: Tensor = kind(*args)
        return host.cuda(device)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace the tensor types of ``torch.cuda``."""
    set_default = torch._C._set_default_tensor_type
    chosen = False

    def set_default_tensor_type(kind: Any) -> None:
        nonlocal chosen
        on_gpu = isinstance(kind, LegacyType)
        set_default(getattr(torch, kind.__name__) if on_gpu else kind)
        if on_gpu or chosen:  # a tensor type also sets the default device
            torch.set_default_device("cuda" if on_gpu else None)
        chosen = on_gpu

    yield Patch(torch._C, "_set_default_tensor_type", set_default_tensor_type)
    default = torch._C._get_default_device
    # torch prints a tensor on the default device without its device (torch/_tensor_str.py, _str_intern).
    yield Patch(torch._C, "_get_default_device", lambda: "cuda" if chosen else default())
    classes: set[Any] = set(torch._tensor_classes)
    for name in ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "Bool", "BFloat16"):
        title = f"{name}Tensor"
        host = getattr(torch, title)
        about = {"name": f"torch.cuda.{title}", "__module__": "torch.cuda", "is_cuda": True}
        about |= dict.fromkeys(("is_sparse", "is_sparse_csr", "is_xpu"), False)
        made = LegacyType(title, (), about | {"dtype": host.dtype, "layout": host.layout})
        classes.add(made)
        classes.discard(getattr(torch.cuda, title))
        yield Patch(torch.cuda, title, made)
    yield Patch(torch, "_tensor_classes", classes)
    try:
        host_types = CType(type(torch.FloatTensor))
    except NotImplementedError:  # isinstance(x, torch.FloatTensor) is True for tensors on a GPU too, then
        return
    real_check = vars(host_types)["__instancecheck__"]
    yield Patch(
        host_types,
        "__instancecheck__",
        lambda kind, value: real_check(kind, value) and not (isinstance(value, Tensor) and gpu_of(value)),
    )
