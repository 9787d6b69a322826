"""Remove library functions from a worker when the student must write them.

Searching an answer for forbidden words is not enough: ``sys.modules``, frames, the garbage collector or an alias lead
to the same function. So the code of the function itself is replaced by code that raises.
"""

from __future__ import annotations

import gc
import inspect
import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

_SAID = {
    "en": "{} does not exist here: this question is about writing it yourself",
    "zh": "这里没有 {}：这道题就是要自己写出它",
}


@dataclass
class Ban:
    """The functions to remove, each with code that raises, and files of modules.

    The fork server, which runs no student's code, finds them once; each worker applies the ban.
    """

    functions: list[tuple[types.FunctionType, types.CodeType]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @classmethod
    def find(cls, names: Iterable[str]) -> Ban:
        """Find the modules, classes and functions with these dotted ``names``.

        A top-level package (``labkit``) stays, because simulated GPUs need it. Unknown names are ignored.
        """
        ban = cls()
        for name in filter(lambda name: "." in name, names):
            found: Any = None
            with suppress(ImportError, AttributeError, ValueError):
                found = pkgutil.resolve_name(name)
            if isinstance(found, types.ModuleType):
                functions = _functions_from(_import_files(found))
                file = str(found.__file__)
                paths = (
                    {os.path.dirname(file)}
                    if hasattr(found, "__path__")
                    else {file, getattr(found, "__cached__", None)}
                )
                ban.paths += sorted(path for path in paths if path and os.path.exists(path))
            elif isinstance(found, (type, types.FunctionType)):
                where = set[str | None]()
                with suppress(TypeError):  # a class of C has no file
                    where = {inspect.getfile(found), inspect.getfile(inspect.unwrap(found))}
                functions = _functions_from(where, found.__qualname__)
            else:
                continue
            label = f"{name}.{{}}" if isinstance(found, types.ModuleType) else name
            ban.functions += [(one, _refusal(one, label.format(one.__name__))) for one in functions]
        return ban

    def apply(self, hide: Callable[[str], None] = lambda path: None) -> None:
        """Replace the functions' code, and ``hide`` the files from new imports."""
        for function, refusal in self.functions:
            function.__code__ = refusal
            function.__defaults__ = function.__kwdefaults__ = None
        for path in self.paths:
            hide(path)


def _import_files(module: types.ModuleType) -> set[str | None]:
    """Import all submodules of ``module``, whose files a ban may hide afterwards; return the files of all."""
    for path in getattr(module, "__path__", []):
        for inner in pkgutil.iter_modules([path], f"{module.__name__}."):
            with suppress(Exception):
                import_module(inner.name)
    below = [one for name, one in list(sys.modules.items()) if name.startswith(f"{module.__name__}.")]
    return {getattr(one, "__file__", None) for one in (module, *below)}


def _functions_from(files: set[str | None], qualname: str = "") -> list[types.FunctionType]:
    """Return all functions whose code comes from ``files``: methods, closures and wrapped ones, too.

    qualname   only this function or class, and functions inside it.
    """
    # Keep __init__: simulated GPUs create objects of these classes.
    return [
        one
        for one in gc.get_objects()
        if type(one) is types.FunctionType
        and one.__code__.co_filename in files
        and one.__name__ != "__init__"
        and f"{one.__qualname__}.".startswith(f"{qualname}." if qualname else "")
    ]


def _refusal(function: types.FunctionType, name: str) -> types.CodeType:
    """Return code that raises an error about ``name`` and can replace the code of ``function``."""
    free = function.__code__.co_freevars
    said = _SAID.get(os.environ.get("LABKIT_LANG", ""), _SAID["en"]).format(name)
    made: dict[str, Any] = {}
    # Python accepts only code with the same number of free variables.
    lines = [
        f"def outer({', '.join(free)}):",
        "    def refuse(*args, **kwargs):",
        f"        if False: ({', '.join([*free, 'None'])})",
        f"        raise NotImplementedError({said!r})",
        "    return refuse",
    ]
    exec("\n".join(lines), made)
    refusal: types.CodeType = made["outer"](*free).__code__
    return refusal
