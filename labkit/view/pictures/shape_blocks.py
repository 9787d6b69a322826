"""The picture of a wrong batch dimension: the replicas' outputs, and how gather joins them.

Gather concatenates along dimension 0, whatever that means. Each panel has the outputs on the left and the gathered one
on the right; dimension 0 is vertical, dimension 1 horizontal. Dashed is the result of one GPU.
"""

from __future__ import annotations

from ...base.language import say
from ...plans.shapes import Shape, cut_shape, dimension, gathered_shape, shape_text
from ..captions import caption
from ..layout import BASELINE, devices, fit_size, fit_text, group_neighbours
from ..picture import Box, Label, Line, Picture, Sketch

_PANEL, _MARGIN, _TOP = 352, 16, 70
# In a panel: width of a block; left edges of labels, arrow and gathered block.
_ACROSS, _LABEL, _ARROW, _GLUED = 72, 78, 226, 258
_TALL, _SIZE = 168, 10.5
# The most pieces drawn; more are drawn in groups.
_MOST = 64


def shapes_picture(shape: Shape, gpus: int, *, batch_dim: int = 0) -> Picture:
    """Draw the replicas' outputs, and their gathering, if the batch is in dimension ``batch_dim``.

    shape   the model's output for the whole batch on one GPU.
    """
    shape = tuple(shape)
    batch_dim = dimension("batch_dim", batch_dim, len(shape))
    sketch = Sketch()
    sketch.add(*_panel(_MARGIN, shape, gpus, batch_dim))
    if batch_dim:
        first = (shape[batch_dim], *shape[:batch_dim], *shape[batch_dim + 1 :])
        sketch.add(*_panel(_MARGIN + _PANEL, first, gpus, 0))
    return sketch.picture(_TOP + _TALL + 20 + 56, _description(shape, gpus, batch_dim))


def _description(shape: Shape, gpus: int, batch_dim: int) -> str:
    pieces = cut_shape(shape, gpus, batch_dim)
    output = gathered_output(shape, gpus, batch_dim)
    if output is None:
        return caption("shapes", "fails", dim=batch_dim)
    facts = {"pieces": len(pieces), "got": shape_text(output), "wanted": shape_text(shape), "dim": batch_dim}
    right = "right" if len(pieces) > 1 else "alone"
    return caption("shapes", right if output == shape else "wrong", **facts)


def gathered_output(shape: Shape, gpus: int, batch_dim: int) -> Shape | None:
    """Return the shape of outputs cut along ``batch_dim`` and gathered; None if gather fails."""
    try:
        return gathered_shape(cut_shape(shape, gpus, batch_dim), 0)
    except ValueError:
        return None


def _panel(x: float, shape: Shape, gpus: int, batch_dim: int) -> list[Box | Line | Label]:
    """Draw a panel with its left edge at ``x``."""
    pieces, output = cut_shape(shape, gpus, batch_dim), gathered_output(shape, gpus, batch_dim)
    title = caption("shapes", "panel", dim=batch_dim) if batch_dim else caption("shapes", "panel", "first")
    alone = say(en=f"on one GPU: {shape_text(shape)}", zh=f"单块 GPU 上：{shape_text(shape)}")
    axes = say(en="↓ dimension 0", zh="竖：第 0 维")
    if len(shape) > 1:
        axes += say(en="    → dimension 1", zh="，横：第 1 维")
    middle = _TOP + 10 + _TALL / 2
    return [
        Label(x, 22, fit_text(title, _PANEL - 16, 13), 13, bold=True),
        Label(x, 40, fit_text(alone, _PANEL - 16, 12), 12, muted=True),
        Label(x, 58, axes, 10.5, muted=True),
        *_blocks(x, shape, pieces, output),
        Line(x + _ARROW, middle, x + _GLUED - 6, middle, arrow=True),
        *_verdict(x, shape, pieces, output, batch_dim),
    ]


def _blocks(
    x: float, shape: Shape, pieces: tuple[Shape, ...], output: Shape | None
) -> list[Box | Line | Label]:
    """Draw the pieces with their shapes, and the gathered output."""
    groups = group_neighbours(len(pieces), _MOST)
    up = _TALL / max(sum(piece[0] for piece in pieces), 1)
    wide = _ACROSS / max(*shape[1:2], 1, 1)
    gap = min(6.0, 20 / len(groups))
    heights = [sum(pieces[gpu][0] for gpu in group) * up for group in groups]
    end = _TOP + sum(heights) + gap * (len(groups) - 1)  # the lower edge of the pieces
    y, top, labelled = float(_TOP), _TOP + 10.0, -99.0
    found: list[Box | Line | Label] = []
    for group, height in zip(groups, heights, strict=True):
        piece, name = pieces[group[0]], devices(group)
        width = max((piece[1] if len(piece) > 1 else 1) * wide, 8.0)
        words = f"{name} {shape_text(piece)}" if len(group) == 1 else f"{len(group)} × {shape_text(piece)}"
        if height:
            tip = f"{name}: {words}" if len(group) > 1 else words
            found.append(Box(x, y, width, height, group[0], name, tip=tip))
            if output is not None:
                found.append(Box(x + _GLUED, top, width, height, group[0], f"glued {name}"))
        middle, last = y + height / 2, group is groups[-1]
        # The distance to the previous label, and to the last of all.
        apart = min(middle - labelled, end - heights[-1] / 2 - middle)
        if last or apart >= _SIZE + 2:
            beside = width + _LABEL - _ACROSS
            label = fit_text(words, _ARROW - beside - 4, _SIZE)
            found.append(Label(x + beside, middle + _SIZE * BASELINE, label, _SIZE))
            labelled = middle
        y += height + gap
        top += height
    if output is None:
        found.append(Box(x + _GLUED, _TOP + 10, _ACROSS, _TALL, dashed=True, label="nothing"))
    elif output != shape:  # the right shape, at the same scale
        height = max(min(shape[0] * up, _TALL), 3.0)
        found.append(Box(x + _GLUED, _TOP + 10, _ACROSS, height, None, "wanted", dashed=True, strong=True))
        words = fit_text(caption("shapes", "dashed"), _PANEL - _ARROW + 10, _SIZE)
        found.append(Label(x + _GLUED + _ACROSS, 58, words, _SIZE, "end", muted=True))
    return found


def _verdict(
    x: float, shape: Shape, pieces: tuple[Shape, ...], output: Shape | None, batch_dim: int
) -> list[Label]:
    """Write in two lines whether the result is right."""
    y, wanted = _TOP + _TALL + 46, shape_text(shape)
    if output is None:
        sizes = sorted({piece[batch_dim] for piece in pieces}, reverse=True)
        first = say(en="✗ gather fails", zh="✗ gather（收集）失败")
        listed = say(en=" and ", zh=" 与 ").join(map(str, sizes))
        second = caption("shapes", "differ", sizes=listed, dim=batch_dim)
    elif output == shape:
        first, second = f"✓ {wanted}", say(en="the same as on one GPU", zh="与单块 GPU 上的一样")
    else:
        got = shape_text(output)
        first = say(en=f"✗ {got}, not {wanted}", zh=f"✗ {got}，而不是 {wanted}")
        second = say(en="no error, wrong meaning", zh="没有报错，含义却错了")
    size = max(fit_size(first, _PANEL - 32, 13, bold=True), _SIZE)
    return [
        Label(x, y, fit_text(first, _PANEL - 32, size), size, bold=True),
        Label(x, y + 18, fit_text(second, _PANEL - 24, 12), 12, muted=True),
    ]
