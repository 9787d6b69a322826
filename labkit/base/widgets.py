"""Widgets as outputs of notebook cells, and the style for their page."""

from __future__ import annotations

from typing import Any

# What has an arrow at its right edge while it is wider than its place and nobody has scrolled it yet, in browsers with
# animations by scrolling.
_SCROLL = ":is(.labkit-view,.jp-RenderedSVG,.jp-RenderedText)"
_WITH_SLIDERS = ":is(.labkit-explorer,.labkit-varied)"
# JupyterLab shows a cell's picture as an image, which cannot see the theme and keeps its width. On a narrow page it
# scrolls, to stay readable, and on a phone every picture does, unless it is made as narrow. JupyterLab also breaks
# printed lines within words and tables within rows, puts a hidden cell's line beside an empty prompt, and leaves no
# space below a fold, nor above a picture below printed lines. Explorers and questions bring this style.
PAGE_STYLE = (
    f"<style>{_SCROLL}{{position:relative;overflow-x:auto}}"
    f"{_SCROLL}::after{{content:'→';position:absolute;top:0;bottom:0;right:0;width:44px;display:flex;"
    "align-items:center;justify-content:end;font:bold 22px sans-serif;color:#fff;text-shadow:0 0 4px #000;"
    "background:linear-gradient(90deg,transparent,rgba(128,128,128,.8));pointer-events:none;opacity:0;"
    "animation:labkit-more linear both;animation-timeline:scroll(nearest inline)}"
    "@keyframes labkit-more{0%{opacity:1}40%,100%{opacity:0}}"
    "[data-jp-theme-light=false] .jp-RenderedSVG img{color-scheme:dark}"
    ".jp-RenderedSVG img{max-width:100%}"
    ".jp-OutputArea-child:not(:first-child)>.jp-RenderedSVG{padding-top:8px}"
    f"{_WITH_SLIDERS} .widget-html-content{{min-width:0}}"  # the picture scrolls alone
    "@media(max-width:640px){.jp-RenderedSVG img:not([src*=labkit-narrow]){max-width:none}}"
    "@media(max-width:480px){.labkit-view :is(svg,img):not(.labkit-narrow){max-width:none!important}"
    f"{_WITH_SLIDERS} .widget-label{{white-space:normal;line-height:14px}}.jp-Placeholder-prompt{{display:none}}"
    ".jp-Placeholder-content{min-width:0;overflow:hidden;margin:0 8px 0 5px}"
    f"{_WITH_SLIDERS} .widget-inline-hbox{{flex-wrap:wrap;height:auto}}"  # names stand above their controls
    f"{_WITH_SLIDERS} .widget-inline-hbox>.widget-label{{width:100%!important;text-align:left}}}}"
    ".jp-RenderedText pre{word-break:normal;overflow-wrap:anywhere;width:max-content;min-width:100%;"
    "max-width:max(100%,90ch)}"
    ".labkit-sentence{line-height:1.45;white-space:pre-line}"
    ".jp-MarkdownOutput details{margin-bottom:1em}</style>"
)


def live(widget: Any) -> dict[str, Any]:
    """Return a widget as a cell's output, by ipywidgets 8 or 7 (Colab has 7.7); {} if widgets cannot be shown."""
    if hasattr(widget, "_repr_mimebundle_"):
        return widget._repr_mimebundle_() or {}
    model = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": model}
