"""Access to :mod:`labkit_content`: questions, hints, broken models, assignments and the glossary.

The content imports the packages that show and judge it; to avoid a cycle, they import its modules by name.
"""

from importlib import import_module
from types import ModuleType

from labkit.base import ours

FOLDER = ours.HOME / "labkit_content"


def before_and_after(code: str) -> tuple[str, str]:
    """Return both states of changed code, in which ``- `` begins a line that goes, and ``+ `` a line that comes."""
    before, after = (
        "".join(f"{line[2:]}\n" for line in code.splitlines() if line[:1] != sign) for sign in "+-"
    )
    return before, after


def module(name: str) -> ModuleType:
    """Import the module ``name`` of the content, for example ``"exercises.split"``."""
    return import_module(f"{FOLDER.name}.{name}")
