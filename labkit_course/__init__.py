"""The names that lessons import: begin a lesson, check exercises, keep progress.

Names load on first use, so that copying the notebooks needs no package beyond the core. :mod:`tools.author` writes and
synchronises notebooks; :mod:`labkit_course.notebooks` runs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answers import check, reveal
    from .board import Progress
    from .broken import BatchNormMeans, CallInMotion, ParityExplorer, Training, batch, hint, repair, torchrun
    from .cases import Cases
    from .glossary import Glossary
    from .lesson import begin
    from .outline import Beliefs, Outline, Sayings
    from .predictions import predict
    from .sliders import vary

# The public names of each module.
_NAMES = {
    ".answers": "check reveal",
    ".board": "Progress",
    ".broken": "BatchNormMeans CallInMotion ParityExplorer Training batch hint repair torchrun",
    ".cases": "Cases",
    ".glossary": "Glossary",
    ".lesson": "begin",
    ".outline": "Beliefs Outline Sayings",
    ".predictions": "predict",
    ".sliders": "vary",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BatchNormMeans", "Beliefs", "CallInMotion", "Cases", "Glossary", "Outline", "ParityExplorer", "Progress",
    "Sayings", "Training", "batch", "begin", "check", "hint", "predict", "repair", "reveal", "torchrun", "vary",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _MODULES.keys() & globals().keys():  # the first use in a new kernel
        import_module(".names", __name__).watch_before_begin()
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value
