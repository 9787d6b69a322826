"""Simulated GPUs for PyTorch: torch sees several GPUs, values live on the CPU.

Each name is loaded when it is first used: :mod:`simgpu.children`, which describes the machine to child processes, needs
no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine
    from .simulation import RealGpus, inherit, simulate, use_gpus
    from .state.gpu import Gpu
    from .state.host import OutOfHostMemory
    from .state.in_use import machine_in_use

__all__ = [
    "Gpu", "Machine", "OutOfHostMemory", "RealGpus", "inherit", "machine_in_use", "simulate", "use_gpus",
]  # fmt: skip

# The module of each public name.
_MODULES = {
    "Gpu": ".state.gpu",
    "Machine": ".machine",
    "OutOfHostMemory": ".state.host",
    "RealGpus": ".simulation",
    "inherit": ".simulation",
    "machine_in_use": ".state.in_use",
    "simulate": ".simulation",
    "use_gpus": ".simulation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value
