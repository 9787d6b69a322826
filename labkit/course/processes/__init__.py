"""Scripts run in several real processes at once, and the folder that a lesson writes them to."""

from .folder import workspace
from .launcher import RankError, launch

__all__ = ["RankError", "launch", "workspace"]
