"""Pictures painted by matplotlib, into the caller's Axes, leaving matplotlib's own settings alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import matplotlib.pyplot as plt
from matplotlib import font_manager
from matplotlib.patches import Rectangle

from .. import language
from .palette import colour, ink
from .picture import Picture

_PIXELS_PER_INCH = 100
_CHINESE = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "PingFang SC", "Heiti SC",
    "Hiragino Sans GB", "Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Noto Sans CJK JP",
)  # fmt: skip


def paint(make: Callable[[], Picture], ax=None):
    """Paint the picture that ``make`` gives into ``ax`` (or a new figure); returns the Axes.

    Without a Chinese font on the computer, matplotlib would draw empty boxes: the picture is then made in
    English, with a warning that says so.
    """
    family = None
    if language.get_language() == "zh":
        family = chinese_font()
        if family is None:
            warnings.warn(
                "这台电脑没有中文字体，matplotlib 图改用英文；安装 Noto Sans CJK 后重试 "
                "(no Chinese font is installed: this figure is in English)",
                stacklevel=3,
            )
            make = _in_english(make)
    picture = make()
    if ax is None:
        size = picture.width / _PIXELS_PER_INCH, picture.height / _PIXELS_PER_INCH
        _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.set_xlim(0, picture.width)
    ax.set_ylim(picture.height, 0)
    ax.set_aspect("equal")
    ax.set_axis_off()
    for box in picture.boxes:
        ax.add_patch(
            Rectangle(
                (box.x, box.y), box.width, box.height,
                facecolor="none" if box.gpu is None else colour(box.gpu),
                edgecolor="#888888" if box.gpu is None else "white",
                linestyle="--" if box.dashed else "-", linewidth=0.7, label=box.label or "_",
            )
        )  # fmt: skip
    for text in picture.texts:
        ax.text(
            text.x, text.y, text.text, fontsize=text.size * 72 / _PIXELS_PER_INCH,
            ha={"start": "left", "middle": "center", "end": "right"}[text.anchor], va="baseline",
            color=None if text.gpu is None else ink(text.gpu), alpha=0.65 if text.muted else 1,
            fontweight="bold" if text.bold else "normal", family=family,
        )  # fmt: skip
    return ax


@cache
def chinese_font() -> str | None:
    """The name of an installed font with Chinese characters, or None."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in _CHINESE if name in installed), None)


def _in_english(make: Callable[[], Picture]) -> Callable[[], Picture]:
    def made() -> Picture:
        language.set_language("en")
        try:
            return make()
        finally:
            language.set_language("zh")

    return made
