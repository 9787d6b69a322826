"""The picture of one data-parallel call: scatter → replicas → gather, and the way back.

A box has the colour of the device that holds what it stands for. Forward runs from left to right, backward
(pale boxes, dashed arrows) from right to left. :data:`STEPS` are the moments of a call; the picture of one
step shows what is there by then, at the place where the whole picture has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base.language import say
from ...base.numbers import must, plural, whole
from ...plans.shapes import Shape, cut_shape, gathered_shape, shape_text
from ...plans.split import Split
from ...trace.events import Trace
from ..layout import fitted, shortened
from ..palette import number
from ..picture import WIDTH, Box, Line, Picture, Sketch, Text

STEPS = (
    "batch", "scatter", "replicate", "parallel_apply", "gather",
    "gather backward", "parallel_apply backward", "replicate backward",
)  # fmt: skip
_BATCH, _SCATTER, _REPLICATE, _APPLY, _GATHER, _GRADIENT, _BACK, _REDUCE = range(8)
# The columns: (left edge, width) of the batch, of the three cells of a replica's lane, of the output.
_IN, _PIECE, _REPLICA, _MADE, _OUT = (16, 110), (186, 114), (300, 120), (420, 114), (594, 110)
_FORWARD, _BACKWARD, _GAP, _SIZE = 24, 19, 13, 12
# More working GPUs than this are not drawn one by one: the first ones, a line that counts, the last ones.
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


@dataclass(frozen=True)
class Share:
    """What one GPU gets (``more``: how many other tensors) and makes in a call; None where that is not known."""

    device: str
    given: Shape
    made: Shape | None = None
    more: int = 0


@dataclass(frozen=True)
class Flow:
    """One call. ``source`` holds the batch, ``home`` the module, ``target`` the output; ``idle`` GPUs get no piece."""

    source: str
    home: str
    target: str
    shares: tuple[Share, ...]
    idle: tuple[str, ...] = ()
    module: str = ""
    backward: bool = False
    copies: bool = True

    @property
    def batch(self) -> Shape | None:
        """Shape of the batch before it was cut."""
        return _glued([share.given for share in self.shares])

    @property
    def output(self) -> Shape | None:
        """Shape of the gathered output."""
        return _glued([share.made for share in self.shares])


def flow_of_trace(trace: Trace, call: int = 0) -> Flow:
    """The ``call``-th data-parallel call of a recording.

    Raises ValueError if the recording holds no such call.
    """
    calls = [one for one in trace.calls() if len(one.only(phase="scatter", direction="forward"))]
    if not calls:
        raise ValueError(
            say(
                en="trace holds no data-parallel call: record one, as in "
                "`with labkit.record() as trace: labkit.DataParallel(model)(batch)`",
                zh="trace 中没有数据并行调用：请先录制一次，例如 "
                "`with labkit.record() as trace: labkit.DataParallel(model)(batch)`",
            )
        )
    found = calls[whole("call", call, -len(calls), len(calls) - 1)]
    given: dict[str, tuple[Shape, ...]] = {}
    made: dict[str, Shape | None] = {}
    source, module = "cpu", ""
    home: str | None = None
    target: str | None = None
    for event in found.only(direction="forward"):
        if event.phase == "scatter" and event.device not in given:
            given[event.device] = event.shapes or ((),)
            source = event.source or source
        elif event.phase == "replicate":
            home, module = event.source, event.name or module
        elif event.phase == "parallel_apply":
            made[event.device] = event.outputs[0] if event.outputs else None
            module = event.name or module
        elif event.phase == "gather":
            target = event.device
    home = home or next(iter(given))
    shares = tuple(Share(d, shapes[0], made.get(d), len(shapes) - 1) for d, shapes in given.items())
    backward = len(found.only(direction="backward")) > 0
    return Flow(source, home, target or home, shares, (), module, backward, bool(made))


def flow_of_split(plan: Split) -> Flow:
    """The call that a split stands for: its rows go through a Linear(5, 2) whose home is cuda:0."""
    given = cut_shape((plan.batch, 5), plan.gpus)
    shares = tuple(Share(f"cuda:{gpu}", piece, (piece[0], 2)) for gpu, piece in enumerate(given))
    idle = tuple(f"cuda:{gpu}" for gpu in range(len(given), plan.gpus))
    return Flow("cpu", "cuda:0", "cuda:0", shares, idle, "Linear", True, plan.gpus > 1)


def flow_picture(source: Flow | Split | Trace, step: int | None = None, *, call: int = 0) -> Picture:
    """One call.

    source   a split, or a trace, of which call number ``call`` is drawn.
    step     a position in :data:`STEPS`: what is there by then, with the line of code; None: everything.
    """
    flow = _flow(source, call)
    step = None if step is None else whole("step", step, 0, len(STEPS) - 1)
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
    """The call, or one step of it, in one sentence."""
    batch, output = _shape(flow.batch), _shape(flow.output)
    count = len(flow.shares)
    if step is None:
        text = say(
            en=f"A batch of {batch} on {flow.source} is scattered to {plural(count, 'GPU')}; "
            f"the replicas' outputs are gathered to {output} on {flow.target}",
            zh=f"{flow.source} 上的批次 {batch} 分发给 {count} 块 GPU；各副本的输出收集到 {flow.target}，得到 {output}",
        )
        if flow.backward:
            text += say(
                en=f"; the gradients go back the same way and are summed on {flow.home}",
                zh=f"；梯度沿原路返回，在 {flow.home} 上求和",
            )
        return text + say(en=".", zh="。")
    if not flow.copies and step in (_REPLICATE, _GATHER, _GRADIENT, _REDUCE):
        return say(
            en="With one GPU nothing is copied in this step: DataParallel calls the module itself.",
            zh="只有一块 GPU 时，这一步不需要复制任何东西：DataParallel 直接调用模块本身。",
        )
    idle = say(en=f" ({len(flow.idle)} idle)", zh=f"（{len(flow.idle)} 块空闲）") if flow.idle else ""
    return (
        say(
            en=f"The batch {batch} is on {flow.source}, the module on {flow.home}, its home device.",
            zh=f"批次 {batch} 在 {flow.source} 上，模块在主设备 {flow.home} 上。",
        ),
        say(
            en=f"scatter: the batch is cut along dimension 0, and {plural(count, 'GPU')} get a piece each{idle}.",
            zh=f"scatter（分发）：批次沿第 0 维切分，{count} 块 GPU 各得一个分块{idle}。",
        ),
        say(
            en=f"replicate: {flow.home} sends its weights, and {plural(count, 'GPU')} hold a replica each.",
            zh=f"replicate（复制）：{flow.home} 把权重发出去，{count} 块 GPU 各有一个副本。",
        ),
        say(
            en="parallel_apply: every replica computes the output of its own piece, all at the same time.",
            zh="parallel_apply（并行执行）：每个副本同时计算自己那个分块的输出。",
        ),
        say(
            en=f"gather: the outputs are glued together along dimension 0 on {flow.target}: {output}.",
            zh=f"gather（收集）：各输出在 {flow.target} 上沿第 0 维拼接起来：{output}。",
        ),
        say(
            en="backward of gather: the gradient of the output is cut, and each GPU gets the part of its own rows.",
            zh="gather（收集）的反向：输出的梯度被切开，每块 GPU 得到自己那些行的部分。",
        ),
        say(
            en="backward of parallel_apply: every replica computes the gradient of its own weights.",
            zh="parallel_apply（并行执行）的反向：每个副本计算自己权重的梯度。",
        ),
        say(
            en=f"backward of replicate: the gradients of the replicas are summed on {flow.home}.",
            zh=f"replicate（复制）的反向：各副本的梯度在 {flow.home} 上求和。",
        ),
    )[step]


class _Painter:
    """Collects the shapes of the picture of ``flow`` at ``step``."""

    def __init__(self, flow: Flow, step: int | None) -> None:
        self.flow, self.step, self.sketch = flow, step, Sketch()
        self.backward = flow.backward or step is not None

    def picture(self) -> Picture:
        y = self._code(14.0) if self.step is not None else 14.0
        y = self._heads(y)
        above = y  # the lower edge of what stands above the next replica
        y += _GAP + 4
        for entry in _entries(self.flow):
            above = self._lane(entry, y, above) if isinstance(entry, Share) else self._aside(entry, y)
            y = above + _GAP
        return self.sketch.picture(y + 2, _description(self.flow, self.step))

    def _there(self, step: int) -> bool:
        return self.step is None or self.step >= step

    def _code(self, y: float) -> float:
        """The lines of the call in two columns, the one at hand in bold."""
        for at, (line, steps) in enumerate(_CODE):
            x, row = 16 + 330 * (at // 3), at % 3
            shape = ", ".join(map(str, self.flow.batch or ()))
            now = self.step in steps
            words = ("▶ " if now else "  ") + fitted(line.format(shape), 340, 11)
            self.sketch.add(Text(x, y + 12 + 17 * row, words, 11, mono=True, bold=now, muted=not now))
        return y + 3 * 17 + 16

    def _heads(self, y: float) -> float:
        """The batch on the left, the output on the right, the module between; returns the module's lower edge."""
        flow = self.flow
        for (x, width), title, shape, device, there in (
            (_IN, say(en="batch", zh="批次"), flow.batch, flow.source, True),
            (_OUT, say(en="output", zh="输出"), flow.output, flow.target, self._there(_GATHER)),
        ):
            x, anchor = (x + width, "end") if x > WIDTH / 2 else (x, "start")
            words = fitted(f"{title} {_shape(shape)}", 260, _SIZE + 1)
            where = say(en=f"on {device}", zh=f"在 {device} 上")
            self.sketch.add(
                Text(x, y + 12, words, _SIZE + 1, anchor, bold=True, muted=not there),
                Text(x, y + 28, where, _SIZE, anchor, muted=True),
            )
        left, width = _REPLICA
        words = fitted(flow.module or say(en="module", zh="模块"), width - 8, _SIZE)
        gpu = number(flow.home)
        self.sketch.add(
            Box(left, y, width, _FORWARD, gpu, "module"),
            Text(left + width / 2, y + 16.5, words, _SIZE, "middle", gpu=gpu, bold=True),
        )
        y += _FORWARD
        if not self.backward:
            return y
        summed = say(en="gradient, summed", zh="梯度之和")
        self._cell(_REPLICA, y + 1, flow.home, summed, _REDUCE, "gradient summed", back=True)
        return y + 1 + _BACKWARD

    def _lane(self, share: Share, y: float, above: float) -> float:
        """What one GPU gets and makes, forward and, below it, backward; returns the lower edge."""
        flow, device, middle = self.flow, share.device, y + _FORWARD / 2
        given, made = _shape(share.given, share.more), _shape(share.made)
        self._cell(_IN, y, flow.source, given, _BATCH, f"batch for {device}")
        self._cell(_PIECE, y, device, given, _SCATTER, "input")
        self._arrow(_SCATTER, _end(_IN), middle, _PIECE[0], middle)
        self._cell(_REPLICA, y, device, device, _REPLICATE, "replica", name=True)
        if flow.copies:
            self._arrow(_REPLICATE, _REPLICA[0] + 28, above, _REPLICA[0] + 28, y)
        if share.made is not None or self.step is not None:
            self._cell(_MADE, y, device, made, _APPLY, "output")
            self._cell(_OUT, y, flow.target, made, _GATHER, f"output of {device}")
            self._arrow(_GATHER, _end(_MADE), middle, _OUT[0], middle)
        if not self.backward:
            return y + _FORWARD
        back = y + _FORWARD + 1
        middle = back + _BACKWARD / 2
        gradient = say(en=f"grad {made}", zh=f"梯度 {made}")
        self._cell(_OUT, back, flow.target, gradient, _GRADIENT, "gradient of the output", back=True)
        self._arrow(_GRADIENT, _OUT[0], middle, _end(_MADE), middle, dashed=True)
        self._cell(_MADE, back, device, gradient, _GRADIENT, "gradient", back=True)
        words = say(en="grad of weights", zh="权重的梯度")
        self._cell(_REPLICA, back, device, words, _BACK, "gradient of the weights", back=True)
        if flow.copies:
            self._arrow(_REDUCE, _end(_REPLICA) - 28, y, _end(_REPLICA) - 28, above, dashed=True)
        return back + _BACKWARD

    def _cell(
        self, column: tuple[float, float], y: float, device: str, words: str, step: int, label: str, *,
        back: bool = False, name: bool = False,
    ) -> None:  # fmt: skip
        """A box that is there from ``step`` on, dashed before. ``name``: its text is there before, too, and bold."""
        x, width = column
        gpu, tint = number(device), _PALE if back else 0.0
        height, size = (_BACKWARD, _SIZE - 1.5) if back else (_FORWARD, _SIZE)
        middle, line = x + width / 2, y + height / 2 + size * 0.36
        if self._there(step):
            words = fitted(words, width - 6, size)
            self.sketch.add(
                Box(x, y, width, height, gpu, label, tint=tint, strong=self.step == step),
                Text(middle, line, words, size, "middle", gpu=gpu, tint=tint, bold=name),
            )
            return
        self.sketch.add(Box(x, y, width, height, dashed=True, label=label))
        if name:
            self.sketch.add(Text(middle, line, words, size, "middle", muted=True))

    def _arrow(self, step: int, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        if self._there(step):
            now = self.step == step
            faint = self.step is not None and not now
            self.sketch.add(Line(x1, y1, x2, y2, arrow=True, dashed=dashed, strong=now, muted=faint))

    def _aside(self, words: str, y: float) -> float:
        """A line about GPUs that are not drawn one by one; returns its lower edge."""
        left, right = _PIECE[0], _end(_MADE)
        self.sketch.add(
            Box(left, y, right - left, _FORWARD, dashed=True),
            Text((left + right) / 2, y + _FORWARD / 2 + _SIZE * 0.36, words, _SIZE, "middle", muted=True),
        )
        return y + _FORWARD


def _end(column: tuple[float, float]) -> float:
    """The right edge of a column."""
    return column[0] + column[1]


def _entries(flow: Flow) -> list[Share | str]:
    """The shares that are drawn, and lines about those that are not."""
    working = len(flow.shares)
    entries: list[Share | str] = []
    for at in shortened(working, len(flow.idle), most=_MOST, head=_HEAD, tail=_TAIL):
        if isinstance(at, range):
            entries.append(_counted(flow, at))
        elif at < working:
            entries.append(flow.shares[at])
        else:
            entries.append(f"{flow.idle[at - working]}  " + say(en="idle", zh="空闲"))
    return entries


def _counted(flow: Flow, gpus: range) -> str:
    """A line about GPUs that are not drawn one by one: all of them idle, or none."""
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


def _glued(shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    try:
        return gathered_shape(known) if known and len(known) == len(shapes) else None
    except ValueError:
        return None


def _shape(shape: Shape | None, more: int = 0) -> str:
    return "?" if shape is None else shape_text(shape) + (f" +{more}" if more else "")
