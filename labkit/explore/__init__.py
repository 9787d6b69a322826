"""Explorers: controls that move a plan, and the picture that follows."""

from .explorers import (
    CallExplorer,
    MemoryExplorer,
    ScalingExplorer,
    ShapesExplorer,
    SplitExplorer,
    TimelineExplorer,
)

__all__ = [
    "CallExplorer",
    "MemoryExplorer",
    "ScalingExplorer",
    "ShapesExplorer",
    "SplitExplorer",
    "TimelineExplorer",
]
