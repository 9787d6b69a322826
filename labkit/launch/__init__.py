"""Scripts run in several real processes, and the folder that they are written to."""

from .folder import workspace
from .launcher import launch

__all__ = ["launch", "workspace"]
