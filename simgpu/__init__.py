"""Simulated GPUs for PyTorch: torch sees several GPUs, values live on the CPU.

``__all__`` is the public interface: other packages import only these names, or from these modules (a test checks). Each
is loaded at its first use: :mod:`simgpu.children`, which describes the machine to child processes, needs no torch.
"""

from typing import TYPE_CHECKING

from labkit.base.lazy_names import LazyNames

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

__getattr__ = LazyNames(__name__, __file__)
