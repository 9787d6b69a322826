"""Explorers: controls that move a plan, and the picture that follows."""

from .split import SplitExplorer

__all__ = ["SplitExplorer"]
