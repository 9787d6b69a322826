"""The names that lessons import: begin a lesson, check exercises, keep progress.

Names load on first use, so that copying the notebooks needs no package beyond the core. :mod:`tools.author` writes and
synchronises notebooks; :mod:`labkit_course.notebooks` runs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from labkit.base.lazy_names import LazyNames

if TYPE_CHECKING:
    from .answers import check, reveal
    from .board import Progress
    from .broken import (
        BatchNormMeans,
        CallInMotion,
        LostRows,
        MeanOfMeans,
        ParityExplorer,
        StepTimes,
        Training,
        batch,
        hint,
        repair,
        torchrun,
    )
    from .cases import Cases
    from .glossary import Glossary
    from .lesson import begin
    from .outline import Beliefs, Outline, Sayings
    from .predictions import predict
    from .sliders import vary

__all__ = [
    "BatchNormMeans", "Beliefs", "CallInMotion", "Cases", "Glossary", "LostRows", "MeanOfMeans", "Outline",
    "ParityExplorer", "Progress", "Sayings", "StepTimes", "Training", "batch", "begin", "check", "hint", "predict",
    "repair", "reveal", "torchrun", "vary",
]  # fmt: skip

_names = LazyNames(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__ and not globals().keys() & set(__all__):  # the first use in a new kernel
        import_module(".names", __name__).watch_before_begin()
    return _names(name)
