"""Pictures of lessons: the call of the index, lost rows (01), BatchNorm, step times (08), means (13), parity (23)."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from labkit.base.language import say
from labkit.explore.explorer import Explorer
from labkit.explore.explorers import CallExplorer
from labkit.plans.split import split
from labkit.view.layout import Lanes, fit_size, text_width
from labkit.view.picture import NARROW, Box, Label, Line, Picture, Sketch
from labkit.view.pictures.charts import Axis, Counts, Curve, charts_picture, decades, nice
from labkit.view.svg import to_svg

_SECONDS = 1.6  # for a moment of the call; the last one stays for two
# The least difference that is drawn, and the numbers of two colours among those of GPUs.
_LEAST, _ORANGE, _GREY = 1e-9, 5, 7


def call_in_motion() -> str:
    """Return a call of ten rows on four GPUs, forward and backward, as SVG text that moves by its own style sheet.

    With reduced motion the last moment is shown, which has all of them in it.
    """
    explorer = CallExplorer(rows=10, gpus=4)
    least, most = explorer.limits["step"]
    moments = []
    for step in range(least, most + 1):
        explorer.step = step
        found = re.fullmatch(r"(<svg.*?>)<title>.*?</title>(.*)</svg>", explorer.picture(), re.DOTALL)
        assert found is not None
        head, inside = found.groups()
        moments.append(inside)
    turns = len(moments) + 1
    shown = 100 / turns
    style = (
        f".moment{{visibility:hidden;animation:{turns * _SECONDS:g}s step-end infinite shown}}"
        f"@keyframes shown{{0%{{visibility:visible}}{shown:.3f}%{{visibility:hidden}}}}"
        ".last{animation-name:stays}"
        f"@keyframes stays{{0%{{visibility:visible}}{2 * shown:.3f}%{{visibility:hidden}}}}"
        "@media (prefers-reduced-motion:reduce){.moment{animation:none}.last{visibility:visible}}"
    )
    groups = ""
    for at, inside in enumerate(moments):
        kind = "moment last" if inside is moments[-1] else "moment"
        groups += f'<g class="{kind}" style="animation-delay:{at * _SECONDS:g}s">{inside}</g>'
    head = re.sub(r'aria-label="[^"]*"', f'aria-label="{explorer!r}"', head)
    return f"{head}<style>{style}</style>{groups}</svg>\n"


class CallInMotion:
    """A call of ten rows on four GPUs that plays by itself; shows itself as Markdown with the picture in it.

    A learner's copy of the index has it as text, so it moves before anything is run.
    """

    def __repr__(self) -> str:
        return say(en="A call of ten rows on four GPUs", zh="10 行数据在四块 GPU 上的一次调用")

    def _repr_markdown_(self) -> str:
        return f"![{self!r}](data:image/svg+xml;base64,{b64encode(call_in_motion().encode()).decode()})"


@dataclass(frozen=True)
class LostRows:
    """The rows that were left out in the first epochs, and in all of them; shows itself as SVG.

    dropped   by ``shuffle``, False or True: the rows left out in each epoch.
    rows      the number of rows.
    """

    dropped: Mapping[bool, Sequence[Set[int]]]
    rows: int

    def _never(self, shuffle: bool) -> Set[int]:
        return set(range(self.rows)).intersection(*self.dropped[shuffle])

    def __repr__(self) -> str:
        counts = [len(self._never(shuffle)) for shuffle in self.dropped]
        en, zh = (
            [f"{words[shuffle]}{count}" for shuffle, count in zip(self.dropped, counts, strict=True)]
            for words in (("in the same order ", "shuffled "), ("顺序不变 ", "打乱顺序 "))
        )
        return say(en=f"rows never seen: {', '.join(en)}", zh=f"从来没见过的行：{'，'.join(zh)}")

    def picture(self) -> Picture:
        """Draw a strip of all rows for each of three epochs, those left out in colour, and one for all epochs."""
        sketch, left, wide, y = Sketch(), 108.0, 480.0, 28.0
        sketch.add(Label(left - 10, 16, say(en="row", zh="行号"), 11, "end", muted=True))
        for row in sorted({*range(0, self.rows, 10), self.rows - 1}):
            if row == self.rows - 1 or self.rows - 1 - row >= 5:
                x = left + (row + 0.5) * wide / self.rows
                sketch.add(Label(x, 16, str(row), 11, "middle", muted=True))
        for shuffle, epochs in self.dropped.items():
            title = say(en="always in the same order", zh="顺序一直不变")
            title = say(en="shuffled", zh="打乱顺序") if shuffle else title
            sketch.add(Label(left, y + 12, title, 13, bold=True))
            y += 20
            strips = [
                (say(en=f"epoch {at}", zh=f"第 {at} 轮"), rows, False)
                for at, rows in enumerate(epochs[:3], 1)
            ]
            whole = say(en=f"in all {len(epochs)}", zh=f"{len(epochs)} 轮下来")
            for name, rows, heavy in [*strips, (whole, self._never(shuffle), True)]:
                sketch.add(Label(left - 10, y + 12, name, 13, "end", bold=heavy), Box(left, y, wide, 16))
                for row in sorted(rows):
                    x = left + row * wide / self.rows
                    sketch.add(
                        Box(x, y, wide / self.rows, 16, _ORANGE, say(en=f"row {row}", zh=f"第 {row} 行"))
                    )
                note = say(en=f"{len(rows)} left out", zh=f"丢弃 {len(rows)} 行")
                note = say(en=f"{len(rows)} never seen", zh=f"从来没见过 {len(rows)} 行") if heavy else note
                sketch.add(Label(left + wide + 10, y + 12, note, 13, bold=heavy))
                y += 21
            y += 8
        return sketch.picture(y, repr(self))

    def _repr_svg_(self) -> str:
        return to_svg(self.picture(), panel=True)


@dataclass(frozen=True)
class BatchNormMeans:
    """The mean that BatchNorm subtracts on each GPU, beside the mean of the batch; shows itself as SVG.

    rows   a number for each row of the batch, in order.
    gpus   among which they are split.
    """

    rows: Sequence[float]
    gpus: int = 2

    def _pieces(self) -> list[Sequence[float]]:
        sizes = split(len(self.rows), self.gpus).sizes
        starts = [sum(sizes[:at]) for at in range(len(sizes))]
        return [self.rows[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def __repr__(self) -> str:
        means = [_mean(piece) for piece in self._pieces()]
        en, zh = ([f"cuda:{gpu} {verb}{mean:g}" for gpu, mean in enumerate(means)] for verb in ("", "减 "))
        return say(
            en=f"mean of the batch {_mean(self.rows):g}; subtracted: {'; '.join(en)}",
            zh=f"整个批次的平均是 {_mean(self.rows):g}；{'，'.join(zh)}",
        )

    def picture(self) -> Picture:
        """Draw a lane for each GPU: its rows as dots, its own mean as a heavy line, the batch's mean dashed."""
        least, most = min(self.rows), max(self.rows)
        sketch, pieces, lane = Sketch(), self._pieces(), Lanes(36, 20, 20, 76, 13, head=18)

        def x(value: float) -> float:
            return lane.left + (value - least) / ((most - least) or 1) * lane.width

        whole = _mean(self.rows)
        words = say(en=f"mean of the batch: {whole:g}", zh=f"整个批次的平均：{whole:g}")
        sketch.add(Label(x(whole), 20, words, 12, "middle"))
        for gpu, piece in enumerate(pieces):
            y, mean = lane.y(gpu) + 46, _mean(piece)
            sketch.add(
                lane.name(gpu, f"cuda:{gpu}"),
                Line(lane.left - 12, y, lane.left + lane.width + 12, y, muted=True),
                Line(x(whole), y - 22, x(whole), y + 22, dashed=True),
            )
            sketch.add(*(Box(x(value) - 7, y - 7, 14, 14, gpu, round=True) for value in piece))
            sketch.add(Line(x(mean), y - 22, x(mean), y + 22, strong=True, over=True))
            kept = (
                say(en="kept in running_mean", zh="留在 running_mean 里")
                if not gpu
                else say(en="lost", zh="丢失")
            )
            note = say(en=f"subtracts {mean:g}, {kept}", zh=f"减去 {mean:g}，{kept}")
            sketch.add(lane.note(gpu, note, bold=not gpu))
        return sketch.picture(lane.y(len(pieces)) + 4, repr(self), NARROW)

    def _repr_svg_(self) -> str:
        return to_svg(self.picture(), panel=True)


@dataclass(frozen=True)
class StepTimes:
    """The time of a step on 1, 2, 4, … GPUs, for several times that starting a replica may take; shows itself as SVG.

    seconds   by the milliseconds of a start: the seconds of a step on each number of GPUs.
    """

    seconds: Mapping[float, Sequence[float]]

    def __repr__(self) -> str:
        rows = [
            say(en=f"{start:g} ms a start: ", zh=f"启动一次 {start:g} ms：")
            + ", ".join(f"{1000 * one:.1f}" for one in times)
            for start, times in self.seconds.items()
        ]
        return "\n".join([say(en="ms on 1, 2, 4, … GPUs", zh="1、2、4、…… 块 GPU 上的毫秒数"), *rows])

    def picture(self) -> Picture:
        """Draw a curve for each start, named at its end with the number of GPUs on which it is lowest."""
        counts = [2**at for at in range(len(next(iter(self.seconds.values()))))]
        curves = []
        for at, (start, times) in enumerate(self.seconds.items()):
            name = say(en=f"{start:g} ms to start a replica", zh=f"启动一个副本 {start:g} ms")
            best = counts[min(range(len(times)), key=times.__getitem__)]
            short = say(en=f"{start:g} ms: fastest on {best}", zh=f"{start:g} ms：{best} 块最快")
            values = [[1000 * one for one in times]]
            mark = ("", "disc", "square")[at % 3]
            curves.append(Curve(f"{start:g} ms", name, short, values, at == 1, at == 0, mark))
        most = max(1000 * one for times in self.seconds.values() for one in times)
        title = say(en="training step, ms", zh="每个训练步，ms")
        axis = Axis(title, nice(most), "{:.4g}".format, "{:.1f} ms".format)
        unit = say(en="number of GPUs", zh="GPU 数")
        return charts_picture(curves, [axis], Counts(counts, unit), "", repr(self))

    def _repr_svg_(self) -> str:
        return to_svg(self.picture(), panel=True)


@dataclass(frozen=True)
class MeanOfMeans:
    """The weight of each loss in the mean of the ranks' means, and in the mean of all; shows itself as SVG.

    losses   of each rank, a number for each of its tokens.
    """

    losses: Sequence[Sequence[float]]

    def _means(self) -> tuple[float, float]:
        everything = [loss for own in self.losses for loss in own]
        return _mean([_mean(own) for own in self.losses]), _mean(everything)

    def __repr__(self) -> str:
        of_means, of_all = self._means()
        return say(
            en=f"mean of the ranks' means {of_means:g}, mean of all tokens {of_all:g}",
            zh=f"各 rank 平均的平均是 {of_means:g}，全部 token 的平均是 {of_all:g}",
        )

    def picture(self) -> Picture:
        """Draw two strips of a block for each token, as wide as its weight, in its rank's colour."""
        sketch, left, wide, y = Sketch(), 20.0, NARROW - 40.0, 20.0
        of_means, of_all = self._means()
        count = sum(map(len, self.losses))
        names = (
            say(en=f"mean of the ranks' means: {of_means:g}", zh=f"各 rank 平均的平均：{of_means:g}"),
            say(en=f"mean of all tokens: {of_all:g}", zh=f"全部 token 的平均：{of_all:g}"),
        )
        for of_ranks, name in zip((True, False), names, strict=True):
            sketch.add(Label(left, y, name, 13, bold=True))
            x = left
            for rank, own in enumerate(self.losses):
                parts = len(self.losses) * len(own) if of_ranks else count
                for loss in own:
                    width, tip = wide / parts, say(en=f"rank {rank}: 1/{parts}", zh=f"rank {rank}：1/{parts}")
                    sketch.add(Box(x, y + 8, width, 26, rank, tip, tip=tip))
                    sketch.add(Label(x + width / 2, y + 26, f"{loss:g}", 13, "middle", rank))
                    sketch.add(Label(x + width / 2, y + 48, f"1/{parts}", 11, "middle", muted=True))
                    x += width
            y += 76
        note = say(
            en="colour: rank; in the block: loss; below: weight", zh="颜色是 rank，块里是损失，下面是比重"
        )
        sketch.add(Label(left, y - 8, note, 11, muted=True))
        return sketch.picture(y, repr(self), NARROW)

    def _repr_svg_(self) -> str:
        return to_svg(self.picture(), panel=True)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


class ParityExplorer(Explorer):
    """Curves of several layouts, their differences from the first, and the gradients of the first step in order.

    results   of ``labkit.parity`` with the same layouts, by precision: ``ParityExplorer(fp32=…, bf16=…)``.
    measure   the curves: "losses" or "norms".
    """

    choices = {"measure": ("losses", "norms")}
    unfolds = "precision"

    def __init__(self, *, measure: str = "losses", **results: Any) -> None:
        self._results = results
        self.choices = {"precision": tuple(results)} | self.choices
        super().__init__(precision=next(iter(results)), measure=measure)

    def make_picture(self) -> Picture:
        return parity_strips(self._results[self.precision].layouts, self.measure)


def parity_strips(layouts: Sequence[Any], measure: str) -> Picture:
    """Draw two charts, and below them a row for each layout, a box for each gradient in the order of backward."""
    names = [_layout_name(one) for one in layouts]
    there, tensors = getattr(layouts[0], measure), list(layouts[1].gaps)
    title = say(en="loss", zh="损失") if measure == "losses" else say(en="gradient norm", zh="梯度范数")
    curves, worst = list[Curve](), 0.0
    for at, (name, one) in enumerate(zip(names, layouts, strict=True)):
        values, mark = getattr(one, measure), ("square", "disc")[at % 2] if at else ""
        off = [max(abs(a - b) / abs(b), _LEAST) for a, b in zip(values, there, strict=True)]
        worst = max(worst, *off)
        shown = [values, off if at else [None] * len(off)]
        curves.append(Curve(name, name, name, shown, at % 2 == 1, not at, mark, at - 1))
    lens = say(en="difference from one GPU", zh="与一块 GPU 的相对差")
    loss = Axis(
        title, nice(max(max(getattr(one, measure)) for one in layouts)), "{:.3g}".format, "{:.6g}".format
    )
    gap = Axis(lens, decades([1.0, worst])[1], _difference, _short, _LEAST)
    unit = say(en="step", zh="步")
    apart = say(en=f"at most {_short(worst)} apart", zh=f"最多相差 {_short(worst)}")
    if worst >= 1:
        apart = say(en=f"up to {worst + 1:.0f} times one GPU's", zh=f"最多是一块 GPU 的 {worst + 1:.0f} 倍")
    words = say(
        en=f"{len(layouts)} curves of the {title}, {apart}", zh=f"{len(layouts)} 条{title}曲线，{apart}"
    )
    steps = Counts(range(1, len(there) + 1), unit, unit)
    charts = charts_picture(curves, [loss, gap], steps, "", words, stacked=True)
    sketch, left, top = Sketch(), 58.0, charts.height + 27
    strips = (
        say(en="Gradients of step 1 in the order of backward", zh="第 1 步的梯度，按反向传播的次序"),
        say(
            en="Grey: rounding; orange: different; framed: the first",
            zh="灰色：舍入（越浓差得越多）；橙色：不同；加框：第一个不同",
        ),
    )
    for at, strip in enumerate(strips):
        sketch.add(Label(12, charts.height - 2 + 17 * at, strip, fit_size(strip, NARROW - 24, 12)))
    wide, end = (charts.width - left - 12) / len(tensors), top + 20 * len(layouts[1:])
    for row, (name, one) in enumerate(zip(names[1:], layouts[1:], strict=True)):
        y = top + 20 * row
        sketch.add(Label(left - 8, y + 13, name, 12, "end"))
        for at, tensor in enumerate(tensors):
            first, off_by = tensor == one.first, max(one.gaps.get(tensor, 1.0), _LEAST)
            tint, tip = 0.9 - 0.8 * gap.share(off_by), f"{name} · {tensor} · {_short(off_by)}"
            colour = _ORANGE if first or off_by > one.tolerance else _GREY
            place = left + at * wide, y, wide - 2, 16
            sketch.add(Box(*place, colour, tip, tint=tint, tip=tip, strong=first, faint=True))
    parts = [re.match(r"layers\.\d+|\w+", tensor)[0] for tensor in tensors]  # type: ignore[index]
    for number, part in enumerate(dict.fromkeys(parts)):
        x = min(left + parts.index(part) * wide, NARROW - 8 - text_width(part, 11))
        sketch.add(Label(x, end + 12 + 13 * (number % 2), part, 11, muted=True))
    below = sketch.picture(end + 32, words)
    return replace(
        charts, height=below.height, boxes=charts.boxes + below.boxes, texts=charts.texts + below.texts
    )


def _difference(value: float) -> str:
    """Return a difference for the axis, whose foot stands for all smaller ones."""
    return f"{'≤ ' * (value == _LEAST)}{_short(value)}"


def _short(value: float) -> str:
    """Return a single digit with its power of ten, 3e-7, and a whole number from 1 on."""
    return f"{value:.0e}".replace("e-0", "e-") if value < 1 else f"{value:.0f}"


def _layout_name(layout: Any) -> str:
    """Return "DP" for two ranks with "--dp 2"."""
    return layout.arguments[0].strip("-").upper() if layout.ranks > 1 else say(en="one GPU", zh="一块 GPU")
