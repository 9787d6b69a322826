"""The check of devices that each ATen operator makes on CUDA, read from the operator table that torch ships.

PyTorch generates its CUDA wrappers from ``native_functions.yaml``, which every wheel carries for torchgen.
Reading it here means that the rules are those of the torch in use. The rules for the wrapper's name are
torchgen's (``dest/register_dispatch_key.py``): structured kernels are called
``wrapper_CUDA_<op>[_<overload>]``, others ``wrapper_CUDA_<overload>_<op>``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_ENTRY = re.compile(r"^- func: ([\w.]+)\(", re.MULTILINE)
_CUDA_KEY = re.compile(r"^    (?:[\w, ]*\b)CUDA\b[\w, ]*:", re.MULTILINE)
# An argument (so before the ``->``) that is written and given by keyword only is an output, whatever its name
# (torchgen/model.py, Arguments.out).
_OUT = re.compile(r"[^>]*\*,[^>]*\(\w!\)")


@dataclass(frozen=True)
class DeviceCheck:
    """The check of one operator.

    wrapper   the name of the CUDA wrapper that checks each argument; None where none does.
    iterator  whether TensorIterator checks (and lets 0-dim CPU tensors pass).
    """

    wrapper: str | None
    iterator: bool


# Composite operators that call another one on CUDA: the name whose wrapper raises, and its arguments'
# names where they differ. Found by reading the operators' CUDA code.
CALLS: dict[str, tuple[str, dict[str, str]]] = {
    "embedding": ("index_select", {"weight": "self", "indices": "index"}),
    "stack": ("cat", {}),
    "convolution": ("cudnn_convolution", {"input": "self"}),
    "native_batch_norm": ("cudnn_batch_norm", {}),
    "_native_batch_norm_legit": ("cudnn_batch_norm", {}),
}


@cache
def table() -> dict[str, DeviceCheck]:
    """The check of every operator in the table that torch ships, by its name and overload."""
    text = files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text("utf-8")
    starts = list(_ENTRY.finditer(text))
    checks = {}
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        entry = text[start.end() : following.start() if following else len(text)]
        checks[start[1]] = _check(start[1], entry)
    return checks


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


def device_check(qualified: str) -> tuple[DeviceCheck, dict[str, str]]:
    """The check of the operator ``"mm"`` or ``"add.Tensor"``, and how its arguments are called there."""
    name = qualified.removesuffix(".default")
    called, renamed = CALLS.get(name, (name, {}))
    # Operators from outside PyTorch have no entry: treat them as TensorIterator would.
    return table().get(called, DeviceCheck(None, True)), renamed
