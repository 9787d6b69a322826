"""The facts of a data-parallel call, from a recording or a split: the pieces and outputs of each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.language import wrong
from ..base.numbers import integer
from ..plans.shapes import Shape, cut_shape, gathered_shape
from ..plans.split import Split
from ..trace.trace import Trace


@dataclass(frozen=True)
class Share:
    """A GPU's part in a call: the shape of its piece (and the number of other tensors) and of its output, if known."""

    device: str
    given: Shape
    made: Shape | None = None
    more: int = 0


@dataclass(frozen=True)
class Flow:
    """A call. ``source`` holds the batch, ``home`` the module, ``target`` the output; ``idle`` GPUs get no piece."""

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
        """The shape of the batch before scatter."""
        return _gathered_shape([share.given for share in self.shares])

    @property
    def output(self) -> Shape | None:
        """The shape of the gathered output."""
        return _gathered_shape([share.made for share in self.shares])


def flow_of_trace(trace: Trace, call: int = 0) -> Flow:
    """Return the ``call``-th data-parallel call of a recording. Raises ValueError if there is none."""
    calls = [one for one in trace.calls() if len(one.only(phase="scatter", direction="forward"))]
    if not calls:
        raise wrong(
            en="trace holds no data-parallel call: record one, as in "
            "`with labkit.record() as trace: labkit.DataParallel(model)(batch)`",
            zh="trace 中没有数据并行调用：请先录制一次，例如 "
            "`with labkit.record() as trace: labkit.DataParallel(model)(batch)`",
        )
    found = calls[integer("call", call, -len(calls), len(calls) - 1)]
    given: dict[str, tuple[Shape, ...]] = {}
    made: dict[str, Shape | None] = {}
    source, module = "cpu", ""
    idle: tuple[str, ...] = ()
    home: str | None = None
    target: str | None = None
    for event in found.only(direction="forward"):
        if event.phase == "scatter" and event.device not in given:
            given[event.device] = event.shapes or ((),)
            source, idle = event.source or source, event.idle
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
    return Flow(source, home, target or home, shares, idle, module, backward, bool(made))


def flow_of_split(plan: Split) -> Flow:
    """Return an example call for a split: its rows go from cuda:0 through a Linear(5, 2)."""
    given = cut_shape((plan.batch, 5), plan.gpus)
    shares = tuple(Share(f"cuda:{gpu}", piece, (piece[0], 2)) for gpu, piece in enumerate(given))
    idle = tuple(f"cuda:{gpu}" for gpu in range(len(given), plan.gpus))
    return Flow("cuda:0", "cuda:0", "cuda:0", shares, idle, "Linear", True, plan.gpus > 1)


def _gathered_shape(shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    try:
        return gathered_shape(known) if known and len(known) == len(shapes) else None
    except ValueError:
        return None
