"""Operators that a script defines (``torch.library``): C++ has each once, and each rank calls the kernels it gave."""

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
    """The libraries that ranks of a world have made, and what each rank has registered in them."""

    def __init__(self) -> None:
        self._made = WeakSet[Any]()
        # What is registered, an operator's name and a key, say -> the value of each rank.
        self._of_ranks: dict[tuple[str, str], dict[int, Any]] = {}

    def patches(self) -> Iterator[Patch]:
        for name, function in ("__init__", self._make), ("define", self._define), ("impl", self._implement):
            yield Patch.wrap(Library, name, function)
        yield Patch.wrap(Library, "_register_fake", self._fake)
        yield Patch.wrap(Library, "_destroy", self._destroy)

    def close(self) -> None:
        """Destroy all libraries, for torch keeps some for good."""
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
        """Keep ``value`` for the library's rank; return whether C++ has none yet: no other rank registered the same."""
        own = self._of_ranks.setdefault(what, {})
        known = value in own.values() and library._labkit_rank not in own
        own[library._labkit_rank] = value
        return not known

    def _define(self, real: Callable[..., Any], library: Any, schema: str, *args: Any, **options: Any) -> Any:
        name = schema.partition("(")[0]
        if _OWNER in vars(library) and not self._is_first(
            library, ("define", f"{library.ns}::{name}"), schema
        ):
            library._op_defs.add(f"{library.ns}::{name}")
            return name
        return real(library, schema, *args, **options)

    def _destroy(self, real: Callable[[Any], None], library: Any) -> None:
        real(library)
        for name in library._op_defs if _OWNER in vars(library) else ():  # the rank may define it anew
            self._of_ranks["define", name].pop(library._labkit_rank, None)

    def _own_kernel(
        self, library: Any, what: tuple[str, str], kernel: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a kernel that calls what the rank that runs has registered; if it has nothing there, ``kernel``."""
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
                torch.library._impls.discard(entry)  # another rank's does not stand in the way
            kernel = self._own_kernel(library, ("impl", entry), kernel)
        real(library, op, kernel, key, **options)

    def _fake(
        self, real: Callable[..., None], library: Any, op: str, kernel: Any, *args: Any, **options: Any
    ) -> None:
        if _OWNER in vars(library):
            kernel = self._own_kernel(library, ("fake", f"{library.ns}::{op}"), kernel)
        real(library, op, kernel, *args, **options)
