"""What a script saved against what an oracle says: the first difference as a path and a text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SCRIPTS = Path(__file__).parent / "scripts"


def script(name: str) -> ModuleType:
    """The script as a module, for its models and batches; nothing of it runs."""
    spec = importlib.util.spec_from_file_location(f"ranks_script_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


def difference(got: Any, expected: Any, tolerance: float = 1e-5, path: str = "") -> str | None:
    """None, or where ``got`` first differs from ``expected``; floats may by ``tolerance``, absolute and relative."""
    if isinstance(expected, Tensor):
        if not isinstance(got, Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
            return f"{path}: {_brief(got)} instead of {_brief(expected)}"
        if expected.is_floating_point() or expected.is_complex():
            same = torch.allclose(got.cpu(), expected, rtol=tolerance, atol=tolerance)
        else:
            same = torch.equal(got.cpu(), expected)
        return None if same else f"{path}: {got} instead of {expected}"
    if isinstance(expected, float):
        return difference(torch.as_tensor(got), torch.as_tensor(expected), tolerance, path)
    if isinstance(expected, dict):
        if not isinstance(got, dict) or set(got) != set(expected):
            return f"{path}: {sorted(map(str, got))} instead of {sorted(map(str, expected))}"
        pairs = [(key, got[key], expected[key]) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return f"{path}: {_brief(got)} instead of {_brief(expected)}"
        pairs = list(zip(range(len(expected)), got, expected, strict=True))
    else:
        return None if got == expected else f"{path}: {got!r} instead of {expected!r}"
    return next(
        (found for key, g, e in pairs if (found := difference(g, e, tolerance, f"{path}/{key}"))), None
    )


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else repr(value)
