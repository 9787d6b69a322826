"""How domain objects show themselves in a notebook, without knowing who draws them: they inherit :class:`Drawn`.

This module imports nothing, because ``import labkit`` loads it.
"""

from __future__ import annotations


def _not_drawn(data: object) -> str | None:
    """No picture, as long as nobody has said who draws."""
    return None


# Object -> SVG text, or None if it has no picture. The package itself sets a function that asks ``labkit.view``, so
# that nothing of it is imported until a notebook wants a picture.
svg_of = _not_drawn


class Drawn:
    """An object whose picture a bare last expression in a notebook cell shows."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        return svg_of(self)
