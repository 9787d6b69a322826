"""Take a snapshot of the functions, classes and modules that drivers rely on, and restore them before a driver runs.

A driver runs in the student's process, where the answer may have replaced anything of torch, labkit or Python.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

_PACKAGES = set(
    "torch labkit simgpu labkit_classroom builtins os posixpath threading time math random copy pickle "
    "contextlib functools tempfile unittest types traceback struct json operator _thread sys".split()
)
_MUTABLE_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class whose attributes can be set
Snapshot = tuple[Any, ...]


def take_snapshot() -> Snapshot:
    """Return what :func:`restore` needs, as tuples, which no code can change.

    Leave out the names that are replaced while GPUs are simulated: those whose values differ inside ``simulate``.
    """
    import labkit

    from . import replicas as replicas  # drivers import it after the answers have run

    found = [(*row, set(row[1])) for row in _holders()]
    with labkit.simulate(gpus=2):
        rows = tuple(
            (
                holder, type(holder), _bases(holder), names, frozenset(known | set(names)),
                tuple((name, value) for name, value in values if names.get(name) is value),
            )
            for holder, names, values, known in found
        )  # fmt: skip
    codes = {
        id(value): (value, value.__code__, value.__defaults__)
        for *_, values in rows
        for _, value in values
        if type(value) is types.FunctionType
    }
    hooks = sys.modules["torch.nn.modules.module"]
    emptied = tuple(
        value for name, value in vars(hooks).items() if name.startswith("_global_") and value == {}
    )
    known = tuple((name, one) for name, one in sys.modules.items() if _is_kept(name))
    python = type, object, type.__setattr__, type.__delattr__  # restore may look up no global name
    return rows, tuple(codes.values()), (sys.modules, known), emptied, frozenset(vars(builtins)), python


def keep_refusals(snapshot: Snapshot, refusals: Iterable[tuple[Any, types.CodeType]]) -> Snapshot:
    """Return ``snapshot`` with the functions' code in ``refusals``, so that :func:`restore` does not lift a ban."""
    rows, codes, *rest = snapshot
    banned = {id(function): (function, refusal, None) for function, refusal in refusals}
    return rows, tuple(banned.get(id(row[0]), row) for row in codes), *rest


def _is_kept(name: str) -> bool:
    return name.partition(".")[0] in _PACKAGES


def _holders() -> Iterator[tuple[Any, Any, list[tuple[str, Any]]]]:
    """Yield each module and class with its namespace, and the callables, modules and descriptors in it."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or not _is_kept(name):
            continue
        for holder in [module, *vars(module).values()]:
            is_class = issubclass(type(holder), type) and bool(holder.__flags__ & _MUTABLE_TYPE)
            if holder is module or is_class and holder.__module__ == name:
                names = vars(holder)
                yield holder, names, [item for item in names.items() if _acts(item[1])]


def _bases(holder: Any) -> tuple[type, ...] | None:
    return holder.__bases__ if issubclass(type(holder), type) else None


def _acts(value: Any) -> bool:
    return callable(value) or issubclass(type(value), types.ModuleType) or hasattr(type(value), "__get__")


def restore_names() -> None:
    """Restore everything in the middle of a driver. A worker replaces this stub by a working function."""


def restore(snapshot: Snapshot) -> None:
    """Restore everything in ``snapshot``.

    Look up no global name here: the answer may have replaced any of them.
    """
    rows, codes, (modules, known), emptied, builtin, (kind, plain, put, delete) = snapshot
    for hooks in emptied:
        hooks.clear()
    for function, code, defaults in codes:
        if function.__code__ is not code or function.__defaults__ is not defaults:
            function.__code__, function.__defaults__ = code, defaults
    modules.update(known)
    for holder, cls, bases, names, before, values in rows:
        if kind(holder) is not cls:
            plain.__setattr__(holder, "__class__", cls)
        if bases is not None and holder.__bases__ is not bases:
            put(holder, "__bases__", bases)
        for name, value in values:
            if names.get(name) is not value:
                if cls is kind:
                    put(holder, name, value)
                else:
                    names[name] = value
        for name in () if names.keys() <= before else names.keys() - before:
            if cls is not kind:
                if name in builtin:  # it would shadow Python's builtin in the module's code
                    del names[name]
                continue
            for base in holder.__mro__[1:]:
                if name in base.__dict__:
                    delete(holder, name)
                    break
