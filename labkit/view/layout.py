"""Layout of pictures: lanes, time axes, legends, texts that fit, and lines about things left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..base.units import duration
from .picture import NARROW, WIDTH, Box, Label, Line, Sketch

# Distance from a lane's middle to the baseline of its text, as a share of the text size.
BASELINE = 0.35
# The most readable lanes.
MOST_LANES = 64


@dataclass(frozen=True)
class Lanes:
    """Lanes below one another, each with a name on the left and a note on the right, in one text size.

    head   room for name and note above a lane, in a narrow picture; 0: they stand beside it.
    """

    top: float
    left: float
    right: float
    high: float
    size: float
    pad: float = 2
    head: float = 0

    @property
    def across(self) -> float:
        """The width of the picture."""
        return NARROW if self.head else WIDTH

    @property
    def width(self) -> float:
        """The width of a lane between its name and its note."""
        return self.across - self.left - self.right

    def y(self, at: int) -> float:
        """Return the upper edge of lane ``at``; for the number of lanes, the lower edge of all."""
        return self.top + at * self.high

    def line(self, at: int) -> float:
        """Return the baseline of text in lane ``at``."""
        return self.y(at) + (self.high + self.head) / 2 + self.size * BASELINE

    def name(self, at: int, words: str, *, muted: bool = False) -> Label:
        """Write ``words`` left of lane ``at``, or above."""
        if self.head:
            words = fit_text(words, 0.6 * self.width, self.size)
            return Label(self.left, self.y(at) + self.head - 2, words, self.size, muted=muted)
        size = fit_size(words, self.left - 10, self.size)
        return Label(self.left - 8, self.line(at), words, size, "end", muted=muted)

    def note(self, at: int, words: str, *, bold: bool = False, muted: bool = False) -> Label:
        """Write ``words`` right of lane ``at``, smaller if they need it, or above."""
        if self.head:
            x, y = self.left + self.width, self.y(at) + self.head - 2
            return Label(x, y, words, self.size, "end", bold=bold, muted=muted)
        size = fit_size(words, self.right - 10, self.size, bold)
        return Label(self.across - self.right + 8, self.line(at), words, size, bold=bold, muted=muted)

    def placeholder(self, at: int, words: str) -> Label:
        """Write ``words`` into the empty lane ``at``."""
        return Label(self.left, self.line(at), words, fit_size(words, self.width, self.size), muted=True)

    def iterate_shown(
        self, sketch: Sketch, shown: Sequence[int | range], describe: Callable[[range], str]
    ) -> Iterator[tuple[int, int]]:
        """Yield lane and number of each thing shown by itself; put ``describe(range)`` into the lane of each range."""
        for at, things in enumerate(shown):
            if isinstance(things, range):
                sketch.add(self.placeholder(at, describe(things)))
            else:
                yield at, things

    def bar(self, at: int, x: float, width: float, gpu: int | None = None, *, dashed: bool = False,
            tint: float = 0.0, label: str = "", tip: str = "") -> Box:  # fmt: skip
        """Make a box in lane ``at``, as high as fits."""
        y, high = self.y(at) + self.head + self.pad, self.high - self.head - 2 * self.pad
        return Box(x, y, width, high, gpu, label, dashed, tint=tint, tip=tip)

    def limit(self, lanes: Sequence[int], x: float, words: str, count: int) -> Iterator[Line | Label]:
        """Yield a line across each of ``lanes`` at ``x``, and ``words`` below all ``count`` lanes."""
        for at in lanes:
            bar = self.bar(at, x, 0)
            yield Line(x, bar.y, x, bar.y + bar.height + 2, strong=True, over=True)
        half = text_width(words, 12) / 2
        place = min(max(x, half + 4), self.across - half - 4)
        yield Label(place, self.y(count) + 14, words, 12, "middle")


@dataclass(frozen=True)
class TimeAxis:
    """A time axis along the lanes, from ``first`` at the left to ``last`` at the right, in seconds."""

    lanes: Lanes
    first: float
    last: float

    @property
    def seconds(self) -> float:
        return self.last - self.first

    @property
    def scale(self) -> float:
        """Pixels for a second."""
        return self.lanes.width / self.seconds

    def x(self, at: float) -> float:
        return self.lanes.left + (at - self.first) * self.scale

    def marks(self, bottom: float) -> Iterator[Line | Label]:
        """Yield a line down to ``bottom`` at each round time, with the time since the first below."""
        for tick in ticks(self.seconds):
            x = self.lanes.left + tick * self.scale
            yield Line(x, self.lanes.top - 4, x, bottom, muted=True)
            yield Label(x, bottom + 16, duration(tick, self.seconds), 11, "middle", muted=True)


def legend(
    left: float, baseline: float, entries: Sequence[tuple[str, Sequence[Box | Line]]], *, text_offset: float,
    gap: float, size: float = 11, right: float = inf,
) -> list[Box | Line | Label]:  # fmt: skip
    """Make a legend from ``left`` on, in as many lines as end before ``right``.

    baseline      y of the texts in the first line; the last text has that of the last.
    entries       (text, shapes); the shapes' x counts from the entry's left edge.
    text_offset   from an entry's left edge to its text.
    gap           from the end of a text to the next entry.
    """
    found: list[Box | Line | Label] = []
    x, y = left, baseline
    for text, shapes in entries:
        wide = text_offset + text_width(text, size)
        if x > left and x + wide > right:
            x, y = left, y + size + 7
        found += [move(shape, x, y - baseline) for shape in shapes]
        found.append(Label(x + text_offset, y, text, size))
        x += wide + gap
    return found


def move(shape: Box | Line | Label, right: float, down: float) -> Box | Line | Label:
    """Return ``shape`` farther to the right and farther down."""
    if isinstance(shape, Line):
        moved = replace(shape, x1=shape.x1 + right, x2=shape.x2 + right)
        return replace(moved, y1=shape.y1 + down, y2=shape.y2 + down)
    return replace(shape, x=shape.x + right, y=shape.y + down)


def choose_shown(working: int, idle: int = 0, *, most: int, head: int, tail: int) -> list[int | range]:
    """Choose what to show of ``working`` and then ``idle`` things: numbers by themselves, a range as one line.

    most   the most lanes; of more things, the first ``head`` and the last ``tail`` are shown.
    """
    rest = range(working, working + idle)
    shown: list[int | range] = [*range(min(working, most))]
    if working > most:
        shown = [*range(head), range(head, working - tail), *range(working - tail, working)]
    return [*shown, *rest] if working + idle <= most or not rest else [*shown, rest]


def group_neighbours(count: int, most: int) -> list[range]:
    """Split ``count`` things into at most ``most`` groups of neighbours, to draw each group as one."""
    step = -(-count // most) or 1
    step += step > 1 and step % 2 == 0  # odd, so that groups of GPUs get different colours
    return [range(at, min(at + step, count)) for at in range(0, count, step)]


def devices(gpus: range) -> str:
    """Name neighbouring GPUs: ``cuda:3``, ``cuda:3–cuda:5``."""
    return f"cuda:{gpus[0]}" + f"–cuda:{gpus[-1]}" * (len(gpus) > 1)


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in pixels, rather too wide than too narrow."""
    return sum(size * (1.0 if ord(letter) > 0x2E80 else 0.6) for letter in text)


def fit_size(text: str, width: float, size: float, bold: bool = False) -> float:
    """Return ``size``, or the smaller one at which ``text`` fits into ``width`` pixels."""
    wanted = text_width(text, size) * (1.08 if bold else 1)
    return size if wanted <= width else size * width / wanted


def fit_text(text: str, width: float, size: float) -> str:
    """Cut ``text`` to ``width`` pixels, with an ellipsis; "" if not even one letter fits."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text and text + "…"


# For each limit on the number of lanes: height, text size, padding.
Heights = Sequence[tuple[int, float, float, float]]
_HEIGHTS: Heights = ((8, 28, 13.0, 2.0), (16, 22, 12.0, 2.0), (32, 15, 10.5, 2.0))


def lanes(
    count: int, top: float, left: float, right: float, heights: Heights = _HEIGHTS, pad: float = 2.0
) -> Lanes:
    """Make ``count`` lanes, lower the more there are; ``pad`` is for more lanes than ``heights`` has a row for."""
    look = next((rest for most, *rest in heights if count <= most), [12.5, 9.5, pad])
    return Lanes(top, left, right, *look)


def bar_lanes(count: int, top: float) -> Lanes:
    """Make lanes of a narrow picture for ``count`` bars, with names and notes above them."""
    return Lanes(top, 12, 12, 46 if count <= 8 else 38, 13, 2, 18)


def gpu_lanes(
    working: int, top: float, left: float, right: float, idle: int = 0
) -> tuple[list[int | range], Lanes]:
    """Return the GPUs to show (numbers, and ranges as one line) and their lanes."""
    shown = choose_shown(working, idle, most=MOST_LANES, head=12, tail=3)
    return shown, lanes(len(shown), top, left, right)


def ticks(seconds: float) -> list[float]:
    """Return at most eight round times from 0 to ``seconds``."""
    step = 1e-9
    while seconds / step > 7:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return [step * at for at in range(int(seconds / step * (1 + 1e-9)) + 1)]
