"""How domain objects show themselves in a notebook, without knowing who draws them.

A plan or a trace inherits :class:`Drawn`; ``labkit.view`` registers what draws it. Nothing is imported
until a notebook asks for the picture: :data:`load`, set by the package itself, fetches the drawers then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_drawers: dict[type, Callable[[Any], str]] = {}

# Called once when a picture is wanted and no drawer is registered yet.
load: Callable[[], object] = lambda: None  # noqa: E731 (replaced by the package)


def draws(kind: type, drawer: Callable[[Any], str]) -> None:
    """Register ``drawer``, object -> SVG text, as what draws objects of ``kind``."""
    _drawers[kind] = drawer


class Drawn:
    """An object whose picture a bare last expression in a notebook cell shows."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        if type(self) not in _drawers:
            load()
        drawer = _drawers.get(type(self))
        return drawer(self) if drawer else None
