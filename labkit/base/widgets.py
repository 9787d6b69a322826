"""Widgets as outputs of notebook cells, and the style for their page."""

from __future__ import annotations

from typing import Any

# JupyterLab shows a cell's picture as an image, which cannot see the theme and keeps its width. On a narrow page it
# scrolls, to stay readable, and on a phone every picture does. JupyterLab also breaks printed lines within words, and
# leaves no space below a fold, nor above a picture below printed lines. Explorers and questions bring this style.
PAGE_STYLE = (
    "<style>[data-jp-theme-light=false] .jp-RenderedSVG img{color-scheme:dark}"
    ".jp-RenderedSVG img{max-width:100%}"
    ".jp-OutputArea-child:not(:first-child)>.jp-RenderedSVG{padding-top:8px}"
    "@media(max-width:640px){.jp-RenderedSVG{overflow-x:auto}.jp-RenderedSVG img{max-width:none}}"
    "@media(max-width:480px){.labkit-card,.labkit-view img{max-width:none!important}"
    ".labkit-explorer .widget-label{white-space:normal;line-height:14px}}"
    ".jp-RenderedText pre{word-break:normal;overflow-wrap:anywhere}"
    ".labkit-sentence{line-height:1.45;white-space:pre-line}"
    ".jp-MarkdownOutput details{margin-bottom:1em}</style>"
)


def live(widget: Any) -> dict[str, Any]:
    """Return a widget as a cell's output, by ipywidgets 8 or 7 (Colab has 7.7); {} if widgets cannot be shown."""
    if hasattr(widget, "_repr_mimebundle_"):
        return widget._repr_mimebundle_() or {}
    model = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": model}
