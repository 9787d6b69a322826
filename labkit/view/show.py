"""How a picture reaches its reader, in one place: as SVG in a notebook, as matplotlib Axes from ``draw_…``.

A module of :mod:`labkit.view.pictures` has a function, data → :class:`Picture`, marked with :func:`shows`; its
``draw_…`` converts what users give and leaves the rest to :func:`draw`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..base.display import draws
from .picture import Picture
from .svg import to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Made = TypeVar("_Made", bound=Callable[..., Picture])


def shows(kind: type) -> Callable[[_Made], _Made]:
    """Register the decorated function: a bare object of ``kind`` at the end of a cell shows the picture it gives."""

    def register(make: _Made) -> _Made:
        # On a panel of its own, so that it reads on any background.
        draws(kind, lambda data: to_svg(make(data), panel=True))
        return make

    return register


def draw(make: Callable[[], Picture], ax: Axes | None) -> Axes:
    """Paint what ``make`` gives into ``ax``, or a new figure if there is none; returns the Axes."""
    from .figure import paint  # matplotlib is heavy: it is loaded for the first figure

    return paint(make, ax)
