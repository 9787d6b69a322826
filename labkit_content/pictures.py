"""Pictures of single lessons: the call in motion that opens the index, and the two means of BatchNorm in lesson 08."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.base.language import say
from labkit.explore.explorers import CallExplorer
from labkit.plans.split import split
from labkit.view.picture import Box, Label, Line, Picture, Sketch
from labkit.view.svg import to_svg

_SECONDS = 1.6  # for a moment of the call; the last one stays for two
# The two lanes of BatchNorm's means: top edge, height, left end and width of the line of numbers.
_TOP, _HIGH, _LEFT, _ACROSS = 44, 62, 90, 290


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
        own = "; ".join(f"cuda:{gpu} {mean:g}" for gpu, mean in enumerate(means))
        return say(
            en=f"mean of the batch {_mean(self.rows):g}; subtracted: {own}",
            zh=f"整个批次的平均 {_mean(self.rows):g}；各自减去的平均：{own}",
        )

    def picture(self) -> Picture:
        """Draw a lane for each GPU: its rows as dots, its own mean as a heavy line, the batch's mean dashed."""
        least, most = min(self.rows), max(self.rows)
        sketch, pieces = Sketch(), self._pieces()

        def x(value: float) -> float:
            return _LEFT + (value - least) / ((most - least) or 1) * _ACROSS

        bottom, whole = _TOP + len(pieces) * _HIGH, _mean(self.rows)
        sketch.add(Line(x(whole), _TOP - 14, x(whole), bottom, dashed=True))
        words = say(en=f"mean of the batch: {whole:g}", zh=f"整个批次的平均：{whole:g}")
        sketch.add(Label(x(whole), _TOP - 20, words, 12, "middle"))
        for gpu, piece in enumerate(pieces):
            y, mean = _TOP + gpu * _HIGH + _HIGH / 2, _mean(piece)
            sketch.add(
                Label(_LEFT - 30, y + 4, f"cuda:{gpu}", 13, "end"),
                Line(_LEFT - 12, y, _LEFT + _ACROSS + 12, y, muted=True),
            )
            sketch.add(*(Box(x(value) - 7, y - 7, 14, 14, gpu, round=True) for value in piece))
            sketch.add(Line(x(mean), y - 22, x(mean), y + 22, strong=True, over=True))
            kept = (
                say(en="kept in running_mean", zh="留在 running_mean 里")
                if not gpu
                else say(en="lost", zh="丢失")
            )
            note = say(en=f"subtracts {mean:g}, {kept}", zh=f"减去 {mean:g}，{kept}")
            sketch.add(Label(_LEFT + _ACROSS + 28, y + 4, note, 13, bold=not gpu))
        return sketch.picture(bottom + 12, repr(self))

    def _repr_svg_(self) -> str:
        return to_svg(self.picture(), panel=True)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
