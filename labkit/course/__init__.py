"""The course: lessons begun with their parameters, exercises that check themselves, progress kept."""

from ..launch.folder import workspace
from ..launch.launcher import RankError, launch
from .answers import check, reveal
from .board import Progress
from .glossary import Glossary
from .lesson import begin
from .outline import Beliefs, Outline

__all__ = [
    "Beliefs", "Glossary", "Outline", "Progress", "RankError", "begin", "check", "launch", "reveal", "workspace",
]  # fmt: skip
