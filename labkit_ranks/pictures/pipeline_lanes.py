"""Draw pipelines: a lane for each stage, a box for each task, and below the micro-batches alive on stage 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from labkit.base.language import say
from labkit.view.layout import BASELINE, Lanes, text_width
from labkit.view.palette import CPU
from labkit.view.picture import WIDTH, Box, Label, Line, Picture, Sketch

from ..plans.pipeline import Pipeline
from .captions import caption

_LEFT, _RIGHT, _HEAD, _TALL = 76, 96, 30, 84
# How pale a forward is, a backward, and the gradient of the weights alone.
_PALES = {"F": 0.0, "B": 0.55, "W": 0.85}


def pipelines_picture(pipelines: Sequence[Pipeline]) -> Picture:
    """Draw schedules of the same stages below each other, on a common axis of time."""
    sketch, top = Sketch(), 0.0
    scale = (WIDTH - _LEFT - _RIGHT) * 10 // max(found.length for found in pipelines) / 10 or 0.1
    high = 24 if len(pipelines[0].stages) <= 4 else 17
    floor = len(pipelines) * (_HEAD + len(pipelines[0].stages) * high + 8) + _HEAD + _TALL
    for found in pipelines:
        lane = Lanes(top + _HEAD, _LEFT, _RIGHT, high, 12)
        sketch.add(Label(12, top + 20, caption("pipeline", "title", found=found), 12, bold=True))
        for stage, tasks in enumerate(found.stages):
            sketch.add(lane.name(stage, say(en=f"stage {stage}", zh=f"阶段 {stage}")))
            label = f"stage {stage} waits"
            sketch.add(lane.bar(stage, _LEFT, found.length * scale, dashed=True, label=label))
            for task in tasks:
                number = task.micro_batch
                tint = _PALES[task.name[0]] + 0.25 * task.chunk * (task.name[0] == "F")
                left, width = _LEFT + task.start * scale, (task.stop - task.start) * scale
                box = lane.bar(stage, left, width, number, tint=tint, label=f"stage {stage} {task.name}")
                sketch.add(box)
                if text_width(str(number), 11) < box.width:
                    middle = box.x + box.width / 2, box.y + box.height / 2 + 11 * BASELINE
                    sketch.add(Label(*middle, str(number), 11, "middle", gpu=number, tint=tint))
            words = caption("pipeline", "alive", count=found.peak(stage))
            sketch.add(lane.note(stage, words, bold=not stage, muted=stage > 0))
        top = lane.y(len(found.stages)) + 8
    sketch.add(Label(12, top + 20, caption("pipeline", "curve"), 12, bold=True))
    _curves(sketch, pipelines, scale, floor)
    return sketch.picture(floor + 14, _describe(pipelines))


def _describe(pipelines: Sequence[Pipeline]) -> str:
    """Describe schedules: those of equal length in a sentence, then the micro-batches that each keeps alive."""
    first = pipelines[0]
    if len(pipelines) == 1 or any(
        (one.length, one.bubble) != (first.length, first.bubble) for one in pipelines
    ):
        return say(en="; ", zh="；").join(map(repr, pipelines))
    alive = []
    for one in pipelines:
        peaks = [one.peak(stage) for stage in range(len(one.stages))]
        listed = say(en=", ", zh="、").join(map(str, peaks))
        alone = {"name": one.name, "peak": peaks[0], "listed": listed}
        alive.append(caption("pipeline", "everywhere" if len({*peaks}) == 1 else "stages", **alone))
    told = say(en="; ", zh="；").join(alive)
    return caption("pipeline", "same", length=first.length, bubble=first.bubble, alive=told)


def pipeline_picture(found: Pipeline) -> Picture:
    """Draw a single schedule."""
    return pipelines_picture([found])


def _curves(sketch: Sketch, pipelines: Sequence[Pipeline], scale: float, floor: float) -> None:
    """Draw the micro-batches alive on stage 0 as areas above ``floor``; the last schedule's area is dark."""
    each = (_TALL - 12) / max(found.peak(0) for found in pipelines)
    sketch.add(Line(_LEFT, floor, WIDTH - _RIGHT, floor, muted=True))
    for found in pipelines:
        last = found is pipelines[-1]
        for (at, count), (then, _) in pairwise(found.alive(0)):
            place = _LEFT + at * scale, floor - count * each, (then - at) * scale, count * each
            sketch.add(Box(*place, CPU, f"{found.name} alive {count}", tint=0.3 if last else 0.75))
        apart = (pipelines[0].peak(0) - found.peak(0)) * each
        low = max(0.0, 13 - apart) if found is not pipelines[0] else 0.0  # labels do not touch
        y = floor - found.peak(0) * each + 4 + low
        peak = str(found.peak(0))
        if len(pipelines) > 1:  # the heading names a single one
            peak = say(en=f"{found.name}: {peak}", zh=f"{found.name}：{peak}")
        sketch.add(Label(WIDTH - _RIGHT + 8, y, peak, 11, bold=last))
