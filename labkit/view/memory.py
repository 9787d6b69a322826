"""The picture of memory: a lane for each GPU, stacked by what the bytes are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from ..base.display import draws
from ..base.language import say
from ..base.units import bytes_text
from ..plans.footprint import KINDS, Footprint, Footprints
from .palette import CPU
from .picture import Box, Line, Picture, Text, lane_size, text_width
from .svg import to_svg

WIDTH = 720
_LEFT, _RIGHT, _TOP = 76, 172, 50
# Kinds are told apart by how pale they are, in the order of KINDS.
_PALE = (0.0, 0.3, 0.5, 0.67, 0.82)


def memory_picture(memory: Footprints) -> Picture:
    """What is on each GPU, as a :class:`Picture`; a byte is equally wide on all of them."""
    lane, size = lane_size(len(memory.gpus))
    across = WIDTH - _LEFT - _RIGHT
    most = max([found.total for found in memory.gpus] + [memory.capacity or 0, 1])
    scale = across / most
    boxes, texts = _legend()
    lines: list[Line] = []
    height = _TOP + len(memory.gpus) * lane + 30
    names = kind_names()
    limit = -99.0 if memory.capacity is None else _LEFT + memory.capacity * scale
    for gpu, found in enumerate(memory.gpus):
        y, x = _TOP + gpu * lane, float(_LEFT)
        line = y + lane / 2 + size * 0.35
        texts.append(Text(_LEFT - 8, line, f"cuda:{gpu}", size, "end", muted=not found.total))
        for kind, tint, held in zip(KINDS, _PALE, astuple(found), strict=True):
            if not held:
                continue
            width = held * scale
            tip = f"cuda:{gpu} · {names[kind]} · {bytes_text(held)}"
            boxes.append(
                Box(x, y + 2, width, lane - 4, gpu=gpu, tint=tint, label=f"cuda:{gpu} {kind}", tip=tip)
            )
            words, fine = names[kind], min(size, 11.5)
            half = text_width(words, fine) / 2
            crossed = abs(x + width / 2 - limit) < half + 3
            if lane >= 15 and 2 * half + 6 <= width and not crossed:
                texts.append(Text(x + width / 2, line, words, fine, "middle", gpu=gpu, tint=tint))
            x += width
        over = gpu in memory.over
        held = bytes_text(found.total) if found.total else say(en="nothing", zh="无")
        note = held + (say(en=", too much", zh="，超出") if over else "")
        texts.append(Text(WIDTH - _RIGHT + 8, line, note, size, bold=over, muted=not found.total))
    if memory.capacity is not None:
        x = limit
        lines.append(Line(x, _TOP - 6, x, height - 26, dashed=True, strong=True, over=True))
        words = say(
            en=f"capacity {bytes_text(memory.capacity)}", zh=f"显存容量 {bytes_text(memory.capacity)}"
        )
        half = text_width(words, 11) / 2
        texts.append(Text(min(max(x, half + 4), WIDTH - half - 4), height - 10, words, 11, "middle"))
    return Picture(WIDTH, height, tuple(boxes), tuple(texts), describe_memory(memory), tuple(lines))


def describe_memory(memory: Footprints) -> str:
    """The memory in one sentence."""
    totals = [found.total for found in memory.gpus]
    others = max(totals[1:], default=0)
    text = say(en=f"cuda:0 holds {bytes_text(totals[0])}", zh=f"cuda:0 占用 {bytes_text(totals[0])}")
    if len(totals) > 1:
        text += say(
            en=f", every other GPU at most {bytes_text(others)}",
            zh=f"，其余 GPU 最多各占 {bytes_text(others)}",
        )
    if memory.over:
        text += say(
            en=f"; {len(memory.over)} of {len(totals)} would run out of memory",
            zh=f"；{len(totals)} 块 GPU 中有 {len(memory.over)} 块显存不够",
        )
    return text + say(en=".", zh="。")


def kind_names() -> dict[str, str]:
    """What the kinds are called in the language in use."""
    return {
        "weights": say(en="weights", zh="权重"),
        "activations": say(en="activations", zh="激活值"),
        "outputs": say(en="outputs", zh="输出"),
        "gradients": say(en="gradients", zh="梯度"),
        "optimizer": say(en="optimizer", zh="优化器状态"),
    }


@draws(Footprints)
def memory_svg(memory: Footprints) -> str:
    """The memory as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(memory_picture(memory), panel=True)


def draw_memory(memory: Footprints | Sequence[Footprint], *, ax=None):
    """Draw what is on each GPU; returns the matplotlib Axes.

    memory  what :func:`labkit.data_parallel_memory` gives, or a :class:`labkit.plans.footprint.Footprint` for each GPU.
    ax      the Axes to draw into; a new figure if not given.

    Raises TypeError for anything else, ValueError if there is no GPU.
    """
    if not isinstance(memory, Footprints):
        if not isinstance(memory, (tuple, list)):
            raise TypeError(
                f"memory must be what labkit.data_parallel_memory gives, got {memory!r} ({type(memory).__name__})"
            )
        memory = Footprints(tuple(memory))
        for gpu, found in enumerate(memory.gpus):
            if not isinstance(found, Footprint):
                raise TypeError(f"memory must have a Footprint for each GPU, got {found!r} for cuda:{gpu}")
    if not memory.gpus:
        raise ValueError("memory must have a Footprint for at least one GPU, got none")
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: memory_picture(memory), ax)


def _legend() -> tuple[list[Box], list[Text]]:
    boxes, texts, x = [], [], float(_LEFT)
    for (kind, words), tint in zip(kind_names().items(), _PALE, strict=True):
        boxes.append(Box(x, 12, 16, 14, gpu=CPU, tint=tint, label=f"legend {kind}"))
        texts.append(Text(x + 21, 23, words, 11))
        x += 21 + text_width(words, 11) + 20
    return boxes, texts
