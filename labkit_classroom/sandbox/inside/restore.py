"""Take a snapshot of the functions, classes and modules that drivers rely on, and restore them before a driver runs.

A driver runs in the student's process, where the answer may have replaced anything of torch, labkit or Python.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

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
    modules, functions = (sys.modules, known), tuple(codes.values())
    located = _locate(rows, functions, known)
    return rows, functions, modules, emptied, frozenset(vars(builtins)), python, located


def keep_refusals(snapshot: Snapshot, refusals: Iterable[tuple[Any, types.CodeType]]) -> Snapshot:
    """Return ``snapshot`` with the functions' code in ``refusals``, so that :func:`restore` does not lift a ban."""
    rows, codes, modules, *rest, _ = snapshot
    banned = {id(function): (function, refusal, None) for function, refusal in refusals}
    codes = tuple(banned.get(id(row[0]), row) for row in codes)
    return rows, codes, modules, *rest, _locate(rows, codes, modules[1])


# This process's memory as words. Reading an object through Python counts a reference to it, and so copies the page that
# a fork shares with its parent, which took four fifths of the time of a restoration. Reading memory copies nothing.
_BASE, _WORD = 4096, 8
_whole: Any = (ctypes.c_uint64 * (1 << 45)).from_address(_BASE)
_memory = np.frombuffer(_whole, dtype=np.uint64)
# Where CPython 3.11 keeps things, in words: an object's type, a class's bases, a dictionary's table, the length of a
# table's head, a function's code and, after it, its defaults.
_TYPE, _BASES, _TABLE, _HEAD, _CODE = 1, 42, 4, 4, 6


def _locate(rows: Sequence[Any], codes: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return where in memory the things are that :func:`restore` compares, and the words there.

    Return None in a Python with another layout: everything is compared as objects then.
    """
    if sys.version_info[:2] != (3, 11):
        return None
    heads, places, tables, size = list[int](), list[tuple[int, ...]](), list[bytes](), 0
    lineage = [_word(holder, _BASES) for holder, _, bases, *_ in rows if bases is not None]
    if _memory[lineage].tolist() != [id(bases) for _, _, bases, *_ in rows if bases is not None]:
        return None
    for number, (holder, _, _, names, _, values) in enumerate(rows):
        heads += [_word(holder, _TYPE), _word(_dictionary(names), _TABLE)]
        begin, end = _table(names)
        if not {id(value) for _, value in values} <= set(_memory[begin:end].tolist()):
            return None
        tables.append(_memory[begin:end].tobytes())
        places.append((2 * _WORD * number, begin, end, size, size + len(tables[-1])))
        size += len(tables[-1])
    begin, end = _table(sys.modules)
    ours = {id(module) for _, module in known}
    inside = [begin + at for at, word in enumerate(_memory[begin:end].tolist()) if word in ours]
    parts = [_word(function, at) for function, *_ in codes for at in (_CODE, _CODE + 1)]
    pairs = [_fix(heads), _fix([_word(sys.modules, _TABLE)]), _fix(inside), _fix(parts), _fix(lineage)]
    return _memory, b"".join(tables), _fix(places), *((at, _memory[at].tobytes()) for at in pairs)


def _word(value: object, at: int = 0) -> int:
    return (id(value) - _BASE) // _WORD + at


def _dictionary(names: Any) -> dict[str, Any]:
    """Return the dictionary behind a class's ``__dict__``."""
    return names if isinstance(names, dict) else gc.get_referents(names)[0]


def _table(names: Any) -> tuple[int, int]:
    """Return the begin and end of the entries of a namespace, in words."""
    size = _dictionary(names).__sizeof__() - dict.__basicsize__
    begin = (int(_memory[_word(_dictionary(names), _TABLE)]) - _BASE) // _WORD
    return begin + _HEAD, begin + size // _WORD


def _fix(numbers: Sequence[Any]) -> Any:
    """Return an array that cannot be made writable."""
    made = np.array(numbers, dtype=np.int64)
    return np.frombuffer(made.tobytes(), np.int64).reshape(made.shape)


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
    rows, codes, (modules, known), emptied, builtin, (kind, plain, put, delete), located = snapshot
    for hooks in emptied:
        hooks.clear()
    if located:
        memory, tables, places, (index, heads), *pairs = located
        (home, table), (inside, ours), (parts, functions), (lineage, bases) = pairs
        if memory[parts].tobytes() == functions:
            codes = ()
        if memory[home].tobytes() == table and memory[inside].tobytes() == ours:
            known = ()
        found = memory[index].tobytes()
        if memory[lineage].tobytes() == bases:  # else compare all rows as objects
            rows = [
                rows[at // 16]
                for at, begin, end, first, last in places.tolist()
                if found[at : at + 16] != heads[at : at + 16]
                or memory[begin:end].tobytes() != tables[first:last]
            ]
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
