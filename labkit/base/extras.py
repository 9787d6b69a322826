"""Optional packages: which extra brings each, and the error that says how to install a missing one."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .language import say
from .ours import PACKAGES

# Optional package -> extra in pyproject.toml. A test compares both.
EXTRA_OF = dict.fromkeys(
    ("ipykernel", "ipywidgets", "jupyter_client", "jupyterlab", "matplotlib", "nbclient", "nbconvert",
     "nbformat", "papermill"),
    "lab",
)  # fmt: skip


class MissingPackage(ModuleNotFoundError):
    """An optional package, or a part of labkit, is not installed; the one-line message says what to do."""


def need(*packages: str) -> None:
    """Raise :class:`MissingPackage` unless all of ``packages``, keys of EXTRA_OF, are installed."""
    missing = [name for name in packages if name not in sys.modules and not find_spec(name)]
    if missing:
        raise _missing_package_error(missing)


def explain_missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return ``error``, or a clearer one if a package of an extra or a part of labkit is missing."""
    if isinstance(error, MissingPackage):
        return error
    package, _, inner = (error.name or "").partition(".")
    if package in EXTRA_OF:
        return _missing_package_error([package])
    if package in PACKAGES[1:] and not inner:
        text = say(en=f"this installation of labkit lacks {error.name}", zh=f"这份 labkit 不带 {error.name}")
        return MissingPackage(text, name=error.name)
    return error


def _missing_package_error(names: list[str]) -> MissingPackage:
    """Return the error for these missing packages, with the pip command that installs them."""
    listed = ", ".join(names)
    extras = ",".join(dict.fromkeys(EXTRA_OF[name] for name in names))
    command = f'pip install "labkit[{extras}]"'
    return MissingPackage(
        say(en=f"this needs {listed}: {command}", zh=f"这需要 {listed}：{command}"), name=names[0]
    )
