"""List the assignments of labkit, and import the modules of an assignment's folder."""

from __future__ import annotations

import hashlib
import re
import sys
import types
from pathlib import Path

from labkit_course import content

BUILT_IN = content.FOLDER.resolve() / "assignments"


def names() -> list[str]:
    """Return the built-in assignments in the order of their titles."""
    texts = {path.parent.name: path.read_text("utf-8") for path in BUILT_IN.glob("*/assignment.txt")}
    return sorted(texts, key=lambda name: re.findall("^# .*", texts[name], re.MULTILINE)[0])


def package_of(folder: Path) -> str:
    """Make a folder importable, so that its modules can say ``from . import drivers``; return the package's name.

    The name is a digest of the modules, so that a changed module is imported again.
    """
    contents = b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.glob("*.py")))
    name = f"labkit_assignment_{hashlib.sha256(str(folder).encode() + contents).hexdigest()[:16]}"
    if name not in sys.modules:
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [str(folder)]
    return name
