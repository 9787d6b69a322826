"""Operators that a script defines with ``torch.library``: C++ has one of each, which calls the kernel of each rank."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch.library import Library

from labkit.base.patches import Patch

from ..rank.own_modules import importing_frame, is_installed_code
from ..rank.rank import current_thread_rank

_OWNER = "_labkit_rank"


class OperatorLibraries:
    """The libraries of a world's ranks, with the registrations of each rank."""

    def __init__(self) -> None:
        self._made = WeakSet[Any]()
        # Values by rank for each registration, such as an operator's name and a key.
        self._of_ranks: dict[tuple[str, str], dict[int, Any]] = {}

    def patches(self) -> Iterator[Patch]:
        for name, function in ("__init__", self._make), ("define", self._define), ("impl", self._implement):
            yield Patch.wrap(Library, name, function)
        yield Patch.wrap(Library, "_register_fake", self._fake)
        yield Patch.wrap(Library, "_destroy", self._destroy)

    def close(self) -> None:
        """Destroy all libraries: torch would keep some forever."""
        for library in list(self._made):
            library._destroy()

    def _make(self, real: Callable[..., None], library: Any, ns: str, kind: str, *key: str) -> None:
        importing, rank = importing_frame(sys._getframe(1)), current_thread_rank()
        if rank is not None and not (importing and is_installed_code(importing.f_code.co_filename)):
            vars(library)[_OWNER] = rank.number
            self._made.add(library)
            if kind == "DEF" and not self._is_first(library, ("", ns), kind):
                kind = "FRAGMENT"
        real(library, ns, kind, *key)

    def _is_first(self, library: Any, what: tuple[str, str], value: object) -> bool:
        """Keep ``value`` for the library's rank, and return whether C++ needs it: no other rank has registered it."""
        own = self._of_ranks.setdefault(what, {})
        known = value in own.values() and library._labkit_rank not in own
        own[library._labkit_rank] = value
        return not known

    def _define(self, real: Callable[..., Any], library: Any, schema: str, *args: Any, **options: Any) -> Any:
        name = schema.partition("(")[0]
        what = f"{library.ns}::{name}"
        if _OWNER in vars(library) and not self._is_first(library, ("define", what), schema):
            library._op_defs.add(what)
            return name
        return real(library, schema, *args, **options)

    def _destroy(self, real: Callable[[Any], None], library: Any) -> None:
        real(library)
        # The rank may define the operators again.
        for name in library._op_defs if _OWNER in vars(library) else ():
            self._of_ranks["define", name].pop(library._labkit_rank, None)

    def _own_kernel(
        self, library: Any, what: tuple[str, str], kernel: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a kernel that calls the one of the current rank, or ``kernel`` if the rank has none."""
        own = self._of_ranks.setdefault(what, {})
        own[library._labkit_rank] = kernel

        @functools.wraps(kernel)
        def call(*args: Any, **kwargs: Any) -> Any:
            rank = current_thread_rank()
            return own.get(-1 if rank is None else rank.number, kernel)(*args, **kwargs)

        return call

    def _implement(
        self, real: Callable[..., None], library: Any, op: Any, kernel: Any, key: str = "", **options: Any
    ) -> None:
        if _OWNER in vars(library) and callable(kernel) and kernel is not torch.library.fallthrough_kernel:
            name = library._resolve_op_name(op, "impl").split("::")[-1]
            entry = f"{library.ns}/{name}/{key or library.dispatch_key}"
            if library._labkit_rank not in self._of_ranks.get(("impl", entry), ()):
                torch.library._impls.discard(entry)  # torch would refuse a second one
            kernel = self._own_kernel(library, ("impl", entry), kernel)
        real(library, op, kernel, key, **options)

    def _fake(
        self, real: Callable[..., None], library: Any, op: str, kernel: Any, *args: Any, **options: Any
    ) -> None:
        if _OWNER in vars(library):
            kernel = self._own_kernel(library, ("fake", f"{library.ns}::{op}"), kernel)
        real(library, op, kernel, *args, **options)
