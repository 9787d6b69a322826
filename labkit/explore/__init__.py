"""Explorers: controls that move a plan, and the picture that follows."""

from .call_explorer import CallExplorer
from .memory_explorer import MemoryExplorer
from .scaling_explorer import ScalingExplorer
from .shapes_explorer import ShapesExplorer
from .split_explorer import SplitExplorer
from .timeline_explorer import TimelineExplorer

__all__ = [
    "CallExplorer",
    "MemoryExplorer",
    "ScalingExplorer",
    "ShapesExplorer",
    "SplitExplorer",
    "TimelineExplorer",
]
