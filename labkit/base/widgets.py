"""Widgets as outputs of notebook cells, and the style that a page needs for them."""

from __future__ import annotations

from typing import Any

# JupyterLab shows pictures that stand alone as images, which cannot see its theme and have a width of their own. What
# a lesson shows besides (explorers, questions) brings this to the page.
PAGE_STYLE = (
    "<style>[data-jp-theme-light=false] .jp-RenderedSVG img{color-scheme:dark}"
    ".jp-RenderedSVG img{max-width:100%}</style>"
)


def live(widget: Any) -> dict[str, Any]:
    """A widget as a cell's output, by ipywidgets 8 or 7 (Colab has 7.7); {} where nothing can show widgets."""
    if hasattr(widget, "_repr_mimebundle_"):
        return widget._repr_mimebundle_() or {}
    model = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": model}
