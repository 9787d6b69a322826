"""Explorers: controls that move a plan, and the picture that follows."""

from .call import CallExplorer
from .memory import MemoryExplorer
from .scaling import ScalingExplorer
from .shapes import ShapesExplorer
from .split import SplitExplorer
from .timeline import TimelineExplorer

__all__ = [
    "CallExplorer",
    "MemoryExplorer",
    "ScalingExplorer",
    "ShapesExplorer",
    "SplitExplorer",
    "TimelineExplorer",
]
