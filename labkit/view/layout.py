"""Places in a picture: lanes, axes of time, legends, texts that fit, and lines about things that are not drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..base.units import duration
from .picture import WIDTH, Box, Label, Line, Sketch

# How far the baseline of a text in the middle of a lane is below that middle, as a share of the text's size.
BASELINE = 0.35
# More lanes than this cannot be read.
MOST_LANES = 64


@dataclass(frozen=True)
class Lanes:
    """Lanes one below another, each with a name on its left and a note on its right, in text of one size."""

    top: float
    left: float
    right: float
    high: float
    size: float
    pad: float = 2

    @property
    def width(self) -> float:
        """Width of a lane between its name and its note."""
        return WIDTH - self.left - self.right

    def y(self, at: int) -> float:
        """The upper edge of lane ``at``; of the one after the last, where the lanes end."""
        return self.top + at * self.high

    def line(self, at: int) -> float:
        """The baseline of text in lane ``at``."""
        return self.y(at) + self.high / 2 + self.size * BASELINE

    def name(self, at: int, words: str, *, muted: bool = False) -> Label:
        """``words`` left of lane ``at``."""
        size = fit_size(words, self.left - 10, self.size)
        return Label(self.left - 8, self.line(at), words, size, "end", muted=muted)

    def note(self, at: int, words: str, *, bold: bool = False, muted: bool = False) -> Label:
        """``words`` right of lane ``at``, smaller if they want more room than there is."""
        size = fit_size(words, self.right - 10, self.size, bold)
        return Label(WIDTH - self.right + 8, self.line(at), words, size, bold=bold, muted=muted)

    def placeholder(self, at: int, words: str) -> Label:
        """``words`` in lane ``at``, where nothing is drawn."""
        return Label(self.left, self.line(at), words, fit_size(words, self.width, self.size), muted=True)

    def iterate_shown(
        self, sketch: Sketch, shown: Sequence[int | range], describe: Callable[[range], str]
    ) -> Iterator[tuple[int, int]]:
        """Give the lane and the number of each of ``shown`` that is drawn by itself; for each range between, put the
        line that ``describe`` says into its lane."""
        for at, things in enumerate(shown):
            if isinstance(things, range):
                sketch.add(self.placeholder(at, describe(things)))
            else:
                yield at, things

    def bar(self, at: int, x: float, width: float, gpu: int | None = None, *, dashed: bool = False,
            tint: float = 0.0, label: str = "", tip: str = "") -> Box:  # fmt: skip
        """A box in lane ``at``, as high as there is room."""
        y, high = self.y(at) + self.pad, self.high - 2 * self.pad
        return Box(x, y, width, high, gpu, label, dashed, tint=tint, tip=tip)


@dataclass(frozen=True)
class TimeAxis:
    """Time along the lanes, from ``first`` at their left to ``last`` at their right, in seconds."""

    lanes: Lanes
    first: float
    last: float

    @property
    def seconds(self) -> float:
        return self.last - self.first

    @property
    def scale(self) -> float:
        """Pixels for each second."""
        return self.lanes.width / self.seconds

    def x(self, at: float) -> float:
        return self.lanes.left + (at - self.first) * self.scale

    def marks(self, bottom: float) -> Iterator[Line | Label]:
        """A line down to ``bottom`` at each round time, and under it how long that is after the first."""
        for tick in ticks(self.seconds):
            x = self.lanes.left + tick * self.scale
            yield Line(x, self.lanes.top - 4, x, bottom, muted=True)
            yield Label(x, bottom + 16, duration(tick, self.seconds), 11, "middle", muted=True)


def legend(
    left: float, line: float, entries: Sequence[tuple[str, Sequence[Box | Line]]], *, mark: float, gap: float,
    size: float = 11,
) -> list[Box | Line | Label]:  # fmt: skip
    """A legend: each entry's words stand ``mark`` right of its marks (drawn as if at 0), ``gap`` before the next."""
    found: list[Box | Line | Label] = []
    for words, marks in entries:
        for shape in marks:
            if isinstance(shape, Box):
                found.append(replace(shape, x=shape.x + left))
            else:
                found.append(replace(shape, x1=shape.x1 + left, x2=shape.x2 + left))
        found.append(Label(left + mark, line, words, size))
        left += mark + text_width(words, size) + gap
    return found


def choose_shown(working: int, idle: int = 0, *, most: int, head: int, tail: int) -> list[int | range]:
    """Choose what stands in the lanes for ``working`` things and, after them, ``idle`` ones: numbers are drawn one by
    one; of a range a line tells, because more than ``most`` lanes cannot be read.
    """
    rest = range(working, working + idle)
    shown: list[int | range] = [*range(min(working, most))]
    if working > most:
        shown = [*range(head), range(head, working - tail), *range(working - tail, working)]
    return [*shown, *rest] if working + idle <= most or not rest else [*shown, rest]


def group_neighbours(count: int, most: int) -> list[range]:
    """``count`` things in at most ``most`` groups of neighbours, which are drawn as one where they are too many."""
    step = -(-count // most) or 1
    step += step > 1 and step % 2 == 0  # odd, or all groups of GPUs would get shades of one colour
    return [range(at, min(at + step, count)) for at in range(0, count, step)]


def devices(gpus: range) -> str:
    """The name of neighbours: ``cuda:3``, ``cuda:3–cuda:5``."""
    return f"cuda:{gpus[0]}" + f"–cuda:{gpus[-1]}" * (len(gpus) > 1)


def text_width(text: str, size: float) -> float:
    """About how wide a text is set, in pixels; on the safe side for the fonts in use."""
    return sum(size * (1.0 if ord(letter) > 0x2E80 else 0.6) for letter in text)


def fit_size(text: str, width: float, size: float, bold: bool = False) -> float:
    """``size``, or the smaller one at which ``text`` fits into ``width`` pixels."""
    wanted = text_width(text, size) * (1.08 if bold else 1)
    return size if wanted <= width else size * width / wanted


def fit_text(text: str, width: float, size: float) -> str:
    """``text``, or as much of it as ``width`` pixels hold, with an ellipsis; "" if not even one letter fits."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text and text + "…"


# Up to so many lanes: how high each is, the size of its text, how far what is in it stays from its edges.
Heights = Sequence[tuple[int, float, float, float]]
_HEIGHTS: Heights = ((8, 28, 13.0, 2.0), (16, 22, 12.0, 2.0), (32, 15, 10.5, 2.0))


def lanes(
    count: int, top: float, left: float, right: float, heights: Heights = _HEIGHTS, pad: float = 2.0
) -> Lanes:
    """``count`` lanes, the lower the more there are; ``pad`` is for more lanes than ``heights`` has a row for."""
    look = next((rest for most, *rest in heights if count <= most), [12.5, 9.5, pad])
    return Lanes(top, left, right, *look)


def gpu_lanes(
    working: int, top: float, left: float, right: float, idle: int = 0
) -> tuple[list[int | range], Lanes]:
    """The GPUs that are drawn one by one, the ranges of those that are not, and a lane for each of both."""
    shown = choose_shown(working, idle, most=MOST_LANES, head=12, tail=3)
    return shown, lanes(len(shown), top, left, right)


def ticks(seconds: float) -> list[float]:
    """Round times from 0 on, at most eight of them, that fit into ``seconds``."""
    step = 1e-9
    while seconds / step > 7:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return [step * at for at in range(int(seconds / step * (1 + 1e-9)) + 1)]
