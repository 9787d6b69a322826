"""What each finding says, in both languages: one declaration for each."""

from . import failures, inputs, memory, modules, outputs
from .kind import KINDS, Kind

__all__ = ["KINDS", "Kind", "failures", "inputs", "memory", "modules", "outputs"]
