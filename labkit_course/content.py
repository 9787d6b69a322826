"""Access to :mod:`labkit_content`: questions, hints, broken models, assignments and the glossary.

The content imports the packages that show and judge it; to avoid a cycle, they import its modules by name.
"""

from importlib import import_module
from types import ModuleType

from labkit.base import ours

FOLDER = ours.HOME / "labkit_content"


def module(name: str) -> ModuleType:
    """Import the module ``name`` of the content, for example ``"exercises.split"``."""
    return import_module(f"{FOLDER.name}.{name}")
