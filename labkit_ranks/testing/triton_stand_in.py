"""A stand-in for the package ``triton``, which PyTorch has with CUDA alone: modules import, kernels refuse to run.

The first ``import`` outside of torch gets the stand-in. torch itself, and whoever asks before with
``importlib.util.find_spec``, learn that triton is not installed, and keep their own way to do without.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from torch.utils._triton import has_triton_package

from labkit.base.language import wrong
from simgpu.children import environment as children


@functools.cache
def offer() -> None:
    """Offer the stand-in to imports in this process and in children, unless triton is installed."""
    children.add_entry("labkit_ranks.testing.triton_stand_in:offer")
    if importlib.util.find_spec("triton") is None:
        has_triton_package()  # torch keeps the answer
        sys.meta_path.append(_Finder())


def refuse(name: str) -> NoReturn:
    """Refuse to launch the kernel ``name``."""
    raise wrong(
        NotImplementedError,
        en=f"{name} is a kernel of triton: simulated GPUs run no kernels in triton's language, and triton is not "
        "installed. Use the module's way without triton, or test this on a GPU.",
        zh=f"{name} 是 triton 内核：模拟 GPU 不能运行用 triton 写的内核，这里也没有安装 triton。"
        "请改用不需要 triton 的写法，或者在真实的 GPU 上测试。",
    )


class _Anything:
    """A name of triton: a type, a constant, a decorator with or without arguments, or the kernel that it makes."""

    def __init__(self, name: str, kernel: Any = None) -> None:
        self._name, self.fn = name, kernel
        if kernel is not None:
            functools.update_wrapper(self, kernel, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fn is not None:
            refuse(self._name)
        function = args[0] if len(args) == 1 else None
        if isinstance(function, types.FunctionType) or getattr(function, "fn", None) is not None:
            return _Anything(getattr(function, "__name__", "kernel"), function)
        return _Anything(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._name}.{name}")

    def __getitem__(self, key: Any) -> _Anything:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return self._name


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of triton and its modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "triton":
            return None
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in (
            "importlib._bootstrap", "_frozen_importlib", __name__
        ):  # fmt: skip
            frame = frame.f_back
        asking = "" if frame is None else frame.f_globals.get("__name__") or ""
        if asking.partition(".")[0] in ("torch", "importlib"):
            return None
        # torch's compiler looks for triton once, and would find the stand-in in sys.modules.
        importlib.import_module("torch._inductor.runtime.triton_compat")
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        module.cdiv = lambda x, y: (x + y - 1) // y
        module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()
        module.__version__ = "0.0.0"

        def missing(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return _Anything(f"{name}.{attribute}")

        module.__getattr__ = missing
