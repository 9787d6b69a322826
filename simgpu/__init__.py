"""Simulated GPUs for PyTorch: torch sees several GPUs, values live on the CPU.

``__all__`` is the public interface: other packages import only these names, or from these modules (a test checks). Each
is loaded at its first use: :mod:`simgpu.children`, which describes the machine to child processes, needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import children, dispatch, fidelity, handlers, hooks, tracebacks
    from .features import reducers, tensors_without_data
    from .machine import Machine
    from .simulation import RealGpus, inherit, simulate, use_gpus
    from .state import streams
    from .state.current_machine import machine_in_use
    from .state.gpu import Gpu, TheMachine
    from .state.placement import gpu_of, parts
    from .state.random import DeviceRandom

__all__ = [
    "DeviceRandom", "Gpu", "Machine", "RealGpus", "TheMachine", "children", "dispatch", "fidelity", "gpu_of",
    "handlers", "hooks", "inherit", "machine_in_use", "parts", "reducers", "simulate", "streams",
    "tensors_without_data", "tracebacks", "use_gpus",
]  # fmt: skip

# Public class or function -> its module.
_MODULES = {
    "DeviceRandom": ".state.random",
    "Gpu": ".state.gpu",
    "Machine": ".machine",
    "RealGpus": ".simulation",
    "TheMachine": ".state.gpu",
    "gpu_of": ".state.placement",
    "inherit": ".simulation",
    "machine_in_use": ".state.current_machine",
    "parts": ".state.placement",
    "simulate": ".simulation",
    "use_gpus": ".simulation",
}
# Public module that is not directly in this package -> its place.
_SUBMODULES = {
    "reducers": ".features.reducers",
    "streams": ".state.streams",
    "tensors_without_data": ".features.tensors_without_data",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name not in _MODULES | _SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_SUBMODULES.get(name) or _MODULES[name], __name__)
    value = module if name in _SUBMODULES else getattr(module, name)
    globals()[name] = value  # later uses find it without this function
    return value
