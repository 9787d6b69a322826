"""How domain objects show themselves in a notebook, without knowing who draws them: they inherit :class:`Drawn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Object -> SVG text, or None if it has no picture. The package itself sets what asks ``labkit.view``, so that
# nothing of it is imported until a notebook wants a picture.
svg_of: Callable[[object], str | None] = lambda data: None  # noqa: E731 (replaced by the package)

# JupyterLab shows pictures that stand alone as images, which cannot see its theme and have a width of their own. What
# a lesson shows besides (explorers, questions) brings this to the page.
PAGE_STYLE = (
    "<style>[data-jp-theme-light=false] .jp-RenderedSVG img{color-scheme:dark}"
    ".jp-RenderedSVG img{max-width:100%}</style>"
)


class Drawn:
    """An object whose picture a bare last expression in a notebook cell shows."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        return svg_of(self)


def live(widget: Any) -> dict[str, Any]:
    """A widget as a cell's output, by ipywidgets 8 or 7 (Colab has 7.7); {} where nothing can show widgets."""
    if hasattr(widget, "_repr_mimebundle_"):
        return widget._repr_mimebundle_() or {}
    model = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": model}
