"""The learner's room: what lessons import. Lessons begun, exercises that check themselves, progress kept.

Notebooks are written and kept in step in :mod:`tools.author`, and run from outside in :mod:`labkit.course.notebooks`.
"""

from .answers import check, reveal
from .board import Progress
from .broken import batch, hint, repair
from .cases import Cases
from .class_mode import open_solutions
from .glossary import Glossary
from .launch import RankError, launch, workspace
from .lesson import begin
from .outline import Beliefs, Outline
from .predict import predict
from .vary import vary

__all__ = [
    "Beliefs", "Cases", "Glossary", "Outline", "Progress", "RankError", "batch", "begin", "check", "hint", "launch",
    "open_solutions", "predict", "repair", "reveal", "vary", "workspace",
]  # fmt: skip
