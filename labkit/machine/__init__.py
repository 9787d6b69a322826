"""The simulated multi-GPU machine: torch sees several GPUs, values live on the CPU or on one real GPU."""

from . import host_arguments, moves  # noqa: F401 (their handlers register themselves)
from .gpu import Gpu, format_bytes
from .machine import Machine, machine_in_use, simulate, use_gpus
from .real_gpus import RealGpus

__all__ = ["Gpu", "Machine", "RealGpus", "format_bytes", "machine_in_use", "simulate", "use_gpus"]
