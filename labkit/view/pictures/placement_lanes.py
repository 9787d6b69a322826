"""The picture of a placement: a lane for each device, with its contents before, during and after the call."""

from __future__ import annotations

import textwrap

from ...base.language import say
from ...base.numbers import plural
from ...plans.placement import Placement
from ..captions import caption
from ..layout import BASELINE, choose_shown, fit_size, fit_text
from ..palette import number
from ..picture import WIDTH, Box, Label, Line, Picture, Sketch

_NAME, _BEFORE, _DURING, _AFTER = (12, 98), (118, 140), (330, 180), (582, 124)  # left edge and width
_TOP, _HIGH, _GAP, _CELL, _SIZE = 42, 62, 8, 24, 12
_PALE = 0.62
# The most GPUs drawn one by one.
_MOST, _HEAD, _TAIL = 8, 5, 1


def placement_picture(found: Placement) -> Picture:
    """Draw the place of everything, with arrows to where it is sent."""
    sketch = Sketch()
    for (x, width), when in ((_BEFORE, "before"), (_DURING, "during"), (_AFTER, "after")):
        sketch.add(Label(x + width / 2, 24, caption("placement", when), 13, "middle", bold=True))
    lanes, y = {}, float(_TOP)
    for entry in _choose_devices(found):
        if isinstance(entry, str):
            lanes[entry] = y
            sketch.add(*_lane(found, entry, y))
            y += _HIGH + _GAP
        else:
            working = _working(found)
            busy = sum(f"cuda:{gpu}" in working for gpu in entry)
            words = caption("placement", "more", gpus=len(entry), busy=busy)
            size = fit_size(words, WIDTH - 2 * _BEFORE[0], _SIZE)
            sketch.add(Label(_BEFORE[0], y + 16, words, size, muted=True))
            y += 24 + _GAP
    for device in (name for name in lanes if not found.error and name in _working(found)):
        sketch.add(*_arrows(found, lanes, device))
    if found.error:
        for line in textwrap.wrap(f"RuntimeError: {found.error}", 90):
            sketch.add(Label(12, y + 14, line, 12.5, mono=True))
            y += 18
    return sketch.picture(y + 4, _description(found))


def _working(found: Placement) -> dict[str, range]:
    """Return the rows of each device that computes, in the order of ``device_ids``."""
    pieces = found.plan.pieces
    names = found.replicas or (found.module,)
    return {name: range(p.start, p.stop) for name, p in zip(names, pieces, strict=False) if p.rows}


def _choose_devices(found: Placement) -> list[str | range]:
    """Return the CPU if it holds anything, and the GPUs by number; of very many, some as a range."""
    cpu = "cpu" in (found.batch, found.output, found.module)
    named = {found.module, found.batch, found.output, found.home}
    shown: list[str | range] = ["cpu"] * cpu
    for at in choose_shown(found.gpus, most=_MOST, head=_HEAD, tail=_TAIL):
        if isinstance(at, int):
            shown.append(f"cuda:{at}")
            continue
        begin = at.start  # GPUs that hold something are always drawn
        for gpu in at:
            if f"cuda:{gpu}" in named:
                shown += [range(begin, gpu)] * (gpu > begin) + [f"cuda:{gpu}"]
                begin = gpu + 1
        shown += [range(begin, at.stop)] * (at.stop > begin)
    return shown


def _lane(found: Placement, device: str, y: float) -> list[Box | Line | Label]:
    """Draw a device's lane."""
    gpu, home = number(device), device == found.home
    rows, upper, lower = _working(found).get(device), y + 6, y + _HIGH - 6 - _CELL
    part = found.replicas.index(device) if device in found.replicas else None
    shapes: list[Box | Line | Label] = [
        Box(4, y, WIDTH - 8, _HIGH, label=f"{device} lane", strong=home),
        Label(_NAME[0], y + 26, device, 14, bold=home),
    ]
    if home:
        shapes.append(Label(_NAME[0], y + 45, say(en="⌂ home device", zh="⌂ 主设备"), _SIZE, bold=True))
    if device == found.module:
        wrong = say(en="✗ module", zh="✗ 模块") if found.error else say(en="module", zh="模块")
        shapes += _cell(_BEFORE, upper, gpu, wrong, "module")
    elif home and found.error:
        here = say(en="no module here", zh="这里没有模块")
        shapes += _cell(_BEFORE, upper, None, here, "no module")
    if device == found.batch:
        words = say(en=f"input: {plural(found.plan.batch, 'row')}", zh=f"输入：{found.plan.batch} 行")
        shapes += _cell(_BEFORE, lower, gpu, words, "input", pale=True)
    if rows is not None and not found.error:
        words = say(en="the module itself", zh="模块本身")
        if len(found.replicas) > 1:
            words = say(en=f"replica {part}", zh=f"副本 {part}")
        shapes += _cell(_DURING, upper, gpu, words, "replica")
        span = f"{rows[0]}–{rows[-1]}" if len(rows) > 1 else f"{rows[0]}"
        words = say(en=f"row{'s' * (len(rows) > 1)} {span}", zh=f"第 {span} 行")
        shapes += _cell(_DURING, lower, gpu, words, "piece", pale=True)
    elif part is not None and not found.error:
        shapes += _cell(_DURING, (upper + lower) / 2, None, say(en="idle", zh="空闲"), "idle")
    elif device.startswith("cuda") and device not in (found.module, found.batch, found.output):
        middle = _DURING[0] + _DURING[1] / 2, y + _HIGH / 2 + _SIZE * BASELINE
        # A GPU in device_ids holds nothing if the call fails before sending.
        words = "" if part is not None else say(en="not in device_ids", zh="不在 device_ids 里")
        shapes.append(Label(*middle, words, _SIZE, "middle", muted=True))
    if device == found.output and not found.error:
        words = say(en=f"output: {plural(found.plan.batch, 'row')}", zh=f"输出：{found.plan.batch} 行")
        shapes += _cell(_AFTER, (upper + lower) / 2, gpu, words, "output")
    return shapes


def _cell(
    column: tuple[float, float], y: float, gpu: int | None, words: str, label: str, *, pale: bool = False
) -> list[Box | Label]:
    (x, width), tint = column, _PALE if pale else 0.0
    text = Label(
        x + width / 2, y + _CELL / 2 + _SIZE * BASELINE, fit_text(words, width - 6, _SIZE), _SIZE, "middle", gpu=gpu,
        tint=tint if gpu is not None else 0.0, muted=gpu is None,
    )  # fmt: skip
    return [Box(x, y, width, _CELL, gpu, label, dashed=gpu is None, tint=tint), text]


def _arrows(found: Placement, lanes: dict[str, float], device: str) -> list[Line]:
    """Draw arrows to ``device`` before it computes, and from it afterwards; without a head within a device."""
    lines = []
    upper, lower = 6 + _CELL / 2, _HIGH - 6 - _CELL / 2
    before = ((found.module, device, _BEFORE, _DURING, upper), (found.batch, device, _BEFORE, _DURING, lower))
    for source, target, left, right, level in (*before, (device, found.output, _DURING, _AFTER, _HIGH / 2)):
        ends = left[0] + left[1], lanes[source] + level, right[0] - 1, lanes[target] + level
        lines.append(Line(*ends, arrow=source != target, muted=source == target))
    return lines


def _description(found: Placement) -> str:
    if found.error:
        return caption("placement", "wrong", found=found)
    if not found.replicas:
        return caption("placement", "no-gpu", module=found.module)
    working = list(_working(found).items())
    pieces = [caption("placement", "piece", name=name, rows=len(rows)) for name, rows in working[:8]]
    listed = say(en=", ", zh="，").join(pieces) or caption("placement", "no-pieces")
    return caption("placement", found=found, pieces=listed, more="…" * (len(working) > 8))
