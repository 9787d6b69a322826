"""Where the content lies: questions, hints, broken models, tasks and words, in the package :mod:`labkit_content`.

The content stands on the packages that show and judge it, so they ask for its modules by name and import none.
"""

from importlib import import_module
from types import ModuleType

from labkit.base import ours

FOLDER = ours.HOME / "labkit_content"


def module(name: str) -> ModuleType:
    """Import the module ``name`` of the content, for example ``"exercises.split"``."""
    return import_module(f"{FOLDER.name}.{name}")
