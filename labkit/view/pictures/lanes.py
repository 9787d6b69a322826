"""Pictures with a lane for each GPU, batch or tensor: splits, batches, inputs, memory by kind and memory in use."""

from __future__ import annotations

from dataclasses import replace

from ...base.language import say
from ...base.numbers import plural
from ...base.units import bytes_text
from ...plans.batches import Batches
from ...plans.footprint import KINDS, Footprints, Occupancy
from ...plans.shapes import Cut, cut_shape
from ...plans.split import Split
from ..captions import caption
from ..layout import (
    MOST_LANES,
    Lanes,
    bar_lanes,
    choose_shown,
    devices,
    fit_size,
    fit_text,
    gpu_lanes,
    group_neighbours,
    lanes,
    legend,
    text_width,
)
from ..picture import NARROW, WIDTH, Box, Label, Picture, Sketch

_LEFT = 76  # the left edge of lanes of GPUs
_TOP, _BAR = 30, 26  # the whole batch, above the lanes of its pieces
# The fewest pixels for a row of its own.
_FINEST = 4.0


def split_picture(plan: Split) -> Picture:
    """Draw a batch on top and below a lane for each GPU with its rows; of very many GPUs the first and the last."""
    working = len(plan.sizes) if plan.batch else 0
    shown, lane = gpu_lanes(working, _TOP + _BAR + 14, _LEFT, 126, len(plan.idle))
    scale, end = lane.width / max(plan.batch, 1), WIDTH - lane.right
    rows, line = rows_text(plan.batch), _TOP + _BAR * 0.68
    sketch = Sketch()
    sketch.add(
        Label(_LEFT - 8, line, say(en="batch", zh="批次"), 13, "end", bold=True),
        Label(end + 8, line, rows, fit_size(rows, lane.right - 10, 13)),
    )
    if plan.batch:
        sketch.add(*_ruler(plan.batch, scale))
    else:
        sketch.add(Box(_LEFT, _TOP, lane.width, _BAR, dashed=True))
    # Cut the batch into rows if they are wide enough, else into pieces.
    if plan.batch and scale < _FINEST:
        sketch.add(*_pieces(plan, _LEFT, _TOP, scale, _BAR))

    def describe_rest(gpus: range) -> str:
        if gpus[0] >= len(plan.pieces) or not plan.batch:
            return caption("split", "idle", where=devices(gpus), gpus=len(gpus))
        return caption("split", "working", where=devices(gpus), gpus=len(gpus), rows=plan.chunk)

    for at, gpu in lane.iterate_shown(sketch, shown, describe_rest):
        if gpu >= len(plan.sizes) or not plan.sizes[gpu]:
            sketch.add(
                lane.name(at, f"cuda:{gpu}", muted=True),
                lane.bar(at, _LEFT, lane.width, dashed=True, label=f"cuda:{gpu}"),
                lane.note(at, say(en="idle", zh="空闲"), muted=True),
            )
            continue
        piece = plan.pieces[gpu]
        x, width = _LEFT + piece.start * scale, piece.rows * scale
        if scale >= _FINEST:  # the piece's rows, on top
            for row in range(piece.rows):
                label = f"cuda:{gpu} row {piece.start + row}"
                sketch.add(Box(x + row * scale, _TOP, scale, _BAR, gpu, label))
        short = piece == plan.short
        sketch.add(
            lane.name(at, f"cuda:{gpu}"),
            lane.bar(at, x, width, gpu, label=str(piece)),
            lane.note(at, _rows_note(piece.rows, short), bold=short),
        )
        span = f"{piece.start}–{piece.stop - 1}" if piece.rows > 1 else f"{piece.start}"
        wanted = text_width(span, lane.size) + 4
        if width > wanted:
            sketch.add(Label(x + width / 2, lane.line(at), span, lane.size, "middle", gpu=gpu))
        elif x + width + wanted + 4 < end:  # beside it, where there is room
            sketch.add(Label(x + width + 4, lane.line(at), span, lane.size))
        else:
            sketch.add(Label(x - 4, lane.line(at), span, lane.size, "end"))
    description = caption("split", "no-rows", gpus=plan.gpus)
    if plan.batch:
        description = caption("split", plan=plan, used=len(plan.pieces))
        if plan.idle:
            names, verb = devices(range(plan.idle[0], plan.gpus)), "is" if len(plan.idle) == 1 else "are"
            description += say(en=f"; {names} {verb} idle", zh=f"；{names} 空闲")
        description += say(en=".", zh="。")
    return sketch.picture(lane.y(len(shown)) + 8, description)


def rows_text(count: int) -> str:
    """Format ``1 row``, ``2 rows``."""
    return say(en=plural(count, "row"), zh=f"{count} 行")


def _rows_note(count: int, short: bool) -> str:
    return rows_text(count) + say(en=", short", zh="，不满") * short


def _pieces(plan: Split, x: float, y: float, scale: float, height: float) -> list[Box]:
    """Draw a batch as a bar, cut into pieces; very many pieces are drawn in groups."""
    boxes = []
    for group in group_neighbours(len(plan.pieces), MOST_LANES):
        first, last = plan.pieces[group[0]], plan.pieces[group[-1]]
        label = str(first) if first is last else f"{devices(group)} rows {first.start}..{last.stop - 1}"
        if rows := last.stop - first.start:
            boxes.append(Box(x + first.start * scale, y, rows * scale, height, first.gpu, label))
    return boxes


def _ruler(batch: int, scale: float) -> list[Label]:
    """Label rows of the batch: the first, the last, and round ones between."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, batch) if s * scale > 26)
    marks = [row for row in range(0, batch, step) if row == 0 or (batch - 1 - row) * scale > 26]
    marks = marks + [batch - 1] if batch > 1 else marks
    return [Label(_LEFT + (row + 0.5) * scale, _TOP - 8, str(row), 11, "middle", muted=True) for row in marks]


_LANE, _SIZE = 30, 13
# The most batches drawn one by one; of more, the first and the last two, with a line between.
_MOST = 12


def batches_picture(plan: Batches) -> Picture:
    """Draw a pass over the data: a lane for each batch, cut into pieces, at one scale."""
    left = min(max(84, 24 + _SIZE * 0.6 * len(f"batch {plan.total}")), 168)
    lane = Lanes(12, left, 190, _LANE, _SIZE)
    scale = lane.width / plan.batch_size
    shown = choose_shown(plan.total, most=_MOST, head=_MOST - 3, tail=2)
    sketch = Sketch()

    def describe_rest(numbers: range) -> str:
        more = numbers.stop - numbers.start  # len cannot say every number
        return say(en=f"… {more} more batches like these …", zh=f"…… 还有 {more} 个这样的批次 ……")

    for at, number in lane.iterate_shown(sketch, shown, describe_rest):
        batch, short = plan[number], number == plan.full
        note = _rows_note(batch.batch, short)
        if batch.idle:
            note += say(en=f"; {len(batch.idle)} idle", zh=f"；{len(batch.idle)} 块空闲")
        sketch.add(
            lane.name(at, say(en=f"batch {number}", zh=f"批次 {number}")),
            *_pieces(batch, left, lane.y(at) + 2, scale, _LANE - 4),
            *_labels(plan, batch, number, left, lane.line(at), scale),
            lane.note(at, note, bold=short),
        )
    count = len(shown)
    if plan.dropped:
        words = say(en=f"{plural(plan.dropped, 'row')}, dropped", zh=f"{plan.dropped} 行，丢弃")
        bar = lane.bar(count, left, plan.dropped * scale, dashed=True)
        sketch.add(bar, lane.note(count, words, muted=True))
        count += 1
    if not plan.rows:
        sketch.add(lane.placeholder(0, say(en="no rows", zh="没有数据行")))
    text = caption("batches", plan=plan)
    if plan.short:
        text += say(en=f" and a short one of {plan.short}", zh=f"，外加一个只有 {plan.short} 行、不满的批次")
    if plan.dropped:
        text += say(en=f"; the last {plan.dropped} rows are dropped", zh=f"；最后 {plan.dropped} 行丢弃")
    if plan.gpus > 1:
        text += say(en=f"; each is split over {plan.gpus} GPUs", zh=f"；每个批次切分给 {plan.gpus} 块 GPU")
    return sketch.picture(lane.y(max(count, 1)) + lane.top, text + say(en=".", zh="。"))


def _labels(plan: Batches, batch: Split, number: int, left: float, line: float, scale: float) -> list[Label]:
    """Label the pieces: on one GPU with row numbers of the dataset, on several with numbers of rows."""
    first = number * plan.batch_size
    found = []
    for piece in batch.pieces:
        if plan.gpus > 1:
            words = str(piece.rows)
        else:
            words = f"{first + piece.start}–{first + piece.stop - 1}" if piece.rows > 1 else str(first)
        if piece.rows and piece.rows * scale > len(words) * _SIZE * 0.62 + 4:
            middle = left + (piece.start + piece.rows / 2) * scale
            found.append(Label(middle, line, words, _SIZE, "middle", gpu=piece.gpu))
    return found


def inputs_picture(cut: Cut) -> Picture:
    """Draw a model's inputs as scatter cuts them: a lane for each tensor, dimension 0 across.

    Pieces below one another go to the same replica, and what it returns stands below its piece of the first tensor.
    """
    shown = choose_shown(len(cut.tensors), most=MOST_LANES, head=12, tail=3)
    lane = lanes(len(shown) + bool(cut.returned), 40, 96, 110)
    sketch, title = Sketch(), caption("cut", gpus=cut.gpus)
    sketch.add(Label(lane.left, 22, title, 12, bold=True))

    def describe_rest(rest: range) -> str:
        name, count = cut.tensors[rest[0]][0], len(rest)
        return say(en=f"{name} … : {count} more tensors", zh=f"{name} ……：还有 {count} 个张量")

    for at, number in lane.iterate_shown(sketch, shown, describe_rest):
        name, shape = cut.tensors[number]
        sketch.add(lane.name(at, name), lane.note(at, str(list(shape))))
        x, scale = lane.left, lane.width / max(shape[0], 1)
        for gpu, piece in enumerate(cut_shape(shape, cut.gpus)):
            width, words = piece[0] * scale, f"cuda:{gpu}: {piece[0]}"
            tip = f"{name} · cuda:{gpu} · {list(piece)}"
            sketch.add(lane.bar(at, x, width, gpu, label=f"{name} cuda:{gpu}", tip=tip))
            for text in (words, str(piece[0])):
                if text_width(text, lane.size) + 4 <= width:
                    sketch.add(Label(x + width / 2, lane.line(at), text, lane.size, "middle", gpu=gpu))
                    break
            x += width
    last, x, count = len(shown), lane.left, len(cut.returned)
    pieces = [piece[0] for _, shape in cut.tensors[:1] for piece in cut_shape(shape, cut.gpus)]
    if len(pieces) != count or not any(pieces):
        pieces = [1] * count
    failed = caption("cut", "failed")
    if cut.returned:
        sketch.add(lane.name(last, caption("cut", "returned")))
    for gpu, words in enumerate(cut.returned):
        width = lane.width * pieces[gpu] / sum(pieces)
        text = fit_text(words or failed, width - 8, lane.size)
        tip = f"cuda:{gpu} · {words or failed}"
        if words:
            bar = lane.bar(last, x, width, gpu, tint=_PALE[3], label=f"returned cuda:{gpu}", tip=tip)
            label = Label(x + width / 2, lane.line(last), text, lane.size, "middle", gpu=gpu, tint=_PALE[3])
        else:
            bar = lane.bar(last, x, width, dashed=True, label=f"returned cuda:{gpu}", tip=tip)
            label = Label(x + width / 2, lane.line(last), text, lane.size, "middle")
        sketch.add(bar, label)
        x += width
    told = "; ".join(f"cuda:{gpu} {words or failed}" for gpu, words in enumerate(cut.returned))
    return sketch.picture(lane.y(last + bool(cut.returned)) + 8, f"{title}: {cut!r} {told}".rstrip())


# Kinds differ by tint, in the order of KINDS; one of the palest is also hatched.
_PALE = (0.0, 0.3, 0.5, 0.67, 0.72)
_HATCHED = "gradients"


def memory_picture(memory: Footprints) -> Picture:
    """Draw the bytes on each GPU, stacked by kind, at one scale."""
    shown = choose_shown(len(memory.gpus), most=16, head=12, tail=3)
    names = {kind: caption(kind) for kind in KINDS}
    sketch, too_much = Sketch(), set(memory.over_capacity)
    looks, gpus = list(zip(KINDS, _PALE, strict=True)), [gpu for gpu in shown if isinstance(gpu, int)]
    marks = [(names[kind], _swatch(f"legend {kind}", tint, gpus[:4])) for kind, tint in looks]
    key = legend(12, 23, marks, text_offset=33, gap=14, size=12, right=NARROW - 12)
    sketch.add(*key)
    lane = bar_lanes(len(shown), max(text.y for text in key if isinstance(text, Label)) + 12)
    scale = lane.width / max([found.total for found in memory.gpus] + [memory.capacity or 0, 1])
    limit = -99.0 if memory.capacity is None else lane.left + memory.capacity * scale
    fine = 11.5

    def describe_rest(gpus: range) -> str:
        most = _bytes(max(memory.gpus[gpu].total for gpu in gpus))
        words = caption("memory", "more", where=devices(gpus), gpus=len(gpus), most=most)
        over = len(set(gpus) & too_much)
        return words + (say(en=f", {over} too much", zh=f"，其中 {over} 块超出") if over else "")

    for at, gpu in lane.iterate_shown(sketch, shown, describe_rest):
        found, x = memory.gpus[gpu], float(lane.left)
        sketch.add(lane.name(at, f"cuda:{gpu}", muted=not found.total))
        for kind, tint in looks:
            held = getattr(found, kind)
            if not held:
                continue
            width = held * scale
            tip = f"cuda:{gpu} · {names[kind]} · {bytes_text(held)}"
            bar = lane.bar(at, x, width, gpu, tint=tint, label=f"cuda:{gpu} {kind}", tip=tip)
            sketch.add(replace(bar, hatched=kind == _HATCHED))
            half, middle = text_width(names[kind], fine) / 2, x + width / 2
            crossed = abs(middle - limit) < half + 3
            if 2 * half + 6 <= width and not crossed and kind != _HATCHED:
                sketch.add(Label(middle, lane.line(at), names[kind], fine, "middle", gpu=gpu, tint=tint))
            x += width
        over = gpu in too_much
        note = _bytes(found.total) + say(en=", too much", zh="，超出") * over
        sketch.add(lane.note(at, note, bold=over, muted=not found.total))
    height = lane.y(len(shown)) + 10
    if memory.capacity is not None:
        size = bytes_text(memory.capacity)
        words = say(en=f"capacity {size}", zh=f"显存容量 {size}")
        bars = [at for at, gpu in enumerate(shown) if isinstance(gpu, int)]
        sketch.add(*lane.limit(bars, limit, words, len(shown)))
        height += 14
    home, *others = (found.total for found in memory.gpus)
    text = say(en=f"cuda:0 holds {bytes_text(home)}", zh=f"cuda:0 占用 {bytes_text(home)}")
    if others:
        most = bytes_text(max(others))
        text += say(en=f", every other GPU at most {most}", zh=f"，其余 GPU 最多各占 {most}")
    if too_much:
        text += caption("memory", "over", over=len(too_much), gpus=len(memory.gpus))
    return sketch.picture(height, text + say(en=".", zh="。"), NARROW)


def _swatch(label: str, tint: float, gpus: list[int]) -> list[Box]:
    """Draw the look of a kind on each of some GPUs, side by side."""
    width, hatched = 28 / max(len(gpus), 1), label.endswith(_HATCHED)
    return [
        Box(at * width, 12, width, 14, gpu, label, tint=tint, hatched=hatched) for at, gpu in enumerate(gpus)
    ]


def _bytes(count: int) -> str:
    return bytes_text(count) if count else say(en="nothing", zh="无")


def occupancy_picture(machine: Occupancy) -> Picture:
    """Draw the GPUs of a machine as bars of their memory, filled as far as it is in use, at one scale."""
    count = len(machine.used)
    shown, lane = gpu_lanes(count, 34, _LEFT, 172)
    scale = lane.width / max(machine.capacities, default=1)
    title = say(en=plural(count, "real GPU"), zh=f"{count} 块真 GPU")
    if machine.simulated:
        title = say(en=plural(count, "simulated GPU"), zh=f"{count} 块模拟 GPU")
    sketch = Sketch()
    sketch.add(Label(14, 22, title, 13, bold=True))

    def describe_rest(gpus: range) -> str:
        used, more = bytes_text(sum(machine.used[k] for k in gpus)), plural(len(gpus), "more GPU")
        words = say(en=f"{more}, {used} in use", zh=f"还有 {len(gpus)} 块 GPU，共用去 {used}")
        return devices(gpus) + say(en=": ", zh="：") + words

    for at, gpu in lane.iterate_shown(sketch, shown, describe_rest):
        found = machine.used[gpu]
        used, capacity = bytes_text(found), bytes_text(machine.capacities[gpu])
        tip = f"cuda:{gpu} · {used} / {capacity}"
        sketch.add(
            lane.name(at, f"cuda:{gpu}"),
            lane.bar(at, _LEFT, machine.capacities[gpu] * scale, label=f"cuda:{gpu} memory", tip=tip),
            lane.note(at, say(en=f"{used} of {capacity}", zh=f"{used} / {capacity}"), muted=not found),
        )
        if found:  # at least two pixels, to be seen
            sketch.add(lane.bar(at, _LEFT, max(found * scale, 2.0), gpu, label=f"cuda:{gpu} used", tip=tip))
    used = bytes_text(sum(machine.used))
    description = title + say(en=f", {used} in use.", zh=f"，显存共用去 {used}。")
    return sketch.picture(lane.y(len(shown)) + 10, description)
