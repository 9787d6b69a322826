"""The picture of the wrong batch dimension: the outputs of the replicas, and what gather makes of them.

Gather glues along dimension 0, whatever that dimension means. Each panel has the replicas' outputs apart on
the left and glued on the right; up and down is dimension 0, across is dimension 1. Dashed is what one GPU gives.
"""

from __future__ import annotations

from ..base.language import say
from ..plans.split import Shape, cut_shape, gathered_shape
from .picture import Box, Line, Picture, Text, fitted
from .svg import to_svg

WIDTH = 720
_PANEL, _MARGIN, _TOP = 352, 16, 62
# In a panel: greatest width of a block, where labels, the arrow and the glued block begin.
_ACROSS, _LABEL, _ARROW, _GLUED = 72, 78, 226, 258
_TALL, _SIZE = 168, 10.5


def shapes_picture(shape: Shape, gpus: int, *, batch_dim: int = 0) -> Picture:
    """What gather makes of an output whose batch is on dimension ``batch_dim``, as a :class:`Picture`.

    shape   the output of the model for the whole batch on one GPU.
    """
    shape, batch_dim = _checked(shape, gpus, batch_dim)
    first = _first(shape, batch_dim)
    panels = [_Panel(_MARGIN, shape, gpus, batch_dim)]
    if batch_dim:
        panels.append(_Panel(_MARGIN + _PANEL, first, gpus, 0))
    height = _TOP + _TALL + 20 + 56
    return Picture(
        WIDTH, height, tuple(b for p in panels for b in p.boxes), tuple(t for p in panels for t in p.texts),
        describe_shapes(shape, gpus, batch_dim=batch_dim), tuple(line for p in panels for line in p.lines),
    )  # fmt: skip


def describe_shapes(shape: Shape, gpus: int, *, batch_dim: int = 0) -> str:
    """What gather makes of it, in one sentence."""
    shape, batch_dim = _checked(shape, gpus, batch_dim)
    pieces = cut_shape(shape, gpus, batch_dim)
    output = glued(shape, gpus, batch_dim)
    if output is None:
        return say(
            en=f"The batch is on dimension {batch_dim} and its pieces differ in size: gather fails.",
            zh=f"批次在第 {batch_dim} 维，各分块大小不同：gather（收集）会失败。",
        )
    if output == shape:
        return say(
            en=f"gather glues {len(pieces)} outputs along dimension 0 to {_text(output)}, as on one GPU.",
            zh=f"gather（收集）把 {len(pieces)} 份输出沿第 0 维拼接成 {_text(output)}，与单块 GPU 上的一样。",
        )
    return say(
        en=f"gather glues {len(pieces)} outputs along dimension 0 to {_text(output)}; "
        f"the batch is on dimension {batch_dim}, so it should be {_text(shape)}. No error says so.",
        zh=f"gather（收集）把 {len(pieces)} 份输出沿第 0 维拼接成 {_text(output)}；批次其实在第 {batch_dim} 维，"
        f"本该得到 {_text(shape)}，却没有任何报错。",
    )


def shapes_svg(shape: Shape, gpus: int, *, batch_dim: int = 0) -> str:
    """The picture as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(shapes_picture(shape, gpus, batch_dim=batch_dim), panel=True)


def draw_shapes(shape: Shape, gpus: int, *, batch_dim: int = 0, ax=None):
    """Draw what gather makes of a model's output; returns the matplotlib Axes.

    shape      the model's output for the whole batch on one GPU, such as ``(65, 32, 5530)``.
    batch_dim  the dimension of it that counts the rows of the batch, here 1; on any but 0 the cure is drawn beside.
    ax         the Axes to draw into; a new figure if not given.

    Raises ValueError if there is no such dimension or no GPU.
    """
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: shapes_picture(shape, gpus, batch_dim=batch_dim), ax)


def glued(shape: Shape, gpus: int, batch_dim: int) -> Shape | None:
    """The shape that gather gives for outputs cut along ``batch_dim``; None where gather fails."""
    try:
        return gathered_shape(cut_shape(shape, gpus, batch_dim), 0)
    except ValueError:
        return None


class _Panel:
    """The shapes of one panel, whose left edge is ``x``."""

    def __init__(self, x: float, shape: Shape, gpus: int, batch_dim: int) -> None:
        self.pieces = cut_shape(shape, gpus, batch_dim)
        self.output = glued(shape, gpus, batch_dim)
        self.boxes: list[Box] = []
        self.texts: list[Text] = []
        self.lines: list[Line] = []
        title = (
            say(en=f"batch on dimension {batch_dim}", zh=f"批次在第 {batch_dim} 维")
            if batch_dim
            else say(en="batch first", zh="批次在第 0 维")
        )
        whole = say(en=f"on one GPU: {_text(shape)}", zh=f"单块 GPU 上：{_text(shape)}")
        self.texts.append(Text(x, 22, fitted(title, _PANEL - 16, 13), 13, bold=True))
        self.texts.append(Text(x, 40, fitted(whole, _PANEL - 16, 12), 12, muted=True))
        self._blocks(x, shape)
        self._verdict(x, shape, batch_dim)

    def _blocks(self, x: float, shape: Shape) -> None:
        along = [max(piece[0], 0) for piece in self.pieces]
        across = [piece[1] if len(piece) > 1 else 1 for piece in self.pieces]
        up, wide = _TALL / max(sum(along), 1), _ACROSS / max(*shape[1:2], 1, 1)
        gap = min(6.0, 20 / len(self.pieces))
        y, labelled = float(_TOP), -99.0
        top = _TOP + 10.0
        last = len(self.pieces) - 1
        heights = [rows * up for rows in along]
        end = _TOP + sum(heights) + gap * last  # the lower edge of the pieces
        for gpu, piece in enumerate(self.pieces):
            width, height = max(across[gpu] * wide, 8.0), heights[gpu]
            name = f"cuda:{gpu}"
            if height:
                self.boxes.append(Box(x, y, width, height, gpu=gpu, label=name, tip=f"{name} {_text(piece)}"))
                self.boxes.append(Box(x + _GLUED, top, width, height, gpu=gpu, label=f"glued {name}"))
            middle = y + height / 2
            room = middle - labelled >= _SIZE + 2 and (
                gpu == last or end - heights[-1] / 2 - middle >= _SIZE + 2
            )
            if room or gpu == last:
                beside = width + _LABEL - _ACROSS
                words = fitted(f"{name} {_text(piece)}", _ARROW - beside - 4, _SIZE)
                self.texts.append(Text(x + beside, middle + _SIZE * 0.35, words, _SIZE))
                labelled = middle
            y += height + gap
            top += height
        if self.output is None:
            self.boxes = [box for box in self.boxes if not box.label.startswith("glued")]
            self.boxes.append(Box(x + _GLUED, _TOP + 10, _ACROSS, _TALL, dashed=True, label="nothing"))
        elif self.output != shape:  # what it should have been, at the same scale
            height = max(min(shape[0] * up, _TALL), 3.0)
            self.boxes.append(
                Box(x + _GLUED, _TOP + 10, _ACROSS, height, dashed=True, strong=True, label="wanted")
            )
        middle = _TOP + 10 + _TALL / 2
        self.lines.append(Line(x + _ARROW, middle, x + _GLUED - 6, middle, arrow=True))

    def _verdict(self, x: float, shape: Shape, batch_dim: int) -> None:
        y = _TOP + _TALL + 46
        if self.output is None:
            sizes = sorted({piece[batch_dim] for piece in self.pieces}, reverse=True)
            first = say(en="✗ gather fails", zh="✗ gather（收集）失败")
            listed = say(en=" and ", zh=" 与 ").join(map(str, sizes))
            second = say(
                en=f"sizes {listed} differ on dimension {batch_dim}",
                zh=f"第 {batch_dim} 维的大小 {listed} 不一致",
            )
        elif self.output == shape:
            first = "✓ " + _text(self.output)
            second = say(en="the same as on one GPU", zh="与单块 GPU 上的一样")
        else:
            got, wanted = _text(self.output), _text(shape)
            first = say(en=f"✗ {got}, not {wanted}", zh=f"✗ {got}，而不是 {wanted}")
            second = say(en="no error, wrong meaning", zh="没有报错，含义却错了")
        self.texts.append(Text(x, y, fitted(first, _PANEL - 48, 13), 13, bold=True))
        self.texts.append(Text(x, y + 18, fitted(second, _PANEL - 24, 12), 12, muted=True))


def _checked(shape: Shape, gpus: int, batch_dim: int) -> tuple[Shape, int]:
    shape = tuple(shape)
    if not isinstance(batch_dim, int) or not -len(shape) <= batch_dim < len(shape):
        raise ValueError(f"batch_dim must be from {-len(shape)} to {len(shape) - 1}, got {batch_dim!r}")
    cut_shape(shape, gpus, batch_dim)  # refuses what is no shape, or no number of GPUs
    return shape, batch_dim % len(shape)


def _first(shape: Shape, batch_dim: int) -> Shape:
    """``shape`` with the batch dimension moved to the front."""
    return (shape[batch_dim], *shape[:batch_dim], *shape[batch_dim + 1 :])


def _text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"
