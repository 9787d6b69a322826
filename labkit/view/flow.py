"""The picture of one data-parallel call: scatter → replicas → gather, and the way back.

A box has the colour of the device that holds what it stands for. Forward runs from left to right, backward
(pale boxes, dashed arrows) from right to left. :data:`STEPS` are the moments of a call; the picture of one
step shows what is there by then, at the place where the whole picture has it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..base.display import draws
from ..base.language import say
from ..plans.split import Shape, Split, cut_shape, gathered_shape
from ..trace.events import Call, Trace
from .palette import number
from .picture import Box, Line, Picture, Text, fitted
from .svg import to_svg

WIDTH = 720
STEPS = (
    "batch", "scatter", "replicate", "parallel_apply", "gather",
    "gather backward", "parallel_apply backward", "replicate backward",
)  # fmt: skip
_BATCH, _SCATTER, _REPLICATE, _APPLY, _GATHER, _GRADIENT, _BACK, _REDUCE = range(8)
# The columns: (left edge, width) of the batch, of the three cells of a replica's lane, of the output.
_IN, _PIECE, _REPLICA, _MADE, _OUT = (16, 110), (186, 114), (300, 120), (420, 114), (594, 110)
_FORWARD, _BACKWARD, _GAP, _SIZE = 24, 19, 13, 12
# More working GPUs than this are not drawn one by one: the first ones, a line that counts, the last ones.
_MOST = 8
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
class Lane:
    """What one GPU gets and makes in a call; None where it is not known, no input where it is idle."""

    device: str
    given: Shape | None
    made: Shape | None = None
    more: int = 0


@dataclass(frozen=True)
class Flow:
    """One call. ``source`` holds the batch, ``home`` the module, ``target`` the output."""

    source: str
    home: str
    target: str
    lanes: tuple[Lane, ...]
    module: str = ""
    backward: bool = False
    copies: bool = True

    @property
    def working(self) -> tuple[Lane, ...]:
        """The GPUs that got a piece."""
        return tuple(lane for lane in self.lanes if lane.given is not None)

    @property
    def idle(self) -> tuple[Lane, ...]:
        """The GPUs that got none."""
        return tuple(lane for lane in self.lanes if lane.given is None)

    @property
    def batch(self) -> Shape | None:
        """Shape of the batch before it was cut."""
        return _glued([lane.given for lane in self.working])

    @property
    def output(self) -> Shape | None:
        """Shape of the gathered output."""
        return _glued([lane.made for lane in self.working])


def flow_of_trace(trace: Trace, call: int = 0) -> Flow:
    """The ``call``-th data-parallel call of a recording.

    Raises ValueError if the recording holds no such call.
    """
    calls = trace.calls()
    if not -len(calls) <= call < len(calls):
        raise ValueError(
            f"call must be from 0 to {len(calls) - 1}, got {call}"
            if calls
            else "trace holds no data-parallel call: record one, as in "
            "`with labkit.record() as trace: labkit.DataParallel(model)(batch)`"
        )
    found = calls[call]
    given, made, more = {}, {}, {}
    source, home, target, module = "cpu", None, None, ""
    for event in found:
        if event.direction == "backward":
            continue
        if event.phase == "scatter" and event.device not in given:
            given[event.device] = event.shapes[0] if event.shapes else ()
            more[event.device] = len(event.shapes) - 1
            source = event.source or source
        elif event.phase == "replicate":
            home, module = event.source, event.name or module
        elif event.phase == "parallel_apply":
            made[event.device] = event.outputs[0] if event.outputs else None
            module = event.name or module
        elif event.phase == "gather":
            target = event.device
    home = home or next(iter(given))
    lanes = tuple(Lane(d, given[d], made.get(d), max(more[d], 0)) for d in given)
    return Flow(
        source, home, target or home, lanes, module, any(e.direction == "backward" for e in found), bool(made)
    )


def flow_of_split(plan: Split, inputs: Shape = (5,), outputs: Shape = (2,)) -> Flow:
    """The call that a split stands for: rows of shape ``inputs`` in, rows of shape ``outputs`` out; home is cuda:0."""
    given = cut_shape((plan.batch, *inputs), plan.gpus) if plan.batch else ((0, *inputs),) * plan.gpus
    lanes = tuple(
        Lane(f"cuda:{gpu}", given[gpu], (given[gpu][0], *outputs))
        if gpu < len(given)
        else Lane(f"cuda:{gpu}", None)
        for gpu in range(plan.gpus)
    )
    return Flow("cpu", "cuda:0", "cuda:0", lanes, "Linear", True, plan.gpus > 1)


def flow_picture(source: Flow | Split | Trace, step: int | None = None, *, call: int = 0) -> Picture:
    """One call as a :class:`Picture`.

    source   a :class:`labkit.plans.split.Split`, or a trace, of which call number ``call`` is drawn.
    step     a position in :data:`STEPS`: what is there by then, with the line of code; None: everything.
    """
    flow = _flow(source, call)
    if step is not None and not 0 <= step < len(STEPS):
        raise ValueError(f"step must be from 0 to {len(STEPS) - 1}, got {step}")
    return _Painter(flow, step).picture()


def describe_flow(source: Flow | Split | Trace, step: int | None = None, *, call: int = 0) -> str:
    """The call, or one step of it, in one sentence."""
    flow = _flow(source, call)
    batch, output = _shape(flow.batch), _shape(flow.output)
    count = len(flow.working)
    if step is None:
        text = say(
            en=f"A batch of {batch} on {flow.source} is scattered to {_gpus(count)}; "
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
            en=f"scatter: the batch is cut along dimension 0, and {_gpus(count)} get a piece each{idle}.",
            zh=f"scatter（分发）：批次沿第 0 维切分，{count} 块 GPU 各得一个分块{idle}。",
        ),
        say(
            en=f"replicate: {flow.home} sends its weights, and {_gpus(count)} hold a replica each.",
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


@draws(Call)
def flow_svg(source: Flow | Split | Trace, step: int | None = None, *, call: int = 0) -> str:
    """The call as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(flow_picture(source, step, call=call), panel=True)


def draw_flow(trace: Trace | Split, step: int | None = None, *, call: int = 0, ax=None):
    """Draw one data-parallel call, there and back; returns the matplotlib Axes.

    trace  what ``labkit.record()`` gave, or a :class:`labkit.plans.split.Split`, which stands for a Linear(5, 2).
    step   0 to 7: only what is there by that step of the call; None: everything.
    call   which of the recording's calls.
    ax     the Axes to draw into; a new figure if not given.

    Raises ValueError if the recording holds no such call.
    """
    from .figure import paint  # matplotlib is only wanted here

    flow = _flow(trace, call)
    return paint(lambda: flow_picture(flow, step), ax)


class _Painter:
    """Collects the shapes of the picture of ``flow`` at ``step``."""

    def __init__(self, flow: Flow, step: int | None) -> None:
        self.flow, self.step = flow, step
        self.backward = flow.backward or step is not None
        self.boxes: list[Box] = []
        self.texts: list[Text] = []
        self.lines: list[Line] = []

    def picture(self) -> Picture:
        y = 14.0
        if self.step is not None:
            y = self._code(y)
        y = self._heads(y)
        above = y  # the lower edge of what stands above the next replica
        y += _GAP + 4
        for entry in _entries(self.flow):
            if isinstance(entry, Lane):
                self._lane(entry, y, above)
                y += _FORWARD + (_BACKWARD + 1) * self.backward
                above = y
                y += _GAP
            else:
                self._aside(entry, y)
                above = y + _FORWARD
                y += _FORWARD + _GAP
        description = describe_flow(self.flow, self.step)
        return Picture(WIDTH, y + 2, tuple(self.boxes), tuple(self.texts), description, tuple(self.lines))

    def _there(self, step: int) -> bool:
        return self.step is None or self.step >= step

    def _now(self, step: int) -> bool:
        return self.step == step

    def _code(self, y: float) -> float:
        """The lines of the call in two columns, the one at hand in bold."""
        for at, (line, steps) in enumerate(_CODE):
            x, row = 16 + 330 * (at // 3), at % 3
            shape = ", ".join(map(str, self.flow.batch or ()))
            now = self.step in steps
            words = ("▶ " if now else "  ") + fitted(line.format(shape), 340, 11)
            self.texts.append(Text(x, y + 12 + 17 * row, words, 11, mono=True, bold=now, muted=not now))
        return y + 3 * 17 + 16

    def _heads(self, y: float) -> float:
        flow = self.flow
        for (x, width), title, shape, device, there in (
            (_IN, say(en="batch", zh="批次"), flow.batch, flow.source, True),
            (_OUT, say(en="output", zh="输出"), flow.output, flow.target, self._there(_GATHER)),
        ):
            end = x + width if x > WIDTH / 2 else x
            anchor = "end" if x > WIDTH / 2 else "start"
            words = fitted(f"{title} {_shape(shape)}", 260, _SIZE + 1)
            self.texts.append(Text(end, y + 12, words, _SIZE + 1, anchor, bold=True, muted=not there))
            where = say(en=f"on {device}", zh=f"在 {device} 上")
            self.texts.append(Text(end, y + 28, where, _SIZE, anchor, muted=True))
        x, width = _REPLICA
        words = fitted(flow.module or say(en="module", zh="模块"), width - 8, _SIZE)
        gpu = number(flow.home)
        self.boxes.append(Box(x, y, width, _FORWARD, gpu=gpu, label="module"))
        self.texts.append(Text(x + width / 2, y + 16.5, words, _SIZE, "middle", gpu=gpu, bold=True))
        if self.backward:
            self._cell(
                _REPLICA, y + _FORWARD + 1, _BACKWARD, flow.home, say(en="gradient, summed", zh="梯度之和"),
                _REDUCE, tint=_PALE, label="gradient summed",
            )  # fmt: skip
        below = y + _FORWARD + (_BACKWARD + 1) * self.backward
        return below

    def _lane(self, lane: Lane, y: float, above: float) -> None:
        flow, line = self.flow, y + _FORWARD / 2
        self._cell(
            _IN,
            y,
            _FORWARD,
            flow.source,
            _shape(lane.given, lane.more),
            _BATCH,
            label=f"batch for {lane.device}",
        )
        self._cell(_PIECE, y, _FORWARD, lane.device, _shape(lane.given, lane.more), _SCATTER, label="input")
        self._arrow(_SCATTER, _IN[0] + _IN[1], line, _PIECE[0], line)
        self._cell(
            _REPLICA,
            y,
            _FORWARD,
            lane.device,
            lane.device,
            _REPLICATE,
            bold=True,
            label="replica",
            named=True,
        )
        if flow.copies:
            self._arrow(_REPLICATE, _REPLICA[0] + 28, above, _REPLICA[0] + 28, y)
        known = lane.made is not None or self.step is not None
        if known:
            self._cell(_MADE, y, _FORWARD, lane.device, _shape(lane.made), _APPLY, label="output")
            self._cell(
                _OUT, y, _FORWARD, flow.target, _shape(lane.made), _GATHER, label=f"output of {lane.device}"
            )
            self._arrow(_GATHER, _MADE[0] + _MADE[1], line, _OUT[0], line)
        if not self.backward:
            return
        y += _FORWARD + 1
        line = y + _BACKWARD / 2
        gradient = say(en="grad {}", zh="梯度 {}").format(_shape(lane.made))
        self._cell(
            _OUT, y, _BACKWARD, flow.target, gradient, _GRADIENT, tint=_PALE, label="gradient of the output"
        )
        self._arrow(_GRADIENT, _OUT[0], line, _MADE[0] + _MADE[1], line, dashed=True)
        self._cell(_MADE, y, _BACKWARD, lane.device, gradient, _GRADIENT, tint=_PALE, label="gradient")
        words = say(en="grad of weights", zh="权重的梯度")
        self._cell(
            _REPLICA, y, _BACKWARD, lane.device, words, _BACK, tint=_PALE, label="gradient of the weights"
        )
        if flow.copies:
            right = _REPLICA[0] + _REPLICA[1] - 28
            self._arrow(_REDUCE, right, y - _FORWARD - 1, right, above, dashed=True)

    def _cell(
        self, column, y, height, device, words, step, *, tint=0.0, bold=False, label="", named=False
    ) -> None:
        """A box that is there from ``step`` on, dashed before; ``named``: its text is there before, too."""
        x, width = column
        gpu = number(device)
        size = _SIZE if height >= _FORWARD else _SIZE - 1.5
        line = y + height / 2 + size * 0.36
        if self._there(step):
            self.boxes.append(
                Box(x, y, width, height, gpu=gpu, tint=tint, strong=self._now(step), label=label)
            )
            words = fitted(words, width - 6, size)
            self.texts.append(Text(x + width / 2, line, words, size, "middle", gpu=gpu, tint=tint, bold=bold))
            return
        self.boxes.append(Box(x, y, width, height, dashed=True, label=label))
        if named:
            self.texts.append(Text(x + width / 2, line, words, size, "middle", muted=True))

    def _arrow(self, step, x1, y1, x2, y2, *, dashed=False) -> None:
        if self._there(step):
            now = self._now(step)
            faint = self.step is not None and not now
            self.lines.append(Line(x1, y1, x2, y2, arrow=True, dashed=dashed, strong=now, muted=faint))

    def _aside(self, words: str, y: float) -> None:
        """A line about GPUs that are not drawn one by one."""
        left, right = _PIECE[0], _MADE[0] + _MADE[1]
        self.boxes.append(Box(left, y, right - left, _FORWARD, dashed=True))
        self.texts.append(
            Text((left + right) / 2, y + _FORWARD / 2 + _SIZE * 0.36, words, _SIZE, "middle", muted=True)
        )


def _flow(source: Flow | Split | Trace, call: int) -> Flow:
    if isinstance(source, Flow):
        return source
    if isinstance(source, Split):
        return flow_of_split(source)
    if isinstance(source, Trace):
        return flow_of_trace(source, call)
    raise TypeError(f"trace must be a Trace or a Split, got {source!r} ({type(source).__name__})")


def _entries(flow: Flow) -> list[Lane | str]:
    """The lanes that are drawn, and lines about those that are not."""
    working, idle = flow.working, flow.idle
    entries: list[Lane | str] = list(working)
    if len(working) > _MOST:
        head, tail = 4, 2
        left_out = working[head:-tail]
        [(shape, alike)] = Counter((lane.given, lane.made) for lane in left_out).most_common(1)
        same = alike == len(left_out)
        words = say(
            en=f"{left_out[0].device} to {left_out[-1].device}: {len(left_out)} more GPUs",
            zh=f"{left_out[0].device} 到 {left_out[-1].device}：还有 {len(left_out)} 块 GPU",
        )
        if same:
            words += say(en=f" with {_shape(shape[0])} each", zh=f"，各得 {_shape(shape[0])}")
        entries = [*working[:head], words, *working[-tail:]]
    if idle:
        if len(working) + len(idle) <= _MOST:
            entries += [f"{lane.device}  " + say(en="idle", zh="空闲") for lane in idle]
        else:
            first, last = idle[0].device, idle[-1].device
            span = first if first == last else say(en=f"{first} to {last}", zh=f"{first} 到 {last}")
            count = say(en=f"{span}: {_gpus(len(idle))} idle", zh=f"{span}：{len(idle)} 块 GPU 空闲")
            entries.append(count)
    return entries


def _glued(shapes: list[Shape | None]) -> Shape | None:
    try:
        return gathered_shape(shapes) if shapes and None not in shapes else None
    except ValueError:
        return None


def _shape(shape: Shape | None, more: int = 0) -> str:
    if shape is None:
        return "?"
    return f"[{', '.join(map(str, shape))}]" + (f" +{more}" if more else "")


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
