"""The base of objects that show a picture in a notebook.

This module imports nothing, because ``import labkit`` loads it.
"""

from __future__ import annotations


def _not_drawn(data: object) -> str | None:
    """Return no picture: the default until the package sets ``svg_of``."""
    return None


# Object -> SVG text, or None without a picture. ``labkit/__init__`` replaces the function by one that loads
# ``labkit.view`` at the first picture.
svg_of = _not_drawn


class Drawn:
    """An object with a picture, shown as the last expression of a notebook cell."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        return svg_of(self)
