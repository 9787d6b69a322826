"""What a training step costs on given hardware: seconds, from sizes alone."""

from .hardware import PROFILES, Hardware
from .scaling import Scaling, doublings, predict_scaling
from .step import Step, Workload, all_reduce_seconds, data_parallel_step, ddp_step, perfect_step
from .step_trace import step_trace

__all__ = [
    "PROFILES",
    "Hardware",
    "Scaling",
    "Step",
    "Workload",
    "all_reduce_seconds",
    "data_parallel_step",
    "ddp_step",
    "doublings",
    "perfect_step",
    "predict_scaling",
    "step_trace",
]
