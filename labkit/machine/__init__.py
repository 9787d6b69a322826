"""The simulated multi-GPU machine: torch sees several GPUs, values live on the CPU or on one real GPU."""

from .features import batch_norms as batch_norms
from .in_use import machine_in_use
from .machine import Machine
from .ops import moves as moves
from .ops import places as places
from .real_gpus import RealGpus
from .simulate import inherit, simulate, use_gpus
from .state.gpu import Gpu
from .state.host import OutOfHostMemory

__all__ = [
    "Gpu", "Machine", "OutOfHostMemory", "RealGpus", "inherit", "machine_in_use", "simulate", "use_gpus",
]  # fmt: skip
