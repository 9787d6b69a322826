"""Pictures painted as SVG text: quick, sharp, and with text that the reader's own fonts set."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from .palette import colour, ink
from .picture import Box, Picture, Text

_FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', sans-serif"
)


def to_svg(picture: Picture, *, panel: bool = False) -> str:
    """``picture`` as an <svg> element.

    panel   False: text takes the colour of its surroundings, as inside a widget. True: a light panel
            behind it, for where the picture is shown as an image on a background it cannot know.
    """
    width, height = _number(picture.width), _number(picture.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" style="max-width:100%;height:auto;{"color:#1f2328;" if panel else ""}" role="img" '
        f'aria-label={quoteattr(picture.description)} font-family="{_FONT}" fill="currentColor">'
    ]
    parts.append(f"<title>{escape(picture.description)}</title>")
    if panel:
        parts.append(f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff" stroke="#d0d7de"/>')
    parts += map(_box, picture.boxes)
    parts += map(_text, picture.texts)
    parts.append("</svg>")
    return "".join(parts)


def _box(box: Box) -> str:
    place = f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" height="{_number(box.height)}"'
    if box.gpu is None:
        dash = ' stroke-dasharray="4 4"' if box.dashed else ""
        return f'<rect {place} fill="none" stroke="currentColor" stroke-opacity="0.35"{dash}/>'
    return (
        f'<rect {place} fill="{colour(box.gpu)}" stroke="#ffffff" stroke-opacity="0.7" stroke-width="0.8" '
        f'data-gpu="{box.gpu}"/>'
    )


def _text(text: Text) -> str:
    fill = f' fill="{ink(text.gpu)}"' if text.gpu is not None else ""
    weight = ' font-weight="600"' if text.bold else ""
    faint = ' fill-opacity="0.62"' if text.muted else ""
    anchor = f' text-anchor="{text.anchor}"' if text.anchor != "start" else ""
    return (
        f'<text x="{_number(text.x)}" y="{_number(text.y)}" font-size="{_number(text.size)}"'
        f"{anchor}{fill}{weight}{faint}>"
        f"{escape(text.text)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
