"""The learner's room: what lessons import. Lessons begun, exercises that check themselves, progress kept.

Each name is loaded when it is first used, so that copying the notebooks needs no package beyond the core. Notebooks are
written and kept in step in :mod:`tools.author`, and run from outside in :mod:`labkit_course.notebooks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answers import check, reveal
    from .board import Progress
    from .broken import BatchNormMeans, CallInMotion, batch, hint, repair, torchrun
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
    ".broken": "BatchNormMeans CallInMotion batch hint repair torchrun",
    ".cases": "Cases",
    ".glossary": "Glossary",
    ".lesson": "begin",
    ".outline": "Beliefs Outline Sayings",
    ".predictions": "predict",
    ".sliders": "vary",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BatchNormMeans", "Beliefs", "CallInMotion", "Cases", "Glossary", "Outline", "Progress", "Sayings", "batch",
    "begin", "check", "hint", "predict", "repair", "reveal", "torchrun", "vary",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _MODULES.keys() & globals().keys():  # the first of them, in a notebook whose kernel is new
        import_module(".names", __name__).watch_before_begin()
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value
