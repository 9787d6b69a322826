"""The learner's room: what lessons import. Lessons begun, exercises that check themselves, progress kept.

Each name is loaded when it is first used, so that copying the notebooks needs no package beyond the core. Notebooks are
written and kept in step in :mod:`tools.author`, and run from outside in :mod:`labkit.course.notebooks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answers import check, reveal
    from .board import Progress
    from .broken import batch, hint, repair, torchrun
    from .cases import Cases
    from .glossary import Glossary
    from .lesson import begin
    from .outline import Beliefs, Outline, Sayings
    from .predictions import predict
    from .sliders import vary

# The public names, and the module of each.
_MODULES = {
    "Beliefs": ".outline",
    "Cases": ".cases",
    "Glossary": ".glossary",
    "Outline": ".outline",
    "Progress": ".board",
    "Sayings": ".outline",
    "batch": ".broken",
    "begin": ".lesson",
    "check": ".answers",
    "hint": ".broken",
    "predict": ".predictions",
    "repair": ".broken",
    "reveal": ".answers",
    "torchrun": ".broken",
    "vary": ".sliders",
}

__all__ = [
    "Beliefs", "Cases", "Glossary", "Outline", "Progress", "Sayings", "batch", "begin", "check", "hint",
    "predict", "repair", "reveal", "torchrun", "vary",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _MODULES.keys() & globals().keys():  # the first of them, in a notebook whose kernel is new
        import_module(".names", __name__).watch_before_begin()
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value
