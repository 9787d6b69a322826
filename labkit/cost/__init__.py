"""Predict the seconds of a training step on given hardware, from sizes alone."""

from .hardware import PROFILES as PROFILES
from .hardware import Hardware as Hardware
from .hardware import all_reduce_seconds as all_reduce_seconds
from .step import Overlap as Overlap
from .step import Step as Step
from .step import Workload as Workload
from .step import data_parallel_step as data_parallel_step
from .step import ddp_step as ddp_step
from .step import overlap as overlap
from .step import perfect_step as perfect_step
from .step import step_trace as step_trace
