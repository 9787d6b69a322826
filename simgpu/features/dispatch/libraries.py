"""Let kernels registered in Python (``torch.library``) see the machine, and choose CUDA's for tensors on GPUs.

The dispatcher chooses by the device of the values, so it takes a tensor on a simulated GPU to the kernel for the CPU.
A router there redispatches such a call to CUDA's kernel; the dispatcher raises its own error if there is none.
"""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet, _len_torch_dispatch_stack
from torch._ops import OpOverload, OpOverloadPacket
from torch.library import Library
from torch.utils._python_dispatch import _disable_current_modes

from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from ... import hooks
from ...state.current_machine import machine_in_use, replaces
from ...state.gpu import TheMachine
from ...state.placement import gpu_of, keep_on_host
from .classes import on_machine

Kernel = Callable[..., Any]

# A key of CUDA -> its twin, the key for the real values, and the keys by which the dispatcher finds CUDA's kernel.
_ROUTES = {
    "CUDA": ("CPU", ("CUDA",)),
    "AutogradCUDA": ("AutogradCPU", ("AutogradCUDA", "CUDA")),
    "AutocastCUDA": ("AutocastCPU", ("AutocastCUDA", "AutogradCUDA", "CUDA")),
    "SparseCUDA": ("SparseCPU", ("SparseCUDA",)),
    "SparseCsrCUDA": ("SparseCsrCPU", ("SparseCsrCUDA",)),
}
_TWINS = {twin: key for key, (twin, _) in _ROUTES.items()}
# Alias key -> the dispatch key that it means for values on the CPU.
_KEY_OF_ALIAS = {"": "CPU", "CompositeImplicitAutograd": "CPU", "CompositeExplicitAutograd": "CPU"}
# The keys whose kernels are replaced if Python registered them before the machine was in use. Kernels of autograd call
# Function.apply, which sees the machine already (ops/gradients.py).
_OVER = {*_ROUTES, *_TWINS, *_KEY_OF_ALIAS, "FuncTorchBatched"}
# (operator, key) -> the host's kernel inside the router there.
_routed: dict[tuple[str, str], Kernel] = {}
# The module of kernels made by torch.library.register_autograd. They call the kernel below, which may be C++'s, and
# whose results have no mark before the call ends.
_AUTOGRADS = "torch._library.autograd"
# The namespaces of torch's own operators, whose kernels do not read devices.
_TORCHS = ("aten", "prims")
# The module of torch's kernels for real GPUs, on a build for CUDA (bmm's, in Triton).
_NATIVE = "torch._native.registry"


@hooks.places_itself.add
def is_defined_in_python(func: Any) -> bool:
    """Whether ``func`` is an operator with kernels registered in Python, which check and place their tensors."""
    if func.__class__ is OpOverload:
        names = [func._name]
    elif func.__class__ is OpOverloadPacket:
        name = func._qualified_op_name
        names = [name if each == "default" else f"{name}.{each}" for each in func.overloads()]
    else:
        return False
    keys = ("CPU", "CUDA", "BackendSelect", *_KEY_OF_ALIAS)
    return any(f"{name.replace('::', '/')}/{key}" in torch.library._impls for name in names for key in keys)


def _make_kernel_see_machine(kernel: Kernel) -> Kernel:
    def call_kernel(*args: Any, **kwargs: Any) -> Any:
        machine = machine_in_use()
        if machine is None:
            return kernel(*args, **kwargs)
        result = on_machine(machine, kernel, *args, **kwargs)
        for tensor in tensors_in(result):
            keep_on_host(tensor)
        return result

    return call_kernel


def _is_call_on_gpu(args: Any, kwargs: Any) -> bool:
    """Whether the dispatcher would choose CUDA's kernel for these arguments."""
    return machine_in_use() is not None and any(map(gpu_of, tensors_in(args, kwargs)))


def _keyset(*keys: str) -> DispatchKeySet:
    return functools.reduce(
        DispatchKeySet.__or__, (DispatchKeySet(DispatchKey.__members__[key]) for key in keys)
    )


# A key of CUDA -> the key sets of the keys in _ROUTES.
_KEYSETS = {key: (_keyset(*begin), _keyset(twin)) for key, (twin, begin) in _ROUTES.items()}
_MISSING = _keyset("IPU")


def _make_router(name: str, key: str, kernel: Kernel | None) -> Kernel:
    """Return the router for the twin of ``key``.

    kernel   the kernel for tensors on the host, called with the keyset; None if there is none.
    """
    begin, own = _KEYSETS[key]
    backend = _ROUTES[key][0] if key.startswith("Sparse") else "CPU"

    def run(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        operator = torch._library.utils.lookup_op(name)
        if _is_call_on_gpu(args, kwargs):
            # A kernel of autocast excludes its own key when it calls the operator again. Exclude the twin's too.
            with torch._C._ExcludeDispatchKeyGuard(own) if key.startswith("Autocast") else nullcontext():
                return operator.redispatch(begin, *args, **kwargs)
        if kernel is not None:
            return kernel(keyset, *args, **kwargs)
        try:  # get the dispatcher's error for a backend without any kernel, and change its name
            return operator.redispatch(_MISSING, *args, **kwargs)
        except NotImplementedError as error:
            text = re.sub(rf"\b{backend}, ", "", str(error).replace("'IPU'", f"'{backend}'"), count=1)
            lines = [line for line in text.split("\n") if not line.startswith(f"{backend}: ")]
            raise NotImplementedError("\n".join(lines)) from None

    return run


def _find_kernel(name: str, key: str) -> Kernel | None:
    """Return the kernel registered for operator ``name`` and ``key``; None without one.

    The first argument of the kernel is the keyset of the call.
    """
    try:
        kernel = torch.library.get_kernel(name, key).call_boxed
    except RuntimeError:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        # Turn dispatch modes off. Under a mode, C++ ignores the kernel that it was given and looks up the one that is
        # registered now for the operator and key: the router (torch/csrc/utils/python_dispatch.cpp,
        # python_registrations_).
        with _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext():
            return kernel(*args, **kwargs)

    return run


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Route the kernels that Python registered before."""
    with _silence_override_warning():
        libraries = list(_override_earlier_kernels())
    yield Patch(torch.library, "_labkit_libraries", libraries)


@replaces(Library, "impl")
def _impl(
    _: TheMachine, real: Any, self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any
) -> None:
    """Route a kernel that Python registers now."""
    key = dispatch_key or self.dispatch_key
    ours = self.ns not in _TORCHS or key in _ROUTES or key in _TWINS
    ours = ours and getattr(fn, "__module__", "") not in (_AUTOGRADS, _NATIVE)
    if not callable(fn) or fn is torch.library.fallthrough_kernel or not ours:
        real(self, op_name, fn, dispatch_key, **options)
        return
    kernel = functools.wraps(fn)(_make_kernel_see_machine(fn))
    name = f"{self.ns}::{self._resolve_op_name(op_name, 'impl').split('::')[-1]}"
    with _silence_override_warning():
        if key in _TWINS:
            keyed = options.get("with_keyset")
            with_keyset = kernel if keyed else lambda _, *args, **kwargs: kernel(*args, **kwargs)
            router = _make_twin_router(name, _TWINS[key], with_keyset)
            real(self, op_name, router, dispatch_key, **options | {"with_keyset": True})
            return
        real(self, op_name, kernel, dispatch_key, **options)
        if key in _ROUTES:
            twin = _ROUTES[key][0]
            # The host's kernel, which may be inside a router already.
            own = (_routed.get((name, twin)) if _has_python_kernel(name, twin) else None) or _find_kernel(
                name, twin
            )
            self.m.impl(name.split("::")[1], twin, _make_router(name, key, own), True)


@contextmanager
def _silence_override_warning() -> Iterator[None]:
    """Silence torch's warning about kernels that replace others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        yield


def _has_python_kernel(name: str, key: str) -> bool:
    """Whether Python registered the kernel at ``key``. Those of C++ for CUDA need a real GPU."""
    return f"{name.replace('::', '/')}/{key}" in torch.library._impls


def _make_twin_router(name: str, key: str, kernel: Kernel) -> Kernel:
    """Return the router for a ``kernel`` registered at the twin of ``key``.

    If ``kernel`` overrides one of C++, that goes on computing for tensors on GPUs.
    """
    twin = _ROUTES[key][0]
    _routed[name, twin] = kernel
    router = _make_router(name, key, kernel)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, twin) or _has_python_kernel(name, twin):
        return router
    before = _find_kernel(name, twin)

    def run(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        stands_in = _is_call_on_gpu(args, kwargs) and not _has_python_kernel(name, key)
        return (before if stands_in and before else router)(keyset, *args, **kwargs)

    return run


@functools.lru_cache(1)  # two thousand entries, which seldom change between two machines
def _overridden_keys(registered: frozenset[str]) -> dict[tuple[str, str], set[str]]:
    """Return (namespace, name) -> the keys with kernels of Python that need replacements."""
    found: dict[tuple[str, str], set[str]] = {}
    native = getattr(sys.modules.get(_NATIVE), "_aten_override_libs", {})
    for entry in registered:
        namespace, name, key = entry.split("/")
        if namespace == "aten" and (name, key) in native:
            continue
        if (namespace not in _TORCHS or key in _ROUTES) and key in _OVER:
            found.setdefault((namespace, name), set()).add(key)
    return found


def _override_earlier_kernels() -> Iterator[Any]:
    """Replace the kernels that Python registered before. Each yielded registration ends when it is freed."""
    for (namespace, name), keys in _overridden_keys(frozenset(torch.library._impls)).items():
        qualified = f"{namespace}::{name}"
        kernels = {key: _find_kernel(qualified, _KEY_OF_ALIAS.get(key, key)) for key in keys}
        over = {
            key: _make_kernel_see_machine(kernel) for key, kernel in kernels.items() if kernel is not None
        }
        for key, (twin, _) in _ROUTES.items():
            if key in keys or twin in keys:
                over[twin] = _make_router(qualified, key, over.get(twin) or _find_kernel(qualified, twin))
        library: Any = torch._C._dispatch_library("IMPL", namespace, "", __file__, 0)
        for key, kernel in over.items():
            library.impl(name, key or "CompositeImplicitAutograd", kernel, True)
        yield library
