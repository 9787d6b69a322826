"""Takes away from a worker what its answer is to write itself: there it does not exist, whatever name leads to it.

A list of forbidden words in an answer only explains early. ``sys.modules``, frames, the garbage collector or another
name of a module lead to the same function, and that function refuses: its code is another from now on.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

_SAID = {
    "en": "{} does not exist here: this question is about writing it yourself",
    "zh": "这里没有 {}：这道题就是要自己写出它",
}


def take_away(names: Iterable[str], hide: Callable[[str], None] = lambda path: None) -> None:
    """Take away what the dotted ``names`` lead to: a module with all that it defines, a class, a function.

    A package by itself (``labkit``, ``torch._C``) stays, for the machine works with it; and so does what is not there.

    hide   called with the folder or file of each module, so that nobody can read it and run it anew.
    """
    for name in names:
        found = (
            None if name.startswith(".") else _found(name)
        )  # an attribute of anything is for the text check
        if isinstance(found, types.ModuleType) and "." in name and getattr(found, "__file__", None):
            modules = list(_modules(found))
            files = {module.__file__ for module in modules}
            for module in modules:
                for function in _functions(vars(module).values(), files, set()):
                    _refuse(function, f"{name}.{function.__name__}")
            path = str(found.__file__)
            hide(os.path.dirname(path) if hasattr(found, "__path__") else path)
        elif isinstance(found, (type, types.FunctionType)):
            for function in _functions([found], {_file(found)}, set()):
                _refuse(function, name)


def _found(name: str) -> Any:
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        with suppress(ImportError, AttributeError):
            found: Any = import_module(".".join(parts[:at]))
            for attribute in parts[at:]:
                found = getattr(found, attribute)
            return found
    return None


def _modules(module: types.ModuleType) -> Iterator[types.ModuleType]:
    """The module and, of a package, all in it, which are imported first: afterwards their files may be hidden."""
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
    """The functions among ``values`` whose code stands in one of ``files``, and those inside of them and of classes."""
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
            # It may be made, as the machine does with its own, and does nothing.
            yield from _functions([v for n, v in vars(value).items() if n != "__init__"], files, seen)


def _refuse(function: types.FunctionType, name: str) -> None:
    """``function`` raises from now on, and says that it is ``name``."""
    free = function.__code__.co_freevars
    said = _SAID.get(os.environ.get("LABKIT_LANG", ""), _SAID["en"]).format(name)
    made: dict[str, Any] = {}
    # Code can only take the place of code with as many free variables.
    lines = [
        f"def outer({', '.join(free)}):",
        "    def refuse(*args, **kwargs):",
        f"        if False: ({', '.join([*free, 'None'])})",
        f"        raise NotImplementedError({said!r})",
        "    return refuse",
    ]
    exec("\n".join(lines), made)
    function.__code__ = made["outer"](*free).__code__
    function.__defaults__ = function.__kwdefaults__ = None
