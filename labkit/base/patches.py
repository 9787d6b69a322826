"""Patches of other people's modules and classes, as tables that one loop puts in and takes out exactly.

A table is a list of :class:`Patch`. Every change is in one, so a loop over the tables tells what is changed in torch,
and whether all of it is undone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import getattr_static
from typing import Any, NamedTuple

_ABSENT = object()
# Two tables may name one owner: threads putting both in at once would each save half of the other's changes.
_changing = threading.RLock()
# Held across a fork, so that no child gets half a table or a lock without a holder.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release
    )


class Patch(NamedTuple):
    """A change to put in with its table: ``owner.name`` becomes ``value``. ``owner`` is a module, a class, or alike."""

    owner: Any
    name: str
    value: object

    @classmethod
    def wrap(cls, owner: Any, name: str, function: Callable[..., Any]) -> Patch:
        """Make a patch that calls ``function(real, …)`` in place of ``real``, the function ``owner.name``."""
        real = getattr(owner, name)

        @wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(real, *args, **kwargs)

        static = isinstance(getattr_static(owner, name, None), staticmethod)
        return cls(owner, name, staticmethod(call) if static else call)


class Patches:
    """A table of patches that is in or out; also a context manager.

    The first user puts it in, the last one takes it out, on whichever threads they are.

    table   makes the patches. It is called each time that they are put in, and has made all of them before the first
            is put in, so that each is made from the attribute as it was.

    No owner is labkit's own, but for the engine's (a test checks): a reader of its code would not see what it does.
    """

    def __init__(self, table: Callable[[], Iterable[Patch]]) -> None:
        self._table = table
        self._users = 0
        self._before: list[Patch] = []

    def put_in(self) -> None:
        """Put the table in, unless it is in. If a patch fails, undo the others and raise the error."""
        with _changing:
            if not self._users:
                try:
                    for owner, name, value in list(self._table()):
                        # vars(), not getattr(): an inherited attribute must be deleted again, not copied down.
                        before = Patch(owner, name, vars(owner).get(name, _ABSENT))
                        setattr(owner, name, value)
                        self._before.append(before)
                except BaseException:
                    self._take_out()
                    raise
            self._users += 1

    def take_out(self) -> None:
        """Undo one :meth:`put_in`; the last call restores everything."""
        with _changing:
            self._users -= 1
            if not self._users:
                self._take_out()

    def _take_out(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def __enter__(self) -> None:
        self.put_in()

    def __exit__(self, *exc_info: object) -> None:
        self.take_out()


class CType:
    """A C type as an owner of patches: its attributes cannot be set, but the entries of its dictionary can.

    ``type.__setattr__`` refuses types that are marked immutable. So the dictionary itself is changed, and
    ``PyType_Modified`` (Objects/typeobject.c) tells the interpreter, which caches what it looked up. From Python 3.12
    on a type that was changed some 1000 times is no longer cached: its methods are then found a little more slowly.
    Tried on CPython 3.11, 3.12 and 3.13. Raises NotImplementedError where the dictionary is not to be had.
    """

    __slots__ = ("_entries", "_kind", "_modified")
    _entries: dict[str, Any]
    _kind: type
    _modified: Callable[[], object]

    def __init__(self, kind: type) -> None:
        api: Any = getattr(ctypes, "pythonapi", None)
        entries = gc.get_referents(kind.__dict__)
        if [type(one) for one in entries] != [dict] or not hasattr(api, "PyType_Modified"):
            raise NotImplementedError(f"the dictionary of {kind} cannot be changed")
        # Set on object: this class's own __setattr__ writes the patched type's entries.
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_entries", entries[0])
        object.__setattr__(self, "_modified", partial(api.PyType_Modified, ctypes.py_object(kind)))

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self._entries

    def __getattr__(self, name: str) -> Any:
        return self._entries[name]

    @property
    def __name__(self) -> str:
        return f"{self._kind.__module__}.{self._kind.__qualname__}"

    def __setattr__(self, name: str, value: object) -> None:
        self._entries[name] = value
        self._modified()
