"""The simulated multi-GPU machine: torch sees several GPUs, values live on the CPU."""

from . import features
from .machine import Machine
from .simulate import RealGpus, inherit, simulate, use_gpus
from .state.gpu import Gpu
from .state.host import OutOfHostMemory
from .state.in_use import machine_in_use

__all__ = [
    "Gpu", "Machine", "OutOfHostMemory", "RealGpus", "inherit", "machine_in_use", "simulate", "use_gpus",
]  # fmt: skip

FEATURES = features.load()
