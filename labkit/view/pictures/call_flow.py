"""The picture of a data-parallel call: scatter → replicas → gather, forward and backward.

A box has the colour of its device; batch, pieces and outputs are as high as they have rows. Forward runs from left to
right, backward (pale boxes, dashed arrows) from right to left; a tensor that stays on its device has a line without
arrow head. :data:`STEPS` are the steps of a call; the picture of one step shows what exists by then.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from ...base.language import say
from ...base.numbers import integer, must, plural
from ...plans.shapes import Shape, shape_text
from ...plans.split import Split
from ...trace.trace import Trace
from ..captions import caption
from ..flow import Flow, flow_of_split, flow_of_trace
from ..layout import choose_shown, fit_size, fit_text
from ..palette import number
from ..picture import Box, Label, Line, Picture, Sketch

STEPS = (
    "batch", "scatter", "replicate", "parallel_apply", "gather",
    "gather backward", "parallel_apply backward", "replicate backward",
)  # fmt: skip
_BATCH, _SCATTER, _REPLICATE, _APPLY, _GATHER, _GRADIENT, _BACK, _REDUCE = range(8)
# The columns (left edge, width): batch; the three cells of a replica's lane; output; its gradient.
_IN, _PIECE, _REPLICA, _MADE = (16, 84), (178, 92), (306, 108), (438, 84)
_OUT, _GRADIENT_OUT = (598, 62), (664, 40)
_FORWARD, _BACKWARD, _GAP, _SIZE = 27, 20, 11, 12
_PART = 20.0  # room for a piece's words in the whole batch
_LEAST = 3.0  # the height of an empty piece
# The most GPUs drawn one by one; of more, the first and the last, with a line between.
_MOST, _HEAD, _TAIL = 8, 4, 2
_PALE = 0.62
_CODE = (
    ("batch = torch.randn({})", (_BATCH,)),
    ("inputs = scatter(batch, gpus)", (_SCATTER,)),
    ("replicas = replicate(module, gpus)", (_REPLICATE,)),
    ("outputs = parallel_apply(replicas, inputs)", (_APPLY,)),
    ("output = gather(outputs, home)", (_GATHER,)),
    ("output.sum().backward()", (_GRADIENT, _BACK, _REDUCE)),
)


def flow_picture(source: Flow | Split | Trace, step: int | None = None, *, call: int = 0) -> Picture:
    """Draw a call.

    source   a split, or a trace, of which call number ``call`` is drawn.
    step     a position in :data:`STEPS`: only what exists by then, with the line of code; None: everything.
    """
    flow = _flow(source, call)
    step = None if step is None else integer("step", step, 0, len(STEPS) - 1)
    return _Painter(flow, step).picture()


def _flow(source: Flow | Split | Trace, call: int) -> Flow:
    if isinstance(source, Flow):
        return source
    if isinstance(source, Split):
        return flow_of_split(source)
    if isinstance(source, Trace):
        return flow_of_trace(source, call)
    raise TypeError(must("data", source, en="a Trace or a Split", zh="是 Trace 或 Split", typed=True))


def _description(flow: Flow, step: int | None) -> str:
    """Describe the call, or one step of it, in a sentence."""
    batch, output, gpus = _shape(flow.batch), _shape(flow.output), len(flow.shares)
    if step is None:
        text = caption("call", flow=flow, batch=batch, output=output, gpus=gpus)
        if flow.backward:
            text += caption("call", "backward", home=flow.home)
        return text + say(en=".", zh="。")
    if not flow.copies and step in (_REPLICATE, _GATHER, _GRADIENT, _REDUCE):
        return caption("call", "one-gpu")
    idle = say(en=f" ({len(flow.idle)} idle)", zh=f"（{len(flow.idle)} 块空闲）") if flow.idle else ""
    return caption("call", "step", str(step), flow=flow, batch=batch, output=output, gpus=gpus, idle=idle)


class _Painter:
    """Collects the shapes of the picture of ``flow`` at ``step``."""

    def __init__(self, flow: Flow, step: int | None) -> None:
        self.flow, self.step, self.sketch = flow, step, Sketch()
        self.backward = flow.backward or step is not None
        # A recording of a call on one GPU has no output.
        self.made = step is not None or any(share.made is not None for share in flow.shares)
        self.given_rows = [_rows(share.given) for share in flow.shares]
        self.made_rows = [_rows(share.made) for share in flow.shares]

    def picture(self) -> Picture:
        top = self._code(14.0) if self.step is not None else 14.0
        y = first = self._module(top) + _GAP + 6
        lanes = []
        for shares, words in _entries(self.flow):
            lanes.append((shares, y))
            y = (self._placeholder(words, y) if words else self._lane(shares[0], y)) + _GAP
        bottom = y - _GAP
        if self.step is None and self.flow.copies:
            self._headings(first)
        working = [(shares, y) for shares, y in lanes if shares]
        self._scatter(working, first, bottom)
        if self.flow.copies:
            self._weights(working, top)
        if self.made:
            self._gather(working, first, bottom)
        return self.sketch.picture(y + 2, _description(self.flow, self.step))

    def _is_reached(self, step: int) -> bool:
        return self.step is None or self.step >= step

    def _code(self, y: float) -> float:
        """Write the lines of code in two columns, the current one in bold."""
        shape = ", ".join(map(str, self.flow.batch or ()))
        home = ".to(home)" * (self.flow.source == self.flow.home)
        for at, (line, steps) in enumerate(_CODE):
            x, row = 16 + 330 * (at // 3), at % 3
            now = self.step in steps
            words = ("▶ " if now else "  ") + fit_text(line.format(shape) + home * (at == 0), 340, 11)
            self.sketch.add(Label(x, y + 12 + 17 * row, words, 11, mono=True, bold=now, muted=not now))
        return y + 3 * 17 + 16

    def _module(self, y: float) -> float:
        """Draw the module, its device beside and its gradient below; return the lower edge."""
        flow, (left, width), gpu = self.flow, _REPLICA, number(self.flow.home)
        words = fit_text(flow.module or say(en="module", zh="模块"), width - 8, _SIZE)
        home = say(en=f"⌂ {flow.home}, home", zh=f"⌂ {flow.home}，主设备")
        self.sketch.add(
            Box(left, y, width, _FORWARD, gpu, "module"),
            Label(left + width / 2, y + 17, words, _SIZE, "middle", gpu=gpu, bold=True),
            Label(_end(_REPLICA) + 24, y + 17, home, _SIZE, muted=True),
        )
        if not self.backward:
            return y + _FORWARD
        summed = say(en="gradient, summed", zh="梯度之和")
        self._cell(_REPLICA, y + _FORWARD + 1, flow.home, summed, _REDUCE, "gradient summed", _BACKWARD)
        return y + _FORWARD + 1 + _BACKWARD

    def _headings(self, y: float) -> None:
        """Name the steps above what they make, and gather above its arrows, for the output has words of its own."""
        headings = {
            _PIECE: say(en="scatter", zh="分发"), _REPLICA: say(en="replicate", zh="复制"),
            _MADE: say(en="parallel apply", zh="并行执行"),
            (_end(_MADE), _OUT[0] - _end(_MADE)): say(en="gather", zh="收集"),
        }  # fmt: skip
        for (left, width), words in headings.items():
            self.sketch.add(Label(left + width / 2, y - 5, words, 10.5, "middle", muted=True))

    def _lane(self, at: int, y: float) -> float:
        """Draw the lane of GPU number ``at``: forward and, below, backward; return the lower edge."""
        share = self.flow.shares[at]
        device, middle = share.device, y + _FORWARD / 2
        made = _shape(share.made)
        given, out = _high(self.given_rows, at), _high(self.made_rows, at)
        self._cell(_PIECE, y, device, _shape(share.given, share.more), _SCATTER, "input", given * _FORWARD)
        self._cell(_REPLICA, y, device, device, _REPLICATE, "replica", _FORWARD, always_text=True)
        into = y + min(middle - y, given * _FORWARD / 2)
        self._arrow(_APPLY, _end(_PIECE), into, _REPLICA[0] - 1, into)
        if not self.made:
            return y + _FORWARD
        self._cell(_MADE, y, device, made, _APPLY, "output of a replica", out * _FORWARD)
        into = y + min(middle - y, out * _FORWARD / 2)
        self._arrow(_APPLY, _end(_REPLICA), into, _MADE[0] - 1, into)
        if not self.backward:
            return y + _FORWARD
        back = y + _FORWARD + 1
        words = say(en=f"grad {made}", zh=f"梯度 {made}")
        self._cell(_MADE, back, device, words, _GRADIENT, "gradient", out * _BACKWARD)
        words = say(en="grad of weights", zh="权重的梯度")
        self._cell(_REPLICA, back, device, words, _BACK, "gradient of the weights", _BACKWARD)
        into = back + out * _BACKWARD / 2
        self._arrow(_BACK, _MADE[0], into, _end(_REPLICA) + 1, into, dashed=True)
        return back + _BACKWARD

    def _placeholder(self, words: str, y: float) -> float:
        """Draw a line about GPUs without a lane; return the lower edge."""
        left, right = _PIECE[0], _end(_MADE)
        self.sketch.add(
            Box(left, y, right - left, _FORWARD, dashed=True),
            Label((left + right) / 2, y + _FORWARD / 2 + _SIZE * 0.36, words, _SIZE, "middle", muted=True),
        )
        return y + _FORWARD

    def _scatter(self, working: list[tuple[range, float]], first: float, bottom: float) -> None:
        """Draw the whole batch, and arrows to its pieces."""
        flow, (left, width), gpu = self.flow, _IN, number(self.flow.source)
        edges = _edges(self.given_rows, first, bottom)
        self._title(_IN, edges[0], say(en="batch", zh="批次"), flow.batch, flow.source)
        tall = edges[-1] - edges[0]
        self.sketch.add(Box(left, edges[0], width, tall, gpu, "batch", strong=self.step == _BATCH))
        starts = [0, *accumulate(self.given_rows)]
        parts = list(pairwise(range(len(edges)))) if self._is_reached(_SCATTER) else [(0, len(edges) - 1)]
        for one, other in parts:
            if one and edges[other] - edges[one] > 2:
                self.sketch.add(Line(left, edges[one], left + width, edges[one], dashed=True, over=True))
            words = _span(starts[one], starts[other])
            high, size = edges[other] - edges[one], fit_size(words, width - 4, _SIZE)
            if high >= _SIZE + 2:
                line = (edges[one] + edges[other]) / 2 + _SIZE * 0.36
                self.sketch.add(Label(left + width / 2, line, words, size, "middle", gpu=gpu))
            elif other == len(edges) - 1 and edges[1] - edges[0] >= _SIZE + 2:  # short last piece
                self.sketch.add(Label(left + width / 2, edges[-1] + 12, words, min(size, 10.0), "middle"))
        for shares, y in working:
            device, high = flow.shares[shares[0]].device, _high(self.given_rows, shares[0])
            into = y + (high if len(shares) == 1 else 1) * _FORWARD / 2
            out = (edges[shares.start] + edges[shares.stop]) / 2
            self._arrow(_SCATTER, left + width, out, _PIECE[0] - 1, into, stays=device == flow.source)

    def _gather(self, working: list[tuple[range, float]], first: float, bottom: float) -> None:
        """Draw the joined output and its gradient, with arrows from and to the parts."""
        flow, (left, width), gpu = self.flow, _OUT, number(self.flow.target)
        edges = _edges(self.made_rows, first, bottom)
        high = edges[-1] - edges[0]
        there = self._is_reached(_GATHER)
        title = say(en="output", zh="输出")
        self._title(_OUT, edges[0], title, flow.output, flow.target, right=True, muted=not there)
        parts = [(_OUT, _GATHER, "output")]
        parts += [(_GRADIENT_OUT, _GRADIENT, "gradient of the output")] * self.backward
        for column, step, label in parts:
            fill = {"gpu": gpu, "strong": self.step == step} if self._is_reached(step) else {"dashed": True}
            tint = _PALE if step == _GRADIENT and self._is_reached(step) else 0.0
            self.sketch.add(Box(column[0], edges[0], column[1], high, label=label, tint=tint, **fill))
        if self.backward:
            words, x = say(en="gradient", zh="梯度"), _GRADIENT_OUT[0] + _GRADIENT_OUT[1] / 2
            self.sketch.add(
                Label(x, edges[-1] + 15, words, 10.5, "middle", muted=not self._is_reached(_GRADIENT))
            )
        crossed = list[tuple[float, float]]()  # where arrows of the gradient cross the output
        for shares, y in working:
            stays, one = flow.shares[shares[0]].device == flow.target, len(shares) == 1
            part = _high(self.made_rows, shares[0]) if one else 1.0
            out = (edges[shares.start] + edges[shares.stop]) / 2
            self._arrow(_GATHER, _end(_MADE), y + part * _FORWARD / 2, left - 1, out, stays=stays)
            if self.backward:
                into = y + _FORWARD + 1 + part * _BACKWARD / 2 if one else y + _FORWARD - 6
                way = _GRADIENT_OUT[0], out, _end(_MADE) + 1, into
                self._arrow(_GRADIENT, *way, dashed=True, stays=stays, over=True)
                slope = (into - out) / (_GRADIENT_OUT[0] - _end(_MADE) - 1)
                crossed.append((out, out + slope * (_GRADIENT_OUT[0] - left)))
        if there and high >= _SIZE + 2 and sum(self.made_rows) == sum(self.given_rows):
            words = _span(0, sum(self.made_rows))
            size = fit_size(words, width - 4, _SIZE)
            middle = _free_middle(edges[0], edges[-1], crossed, size + 2)
            self.sketch.add(Label(left + width / 2, middle + size * 0.36, words, size, "middle", gpu=gpu))

    def _weights(self, working: list[tuple[range, float]], top: float) -> None:
        """Draw two trunks with branches: from the module to the replicas, from their gradients to the sum."""
        home = self.flow.home
        down, up = _REPLICA[0] - 17, _end(_REPLICA) + 12
        out, back = top + _FORWARD / 2, top + _FORWARD + 1 + _BACKWARD / 2
        self._line(_REPLICATE, _REPLICA[0], out, down, out)
        above, below = out, back
        for shares, y in working:
            if len(shares) > 1:  # the trunk continues under their line
                self._line(_REPLICATE, down, above, down, y)
                self._line(_REDUCE, up, below, up, y, dashed=True)
                above = below = y + _FORWARD
                continue
            stays = self.flow.shares[shares[0]].device == home
            into, from_ = y + _FORWARD - 5, y + _FORWARD + 1 + _BACKWARD - 4
            self._line(_REPLICATE, down, above, down, into)
            self._arrow(_REPLICATE, down, into, _REPLICA[0] - 1, into, stays=stays)
            above = into
            if self.backward:
                self._line(_REDUCE, up, below, up, from_, dashed=True)
                self._line(_REDUCE, up, from_, _end(_REPLICA), from_, dashed=True)
                below = from_
        if self.backward:
            self._arrow(_REDUCE, up, back, _end(_REPLICA) + 1, back, dashed=True)

    def _title(
        self, column: tuple[float, float], y: float, title: str, shape: Shape | None, device: str, *,
        right: bool = False, muted: bool = False,
    ) -> None:  # fmt: skip
        """Write a box's name, shape and device in three lines above."""
        x, anchor = (_end(_GRADIENT_OUT), "end") if right else (column[0], "start")
        where = say(en=f"on {device}", zh=f"在 {device} 上")
        words, room = _shape(shape), _end(_GRADIENT_OUT) - _OUT[0]
        self.sketch.add(
            Label(x, y - 39, title, _SIZE + 1, anchor, bold=True, muted=muted),
            Label(x, y - 23, words, fit_size(words, room, _SIZE), anchor, muted=muted),
            Label(x, y - 8, where, _SIZE - 0.5, anchor, muted=True),
        )

    def _cell(
        self, column: tuple[float, float], y: float, device: str, text: str, step: int, box_label: str, height: float,
        *, always_text: bool = False,
    ) -> None:  # fmt: skip
        """Draw a box that exists from ``step`` on, dashed before.

        text          stands in the box, or below if the box is too low.
        box_label     what the box is, for readers of the SVG.
        always_text   writes the text before ``step`` too, and in bold afterwards.
        """
        (x, width), height = column, max(height, _LEAST)
        back = step in (_GRADIENT, _BACK, _REDUCE)
        size = _SIZE - 1.5 if back else _SIZE
        gpu, tint, middle = number(device), _PALE if back else 0.0, x + width / 2
        if not self._is_reached(step):
            self.sketch.add(Box(x, y, width, height, dashed=True, label=box_label))
            if always_text:
                self.sketch.add(Label(middle, y + height / 2 + size * 0.36, text, size, "middle", muted=True))
            return
        size = max(fit_size(text, width - 6, size), 8.5)
        text = fit_text(text, width - 6, size)
        self.sketch.add(Box(x, y, width, height, gpu, box_label, tint=tint, strong=self.step == step))
        if height >= size + 2:
            line = y + height / 2 + size * 0.36
            self.sketch.add(Label(middle, line, text, size, "middle", gpu=gpu, tint=tint, bold=always_text))
        else:
            fine = min(size, 10.0)
            self.sketch.add(Label(middle, y + height + fine * 0.9, text, fine, "middle"))

    def _arrow(
        self, step: int, x1: float, y1: float, x2: float, y2: float, *, stays: bool = False, **look: bool
    ) -> None:
        """Draw the arrow of a tensor that moves in ``step``; without a head if the tensor ``stays`` on its device."""
        self._line(step, x1, y1, x2, y2, arrow=not stays, stays=stays, **look)

    def _line(
        self, step: int, x1: float, y1: float, x2: float, y2: float, *, stays: bool = False, **look: bool
    ) -> None:
        """Draw a line unless ``step`` is still to come: strong in ``step`` itself, faint later.

        A picture of all steps (``self.step`` None) has no strong lines, and only lines of a tensor that ``stays`` on
        its device are faint.
        """
        if self._is_reached(step):
            now = self.step == step
            faint = stays if self.step is None else not now
            self.sketch.add(Line(x1, y1, x2, y2, strong=now and not stays, muted=faint, **look))


def _end(column: tuple[float, float]) -> float:
    """Return the right edge of a column."""
    return column[0] + column[1]


def _rows(shape: Shape | None) -> int:
    """Return the rows of a piece; a scalar counts as one."""
    return 0 if shape is None else shape[0] if shape else 1


def _high(rows: list[int], at: int) -> float:
    """Return the height of a piece, as a share of the largest."""
    return rows[at] / (max(rows) or 1)


def _edges(rows: list[int], top: float, bottom: float) -> list[float]:
    """Return the edges of joined pieces, one below the other, in the middle between ``top`` and ``bottom``.

    If there is room, a row is as high as in the lanes, and a piece high enough for its words.
    """
    total = sum(rows)
    room = max(bottom - top - 36, min(_PART * len(rows), bottom - top - 24))
    high = max(min(total / (max(rows) or 1) * _FORWARD, room), _LEAST)
    start = (top + bottom - high) / 2
    if not total:
        return [start, *(start + high for _ in rows)]
    return [start + high * upto / total for upto in [0, *accumulate(rows)]]


def _free_middle(top: float, bottom: float, crossed: list[tuple[float, float]], high: float) -> float:
    """Return the middle of ``high`` pixels between ``top`` and ``bottom`` outside of all ``crossed``, as near to the
    middle as there are any; the middle itself if there are none.
    """
    middle, half = (top + bottom) / 2, high / 2
    ends = [end for pair in crossed for end in (min(pair) - half, max(pair) + half)]
    places = [at for at in (middle, *ends) if top + half <= at <= bottom - half]
    free = [at for at in places if not any(min(pair) - half < at < max(pair) + half for pair in crossed)]
    return min(free, key=lambda at: abs(at - middle), default=middle)


def _span(start: int, stop: int) -> str:
    """Format rows: ``rows 0–3``."""
    if stop - start < 2:
        return say(en=f"row {start}", zh=f"第 {start} 行") if stop > start else ""
    return say(en=f"rows {start}–{stop - 1}", zh=f"第 {start}–{stop - 1} 行")


def _entries(flow: Flow) -> list[tuple[range, str]]:
    """Return the lanes: the GPUs of each, and a text for GPUs not drawn by themselves."""
    working = len(flow.shares)
    entries = []
    for at in choose_shown(working, len(flow.idle), most=_MOST, head=_HEAD, tail=_TAIL):
        if isinstance(at, range):
            entries.append((at if at.start < working else range(0), _describe_group(flow, at)))
        elif at < working:
            entries.append((range(at, at + 1), ""))
        else:
            entries.append((range(0), f"{flow.idle[at - working]}  " + say(en="idle", zh="空闲")))
    return entries


def _describe_group(flow: Flow, gpus: range) -> str:
    """Describe GPUs not drawn by themselves: all of them idle, or none."""
    names = [*(share.device for share in flow.shares), *flow.idle][gpus.start : gpus.stop]
    first, last, count = names[0], names[-1], len(names)
    span = first if count == 1 else say(en=f"{first} to {last}", zh=f"{first} 到 {last}")
    given = {share.given for share in flow.shares[gpus.start : gpus.stop]}
    if not given:
        return say(en=f"{span}: {plural(count, 'GPU')} idle", zh=f"{span}：{count} 块 GPU 空闲")
    words = say(en=f"{span}: {count} more GPUs", zh=f"{span}：还有 {count} 块 GPU")
    if len(given) == 1:
        shape = shape_text(*given)
        words += say(en=f" with {shape} each", zh=f"，各得 {shape}")
    return words


def _shape(shape: Shape | None, more: int = 0) -> str:
    return "?" if shape is None else shape_text(shape) + (f" +{more}" if more else "")
