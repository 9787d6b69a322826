"""A check-up for the user's own model: would it survive DataParallel?"""

from .check_up import diagnose
from .result import Diagnosis, Finding, GpuMemory

__all__ = ["Diagnosis", "Finding", "GpuMemory", "diagnose"]
