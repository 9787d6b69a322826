"""Errors of ATen operators about tensors on several devices.

Either an operator's CUDA wrapper checks each argument, or TensorIterator does, or nothing; each has its own message.
Operators with their own message have a rule in :data:`RULES`.

PyTorch generates its CUDA wrappers from ``native_functions.yaml``, which every wheel contains for torchgen. Reading it
gives the checks of the installed torch. The wrappers' names follow torchgen's ``dest/register_dispatch_key.py``:
``wrapper_CUDA_<op>[_<overload>]`` for structured kernels, ``wrapper_CUDA_<overload>_<op>`` for others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torch import Tensor

from labkit.base.tree import tensors_in

from ..state.gpu import Gpu
from ..state.placement import gpu_of, place

# (name of the argument, tensor) for the tensors of a call: written arguments first, then by position.
Named = list[tuple[str, Tensor]]

# Operator's name -> its rule, which raises the operator's error or returns the GPU of the call (None: the host).
RULES: dict[str, Callable[[Named], Gpu | None]] = {}

_SAME = "Expected all tensors to be on the same device, but "


def check_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Gpu | None:
    """Raise CUDA's error if ``func`` cannot take tensors from these devices; else return the GPU of the call."""
    named = _named_tensors(func, args, kwargs)
    gpus = {gpu_of(tensor) for _, tensor in named}
    if len(gpus) <= 1:
        return gpus.pop() if gpus else None
    rule = RULES.get(func.overloadpacket.__name__)
    if rule is not None:
        return rule(named)
    check, renamed = _check_of(func)
    if check.wrapper is not None:
        # c10/core/impl's check_and_update_common_device, which the generated wrapper calls for each argument.
        common = named[0][1]
        for argument, tensor in named:
            if gpu_of(tensor) is not gpu_of(common):
                raise RuntimeError(
                    f"{_SAME}got {renamed.get(argument, argument)} is on {place(tensor)}, different from other "
                    f"tensors on {place(common)} (when checking argument in method {check.wrapper})"
                )
    return _check_iterator(named, _written_arguments(func), scalars=check.iterator)


def on_one_device(func: Any, tensors: list[Tensor]) -> list[Tensor]:
    """Select from ``tensors`` the arguments required on the device where ``func`` runs."""
    if func.overloadpacket.__name__ in RULES:
        return []
    check, _ = _check_of(func)
    return tensors if check.wrapper is not None else [tensor for tensor in tensors if tensor.dim()]


def _check_of(func: Any) -> tuple[DeviceCheck, dict[str, str]]:
    """Return the check of an operator, and the arguments' names in its message where they differ."""
    name = func._schema.name.removeprefix("aten::")
    name += "" if func._overloadname == "default" else f".{func._overloadname}"
    called, renamed = CALLS.get(name, (name, {}))
    # Operators from outside PyTorch have no entry: treat them as TensorIterator would.
    return checks().get(called, DeviceCheck(None, True)), renamed


def check_lists(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Gpu | None]:
    """Check an operator on lists (``_foreach_add``) entry by entry, as CUDA does with mixed devices.

    Return the GPU of each entry. ``aten/src/ATen/native/ForeachUtils.h``, ``can_use_fast_route``.
    """
    names = [argument.name for argument in func._schema.arguments]
    values = dict(zip(names, args, strict=False)) | kwargs
    lists = [
        list(v) for v in values.values() if isinstance(v, (list, tuple)) and v and isinstance(v[0], Tensor)
    ]
    # A tensor of packed scalars is read on the host.
    single = [("other", v) for name, v in values.items() if isinstance(v, Tensor) and name != "scalars"]
    homes = []
    for entry in zip(*lists, strict=False):
        home = gpu_of(entry[0])
        if func.overloadpacket.__name__ != "_foreach_copy_":
            named = [("self", entry[0]), *(("other", tensor) for tensor in entry[1:]), *single]
            if len({gpu_of(tensor) for _, tensor in named}) > 1:
                home = _check_iterator(named, _written_arguments(func) & {"self"}, scalars=True)
        homes.append(home)
    return homes


def _check_iterator(named: Named, written: set[str], scalars: bool) -> Gpu | None:
    """Check as TensorIterator does: all tensors are on the first GPU, except 0-dim CPU inputs.

    ``aten/src/ATen/TensorIterator.cpp``, ``compute_types``.
    """
    common = next(tensor for _, tensor in named if gpu_of(tensor) is not None)
    for argument, tensor in named:
        if gpu_of(tensor) is gpu_of(common):
            continue
        if scalars and argument not in written and tensor.dim() == 0 and gpu_of(tensor) is None:
            continue
        raise RuntimeError(f"{_SAME}found at least two devices, {place(common)} and {place(tensor)}!")
    return gpu_of(common)


def _written_arguments(func: Any) -> set[str]:
    """Return the names of the arguments that ``func`` writes: ``out``, and ``self`` of an in-place operator."""
    return {argument.name for argument in func._schema.arguments if _writes(argument)}


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _named_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Named:
    named: Named = []
    written: Named = []
    for at, argument in enumerate(func._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        out = _writes(argument) and argument.is_out
        (written if out else named).extend((argument.name, tensor) for tensor in tensors_in(value))
    return written + named


def _rule(names: str) -> Callable[..., Callable[[Named], Gpu | None]]:
    def register(rule: Callable[[Named], Gpu | None]) -> Callable[[Named], Gpu | None]:
        RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return register


@_rule("copy_ _has_compatible_shallow_copy_type fill fill_")
def _destination(named: Named) -> Gpu | None:
    # Copies cross devices; the value of fill is read on the host, wherever it is (Fill.cpp, fill_out).
    return gpu_of(dict(named)["self"])


@_rule("index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put")
def _indexing(named: Named) -> Gpu | None:
    # aten/src/ATen/native/TensorAdvancedIndexing.cpp, make_info and index_put_: indices may be on the host, and a
    # single value anywhere.
    (_, tensor), *others = named
    home = gpu_of(tensor)
    for argument, other in others:
        at = gpu_of(other)
        if argument == "indices":
            if at is not None and at is not home:
                raise RuntimeError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    f"({place(tensor)})"
                )
        elif at is not home and other.dim():
            raise RuntimeError(f"{_SAME}found at least two devices, {place(tensor)} and {place(other)}!")
    return home


@_rule("masked_fill masked_fill_")
def _masked_fill(named: Named) -> Gpu | None:
    # aten/src/ATen/native/cuda/TensorAdvancedIndexing... masked_fill__cuda, and the CPU's masked_fill_impl_cpu
    tensors = dict(named)
    tensor, mask = tensors["self"], tensors["mask"]
    if gpu_of(mask) is not gpu_of(tensor):
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {place(mask)} "
            f"and self on {place(tensor)}"
        )
    if gpu_of(tensor) is None:
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    return gpu_of(tensor)


@_rule("mv")
def _mv(named: Named) -> Gpu | None:
    # aten/src/ATen/native/Blas.cpp, mv: makes the result on the vector's device, then calls addmv_.
    tensors = dict(named)
    raise RuntimeError(
        f"{_SAME}got mat is on {place(tensors['self'])}, different from other tensors on "
        f"{place(tensors['vec'])} (when checking argument in method wrapper_CUDA_addmv_)"
    )


_ENTRY = re.compile(r"^- func: ([\w.]+)\(", re.MULTILINE)
_CUDA_KEY = re.compile(r"^    (?:[\w, ]*\b)CUDA\b[\w, ]*:", re.MULTILINE)
# A keyword-only argument (before the ``->``) that is written is an output (torchgen/model.py, Arguments.out).
_OUT = re.compile(r"[^>]*\*,[^>]*\(\w!\)")


@dataclass(frozen=True)
class DeviceCheck:
    """The check of one operator.

    wrapper   the name of the CUDA wrapper that checks each argument; None where none does.
    iterator  whether TensorIterator checks (and lets 0-dim CPU tensors pass).
    """

    wrapper: str | None
    iterator: bool


# Composite operators that call another one on CUDA: the operator whose wrapper raises, and the arguments' names there
# where they differ. From the operators' CUDA code.
CALLS: dict[str, tuple[str, dict[str, str]]] = {
    "embedding": ("index_select", {"weight": "self", "indices": "index"}),
    "stack": ("cat", {}),
    "allclose": ("eq.Tensor", {}),
    "convolution": ("cudnn_convolution", {"input": "self"}),
    "native_batch_norm": ("cudnn_batch_norm", {}),
    "_native_batch_norm_legit": ("cudnn_batch_norm", {}),
}


@cache
def checks() -> dict[str, DeviceCheck]:
    """Return the check of every operator in torch's table, by name and overload."""
    text = files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text("utf-8")
    starts = list(_ENTRY.finditer(text))
    found = {}
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        entry = text[start.end() : following.start() if following else len(text)]
        found[start[1]] = _check(start[1], entry)
    return found


def _check(qualified: str, entry: str) -> DeviceCheck:
    name, _, overload = qualified.partition(".")
    structured = "\n  structured: True" in entry or "\n  structured_delegate:" in entry
    if "\n  device_check: NoCheck" in entry:
        return DeviceCheck(None, True)
    out = "_out" if _OUT.match(entry) else ""
    if structured:
        return DeviceCheck(f"wrapper_CUDA_{name}{out}" + (f"_{overload}" if overload else ""), False)
    if _CUDA_KEY.search(entry):
        return DeviceCheck(f"wrapper_CUDA_{overload}_{name}{out}", False)
    return DeviceCheck(None, False)
