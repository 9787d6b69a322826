"""The picture of a model's inputs as scatter cuts them: a lane for each tensor, a piece of it for each GPU."""

from __future__ import annotations

from ...base.language import say
from ...plans.shapes import Cut, cut_shape
from ..captions import caption
from ..layout import MOST_LANES, lanes, shortened, text_width
from ..picture import Picture, Sketch, Text

_LEFT, _RIGHT, _TOP = 96, 110, 40


def inputs_picture(cut: Cut) -> Picture:
    """Dimension 0 of each tensor across the picture: what lies below one another is given to the same replica."""
    shown = shortened(len(cut.tensors), most=MOST_LANES, head=12, tail=3)
    lane = lanes(len(shown), _TOP, _LEFT, _RIGHT)
    sketch = Sketch()
    sketch.add(Text(_LEFT, 22, caption("cut", gpus=cut.gpus), 12, bold=True))

    def told(rest: range) -> str:
        name, count = cut.tensors[rest[0]][0], len(rest)
        return say(en=f"{name} … : {count} more tensors", zh=f"{name} ……：还有 {count} 个张量")

    for at, number in lane.one_by_one(sketch, shown, told):
        name, shape = cut.tensors[number]
        sketch.add(lane.name(at, name), lane.note(at, str(list(shape))))
        x, scale = float(_LEFT), lane.across / max(shape[0], 1)
        for gpu, piece in enumerate(cut_shape(shape, cut.gpus)):
            width, words = piece[0] * scale, f"cuda:{gpu}: {piece[0]}"
            tip = f"{name} · cuda:{gpu} · {list(piece)}"
            sketch.add(lane.bar(at, x, width, gpu, label=f"{name} cuda:{gpu}", tip=tip))
            for text in (words, str(piece[0])):
                if text_width(text, lane.size) + 4 <= width:
                    sketch.add(Text(x + width / 2, lane.line(at), text, lane.size, "middle", gpu=gpu))
                    break
            x += width
    return sketch.picture(lane.y(len(shown)) + 8, caption("cut", gpus=cut.gpus) + f": {cut!r}")
