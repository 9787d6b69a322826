"""Paint pictures with matplotlib into the caller's Axes, without changing matplotlib's settings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Ellipse, Polygon, Rectangle

from ..base.language import get_language, using
from ..base.numbers import must
from .palette import colour, ink
from .picture import Box, Line, Picture

_PIXELS_PER_INCH = 100
# The most boxes painted as patches; more become one collection.
_MOST_PATCHES = 300
# Fonts with Chinese characters, best first.
_CHINESE = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "PingFang SC", "Heiti SC",
    "Hiragino Sans GB", "Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Noto Sans CJK JP",
)  # fmt: skip
# File names of Chinese fonts, all of whose faces have the characters.
_CHINESE_FILES = re.compile(
    r"CJK|NotoSansSC|SourceHanSans|PingFang|STHeiti|Hiragino|msyh|simhei|wqy", re.IGNORECASE
)


def paint(make: Callable[[], Picture], ax: Axes | None = None) -> Axes:
    """Paint the picture that ``make`` returns into ``ax`` (or a new figure); return the Axes.

    Without a Chinese font, matplotlib would draw empty boxes: the picture is then made in English, with a warning.
    """
    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(must("ax", ax, en="a matplotlib Axes", zh="是 matplotlib 的 Axes", typed=True))
    language = get_language()
    family = chinese_font() if language == "zh" else None
    if language == "zh" and family is None:
        language = "en"
        warnings.warn(
            "这台电脑没有中文字体，matplotlib 图改用英文；安装 Noto Sans CJK 后重试 "
            "(no Chinese font is installed: this figure is in English)",
            stacklevel=4,
        )
    with using(language):
        picture = make()
    if ax is None:
        size = picture.width / _PIXELS_PER_INCH, picture.height / _PIXELS_PER_INCH
        _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.set_xlim(0, picture.width)
    ax.set_ylim(picture.height, 0)
    ax.set_aspect("equal")
    ax.set_axis_off()
    ink_colour = plt.rcParams["text.color"]
    for line in picture.lines:
        _line(ax, line, ink_colour)
    if len(picture.boxes) > _MOST_PATCHES:
        _boxes_at_once(ax, picture.boxes)
    else:
        for box in picture.boxes:
            _box(ax, box, ink_colour)
    strokes = [stroke for box in picture.boxes for stroke in box.strokes()]
    if strokes:
        ends = [((x1, y1), (x2, y2)) for x1, y1, x2, y2 in strokes]
        ax.add_collection(LineCollection(ends, colors=ink_colour, alpha=0.6, linewidths=0.7, zorder=2))
    for text in picture.texts:
        ax.text(
            text.x, text.y, text.text, fontsize=text.size * 72 / _PIXELS_PER_INCH,
            ha={"start": "left", "middle": "center", "end": "right"}[text.anchor], va="baseline",
            color=None if text.gpu is None else ink(text.gpu, text.tint), alpha=0.65 if text.muted else 1,
            fontweight="bold" if text.bold else "normal",
            # Chinese fonts lack signs such as ✗; matplotlib's own font has them.
            family="monospace" if text.mono else family and [family, "DejaVu Sans"], zorder=4,
        )  # fmt: skip
    return ax


def _fill(box: Box) -> str:
    return "none" if box.gpu is None else colour(box.gpu, box.tint)


def _box(ax: Axes, box: Box, strong: str) -> None:
    edge, width = ("#888888" if box.gpu is None else "white"), 0.7
    if box.strong:
        edge, width = strong, 1.6
    look: dict[str, Any] = {
        "facecolor": _fill(box), "edgecolor": edge, "linewidth": width, "linestyle": "--" if box.dashed else "-",
        "label": box.label or "_", "zorder": 2,
    }  # fmt: skip
    if box.round:
        middle = box.x + box.width / 2, box.y + box.height / 2
        ax.add_patch(Ellipse(middle, box.width, box.height, **look))
    else:
        ax.add_patch(Rectangle((box.x, box.y), box.width, box.height, **look))


def _boxes_at_once(ax: Axes, boxes: tuple[Box, ...]) -> None:
    """Paint thousands of boxes as one collection: ten times faster than as patches."""
    edges = [(b.x, b.y, b.x + b.width, b.y + b.height) for b in boxes]
    corners = [((left, top), (right, top), (right, low), (left, low)) for left, top, right, low in edges]
    ax.add_collection(
        PolyCollection(
            corners, facecolors=[_fill(b) for b in boxes], zorder=2, linewidths=0.3,
            edgecolors=["#888888" if b.gpu is None else "none" for b in boxes],
        )
    )  # fmt: skip


def _line(ax: Axes, line: Line, ink_colour: str) -> None:
    alpha, zorder = 0.35 if line.muted else 1, 3 if line.over else 1
    ax.plot(
        (line.x1, line.x2), (line.y1, line.y2), color=ink_colour, alpha=alpha, zorder=zorder,
        linewidth=1.8 if line.strong else 0.9, linestyle="--" if line.dashed else "-", scalex=False, scaley=False,
    )  # fmt: skip
    if line.arrow:
        ax.add_patch(Polygon(line.head(), color=ink_colour, alpha=alpha, zorder=zorder, linewidth=0))


@cache
def chinese_font() -> str | None:
    """Return the name of an installed font with Chinese characters, or None."""
    found = _by_name()
    if found is None:
        _add_new_fonts()
        found = _by_name() or _by_file()
    return found


def _by_name() -> str | None:
    """Return the best known Chinese font in matplotlib's list."""
    known = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in _CHINESE if name in known), None)


def _by_file() -> str | None:
    """Return any face of a known Chinese font file: matplotlib may list a collection under other faces."""
    faces = {f.name for f in font_manager.fontManager.ttflist if _CHINESE_FILES.search(f.fname)}
    return min(faces, key=lambda name: ("Mono" in name, "Serif" in name, name), default=None)


def _add_new_fonts() -> None:
    """Add Chinese fonts installed after matplotlib made its list, which it makes once for each user."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known and _CHINESE_FILES.search(path):
            # matplotlib may be unable to read the file.
            with suppress(OSError, RuntimeError):
                font_manager.fontManager.addfont(path)
