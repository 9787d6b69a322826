"""A check-up for the user's own model: would it survive DataParallel?"""

from .result import Diagnosis, Finding, GpuMemory
from .run import diagnose

__all__ = ["Diagnosis", "Finding", "GpuMemory", "diagnose"]
