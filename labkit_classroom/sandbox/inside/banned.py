"""Remove library functions from a worker when the student must write them.

Searching an answer for forbidden words is not enough: ``sys.modules``, frames, the garbage collector or an alias lead
to the same function. So the code of the function itself is replaced by code that raises.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Iterator
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
        for name in names:
            found = _resolve_name(name)
            if isinstance(found, types.ModuleType) and "." in name and getattr(found, "__file__", None):
                modules = list(_modules(found))
                files = {module.__file__ for module in modules}
                for module in modules:
                    for function in _functions(vars(module).values(), files, set()):
                        ban.functions.append((function, _refusal(function, f"{name}.{function.__name__}")))
                file = str(found.__file__)
                own = [file, getattr(found, "__cached__", None) or file]
                paths = [os.path.dirname(file)] if hasattr(found, "__path__") else own
                ban.paths += [path for path in dict.fromkeys(paths) if os.path.exists(path)]
            elif isinstance(found, (type, types.FunctionType)):
                for function in _functions([found], {_file(found)}, set()):
                    ban.functions.append((function, _refusal(function, name)))
        return ban

    def apply(self, hide: Callable[[str], None] = lambda path: None) -> None:
        """Replace the functions' code, and ``hide`` the files from new imports."""
        for function, refusal in self.functions:
            function.__code__ = refusal
            function.__defaults__ = function.__kwdefaults__ = None
        for path in self.paths:
            hide(path)


def _resolve_name(name: str) -> Any:
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        with suppress(ImportError, AttributeError, TypeError, ValueError):
            found: Any = import_module(".".join(parts[:at]))
            for attribute in parts[at:]:
                found = getattr(found, attribute)
            return found
    return None


def _modules(module: types.ModuleType) -> Iterator[types.ModuleType]:
    """Yield a module and its submodules. Import them first: their files may be hidden afterwards."""
    for path in getattr(module, "__path__", []):
        for inner in pkgutil.iter_modules([path], f"{module.__name__}."):
            with suppress(Exception):
                import_module(inner.name)
    begin = f"{module.__name__}."
    yield module
    yield from (other for name, other in list(sys.modules.items()) if name.startswith(begin) and _file(other))


def _file(thing: Any) -> str | None:
    if isinstance(thing, types.FunctionType):
        return thing.__code__.co_filename
    holder = sys.modules.get(thing.__module__) if isinstance(thing, type) else thing
    return getattr(holder, "__file__", None)


def _functions(values: Iterable[Any], files: set[str | None], seen: set[int]) -> Iterator[types.FunctionType]:
    """Yield the functions whose code comes from ``files``: among ``values``, in closures, wrappers and classes."""
    for value in list(values):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            inside = [getattr(value, "__wrapped__", None)]
            for cell in value.__closure__ or ():
                with suppress(ValueError):
                    inside.append(cell.cell_contents)
            yield from _functions(inside, files, seen)
            if value.__code__.co_filename in files:
                yield value
        elif isinstance(value, (staticmethod, classmethod)):
            yield from _functions([value.__func__], files, seen)
        elif isinstance(value, property):
            yield from _functions([value.fget, value.fset], files, seen)
        elif isinstance(value, type) and _file(value) in files:
            # Keep __init__: simulated GPUs create objects of these classes.
            yield from _functions([v for n, v in vars(value).items() if n != "__init__"], files, seen)


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
