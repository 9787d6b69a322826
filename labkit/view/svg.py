"""Paint pictures as SVG text: fast, sharp, and set in the reader's own fonts."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from .palette import colour, ink
from .picture import NARROW, Box, Label, Line, Picture

_LINES = {"\n": "&#10;"}  # one line in the file, for pages that keep a picture in a line
_FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', sans-serif"
)
# Boxes narrower than this many pixels have no edge.
_NARROW = 2.5
# Colours of a panel: light, dark.
_INK, _PAPER, _EDGE = ("#1f2328", "#e6edf3"), ("#ffffff", "#1c2128"), ("#d0d7de", "#444c56")
# An image takes the theme of its <img>, an inline SVG that of the page; JupyterLab sets an attribute.
_THEMES = (
    ".labkit-card:root{color-scheme:light dark}[data-jp-theme-light=false] .labkit-card{color-scheme:dark}"
    f".labkit-card{{color:light-dark{_INK}}}"
    f".labkit-paper{{fill:light-dark{_PAPER};stroke:light-dark{_EDGE}}}"
).replace("'", "")
# A narrow picture fits its page where wide ones scroll.
_FITS = ".labkit-narrow{min-width:0!important;max-width:100%!important}"


def to_svg(picture: Picture, *, panel: bool = False) -> str:
    """Return ``picture`` as an <svg> element.

    panel   False: text takes the colour of its surroundings. True: a panel behind, light or dark as the page that
            contains the SVG or shows it as an image; light if that is unknown.
    """
    width, height = _number(picture.width), _number(picture.height)
    narrow = picture.width <= NARROW
    look = f'class="labkit-card{" labkit-narrow" * narrow}" color="{_INK[0]}" ' if panel else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" {look}style="max-width:100%;height:auto" role="img" '
        f'aria-label={quoteattr(picture.description)} font-family="{_FONT}" fill="currentColor">'
    ]
    parts.append(f"<title>{escape(picture.description, _LINES)}</title>")
    if panel:
        paper, edge = _PAPER[0], _EDGE[0]
        parts.append(f"<style>{_THEMES}{_FITS * narrow}</style>")
        parts.append(
            f'<rect class="labkit-paper" width="{width}" height="{height}" rx="6" fill="{paper}" stroke="{edge}"/>'
        )
    parts += (_line(line) for line in picture.lines if not line.over)
    parts += map(_box, picture.boxes)
    parts += (_line(line) for line in picture.lines if line.over)
    parts += map(_text, picture.texts)
    parts.append("</svg>")
    return "".join(parts)


def _box(box: Box) -> str:
    """Return the SVG of a box: hatched, outlined without a GPU, or filled with the GPU's colour."""
    place = f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" height="{_number(box.height)}"'
    if box.round:
        place += f' rx="{_number(box.width / 2)}" ry="{_number(box.height / 2)}"'
    if box.hatched:
        hatching = "".join("M{} {}L{} {}".format(*map(_number, stroke)) for stroke in box.strokes())
        return (
            f'<path d="{hatching}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'
            f'<rect {place} fill="currentColor" fill-opacity="0.06" stroke="currentColor" stroke-opacity="0.35"'
            + _end("rect", box.tip)
        )
    if box.gpu is None:
        dash = ' stroke-dasharray="4 4"' if box.dashed else ""
        heavy = 'stroke-width="2"' if box.strong else 'stroke-opacity="0.35"'
        return f'<rect {place} fill="none" stroke="currentColor" {heavy}{dash}{_end("rect", box.tip)}'
    edge = 'stroke="#ffffff" stroke-opacity="0.7" stroke-width="0.8"'
    if box.strong:
        edge = 'stroke="currentColor" stroke-width="2"'
    elif box.width < _NARROW:
        edge = ""  # an edge would hide the colour
    fill = colour(box.gpu, box.tint)
    if box.faint:
        fill = f'{colour(box.gpu)}" fill-opacity="{_number(1 - box.tint)}'
        edge = edge if box.strong else 'stroke="currentColor" stroke-opacity="0.15" stroke-width="0.8"'
    return f'<rect {place} fill="{fill}" {edge} data-gpu="{box.gpu}"{_end("rect", box.tip)}'


def _end(element: str, tip: str) -> str:
    return f"><title>{escape(tip)}</title></{element}>" if tip else "/>"


def _line(line: Line) -> str:
    faint = ' stroke-opacity="0.35" fill-opacity="0.35"' if line.muted else ""
    style = f'stroke="currentColor" stroke-width="{2.4 if line.strong else 1.2}"{faint}'
    dash = ' stroke-dasharray="4 3"' if line.dashed else ""
    ends = (_number(value) for value in (line.x1, line.y1, line.x2, line.y2))
    element = '<line x1="{}" y1="{}" x2="{}" y2="{}" '.format(*ends) + f"{style}{dash}/>"
    if line.arrow:
        corners = " ".join(f"{_number(x)},{_number(y)}" for x, y in line.head())
        element += f'<polygon points="{corners}"{faint}/>'
    return element


def _text(text: Label) -> str:
    fill = f' fill="{ink(text.gpu, text.tint)}"' if text.gpu is not None else ""
    weight = ' font-weight="600"' if text.bold else ""
    faint = ' fill-opacity="0.62"' if text.muted else ""
    family = ' font-family="ui-monospace, Menlo, Consolas, monospace" xml:space="preserve"' * text.mono
    anchor = f' text-anchor="{text.anchor}"' if text.anchor != "start" else ""
    return (
        f'<text x="{_number(text.x)}" y="{_number(text.y)}" font-size="{_number(text.size)}"'
        f"{anchor}{family}{fill}{weight}{faint}>"
        f"{escape(text.text)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
