"""What the core does without: packages that only some things need, and how to get one that is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .language import say

# The packages that labkit imports beyond its core, by the extra of pyproject.toml that brings them; a test holds it.
EXTRA_OF = dict.fromkeys(
    ("ipykernel", "ipywidgets", "jupyter_client", "jupyter_core", "jupyterlab", "matplotlib", "nbclient", "nbconvert",
     "nbformat", "papermill"),
    "lab",
)  # fmt: skip


class MissingPackage(ModuleNotFoundError):
    """A package of an extra is not installed; the message is one line with the command that installs it."""


def need(*packages: str) -> None:
    """Raise :class:`MissingPackage` unless all of ``packages``, keys of EXTRA_OF, are installed."""
    missing = [name for name in packages if name not in sys.modules and not find_spec(name)]
    if missing:
        raise _missing(missing)


def explained(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """``error``, or what says more if it is about a package of an extra."""
    name = (error.name or "").partition(".")[0]
    return _missing([name]) if name in EXTRA_OF else error


def _missing(names: list[str]) -> MissingPackage:
    listed = ", ".join(names)
    extras = ",".join(dict.fromkeys(EXTRA_OF[name] for name in names))
    command = f'pip install "labkit[{extras}]"'
    return MissingPackage(
        say(en=f"this needs {listed}: {command}", zh=f"这需要 {listed}：{command}"), name=names[0]
    )
