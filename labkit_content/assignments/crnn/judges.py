"""The rubric draws weights and images for the student, and computes the right results in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, part, read, read_tensor, same
from labkit_classroom.messages import Words, text_maker
from labkit_classroom.sandbox.inside.replicas import compute_by_pieces, draw_factors
from labkit_classroom.verdict import Hint
from labkit_course.kinds import A_SHAPE, SOME_WHOLE_NUMBERS

from . import drivers

hint = text_maker(Hint, __file__)

Numbers = Mapping[str, Any]


def wrong_shape(name: str, got: object, gpus: int, numbers: Numbers) -> Iterator[Hint]:
    """Check the shape of an output on ``gpus`` GPUs."""
    images, columns, characters = (numbers[key] for key in ("images", "columns", "characters"))
    shape = list(read(A_SHAPE, got, en=f"`{name}`", zh=f"`{name}` "))
    right = [gpus * columns, images // gpus, characters]
    if shape == right:
        return
    if shape == [columns, images, characters]:
        yield hint("one-gpu", name=name)
    if shape == [columns, images // gpus, characters]:
        yield hint("replica", name=name)
    if shape == [gpus * columns, images, characters]:
        yield hint("not-cut", name=name)
    if shape[0] == images:
        yield hint("batch-first", name=name)
    yield hint("shape", name=name)


def wrong_place(got: object, numbers: Numbers) -> Iterator[Hint]:
    """Checks the image and the column of a place in the output."""
    images, columns, row, place = (numbers[key] for key in ("images", "columns", "row", "place"))
    pair = read(SOME_WHOLE_NUMBERS, got, en="`image_and_column`", zh="`image_and_column` ")
    # ``row`` is in the second replica's part, whose images begin at images // 2 and whose columns begin anew.
    image, column = images // 2 + place, row - columns
    if pair == (image, column):
        return
    if pair == (column, image):
        yield replace(hint("swapped"), score=0.5)
    if pair == (place, row):
        yield hint("as-one", columns=columns)
    if len(pair) == 2 and pair[1] == column:
        yield replace(hint("image", columns=columns, begin=images // 2), score=0.5)
    if len(pair) == 2 and pair[0] == image:
        yield replace(hint("column"), score=0.5)
    yield hint("place")


def wrong_reader(got: object, right: Tensor, images: int, numbers: Numbers) -> Iterator[Hint]:
    """Checks the reader's output on one device; ``right`` is [images, columns, ...]."""
    wanted = [images, numbers["columns"], numbers["characters"]]
    output = read_tensor(got, "forward")
    shape = list(output.shape)
    if shape == [wanted[1], wanted[0], wanted[2]]:
        yield hint("columns-first", images=images, shape=shape)
    if shape != wanted:
        yield hint("reader-shape", images=images, shape=shape, wanted=wanted)
    if same(output, right, 1e-3):
        return
    if same(output.flatten(), right.transpose(0, 1).flatten(), 1e-3):
        yield hint("reshape")
    yield hint("along-images")


def differs_from_one_gpu(got: object, right: Tensor, gpus: int) -> Iterator[Hint]:
    """Check the output on several GPUs when the output on one is right."""
    output = read_tensor(got, "forward")
    if not same(output, right, 1e-3):
        yield hint("several", wanted=len(right), gpus=gpus, shape=list(output.shape))


def wrong_strips(got: Any, right: list[tuple[Tensor, Tensor]], gpus: int) -> Iterator[Hint]:
    """Checks scores and hidden states, strip after strip."""
    on = Words(f"on {gpus} GPUs", f"在 {gpus} 块 GPU 上") if gpus else Words("on one device", "在一个设备上")
    for at, ((scores, hidden), (right_scores, right_hidden)) in enumerate(zip(got, right, strict=True)):
        scores, hidden = read_tensor(scores, "forward"), read_tensor(hidden, "forward")
        layers_first = right_hidden.transpose(0, 1).shape
        if hidden.shape == layers_first and hidden.shape != right_hidden.shape:
            yield hint("layers-first", on=on, shape=list(hidden.shape))
        if hidden.shape != right_hidden.shape:
            yield hint("hidden-shape", on=on, shape=list(hidden.shape), wanted=list(right_hidden.shape))
        if not same(hidden, right_hidden, 1e-4) and same(
            hidden.flatten().sort().values, right_hidden.flatten().sort().values, 1e-4
        ):
            yield hint("hidden-reshape")
        if not same(scores, right_scores, 1e-4) or not same(hidden, right_hidden, 1e-4):
            if at == 0:
                yield hint("first-strip", on=on)
            yield hint("forgotten", on=on, next=at + 1, at=at)


def wrong_nearest(got: object, right: Tensor, gpus: int) -> Iterator[Hint]:
    found = read_tensor(got, "forward")
    if same(found, right):
        return
    got_rows, right_rows = found.flatten().tolist()[:8], right.tolist()[:8]
    if gpus:
        yield hint("nearest", gpus=gpus, got_rows=got_rows, right_rows=right_rows)
    yield hint("nearest", "one-device", got_rows=got_rows, right_rows=right_rows)


def wrong_saved(got: Any, table: Tensor) -> Iterator[Hint]:
    """Checks that the table is saved with the model."""
    if not any(same(value, table) for value in got["saved"]):
        yield hint("unsaved")


def wrong_table(got: Any) -> Iterator[Hint]:
    """Checks that the table goes along, and is not trained."""
    if got["parameters"]:
        yield hint("trained")
    if set(got["places"]) != {"cuda:1"}:
        yield hint("left-behind")


def wrong_loss(got: object, right: Tensor) -> Iterator[Hint]:
    loss = read_tensor(got, "ctc")
    if loss.dim():
        yield hint("no-mean", shape=list(loss.shape))
    if not same(loss, right, 1e-3):
        yield hint("loss", loss=float(loss), right=float(right))


# The parts of the rubric.

# Question -> what does not exist in the process that runs the answer.
WITHOUT = dict.fromkeys(("repaired", "stream", "nearest", "ctc"), ("labkit.engine",))


def numbers(draw: Draw | None) -> dict[str, int | str]:
    """Draw the model's sizes, and a place in its output: ``row`` of the second replica's part, and ``place``.

    Without a draw, the sizes are those of lesson 06.
    """
    images, columns, characters, row, place = 32, 65, 5530, 70, 3
    if draw is not None:
        images, columns = draw.choice((24, 32, 40, 48)), draw.integer(40, 80)
        characters, row = draw.integer(1000, 6000), columns + draw.integer(3, columns - 3)
        place = draw.integer(2, images // 2 - 1)
    width = 4 * columns
    return {
        "images": images, "columns": columns, "width": width, "characters": characters, "row": row, "place": place
    }  # fmt: skip


@part("shape", 1, en="The shape on two GPUs", zh="两块 GPU 上的形状")
def two(ask: Ask, draw: Draw) -> Iterator[Hint]:
    (got,) = ask(drivers.values, names=["two_gpus"])
    yield from wrong_shape("two_gpus", got, 2, draw.numbers)


@part("shape", 1, en="The shape on four GPUs", zh="四块 GPU 上的形状")
def four(ask: Ask, draw: Draw) -> Iterator[Hint]:
    (got,) = ask(drivers.values, names=["four_gpus"])
    yield from wrong_shape("four_gpus", got, 4, draw.numbers)


@part("shape", 2, en="Whose scores: image (1) and column (1)", zh="是谁的分数：图像（1 分）、列（1 分）")
def image_and_column(ask: Ask, draw: Draw) -> Iterator[Hint]:
    (got,) = ask(drivers.values, names=["image_and_column"])
    yield from wrong_place(got, draw.numbers)


class _Reader(nn.Module):
    """A reference solution: the colleague's model with the batch first in its output."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.cnn = nn.Conv2d(1, 24, (32, 4), stride=(32, 4))
        self.rnn = nn.LSTM(24, 8, batch_first=True)
        self.scores = nn.Linear(8, characters)

    def forward(self, images: Tensor) -> Tensor:
        output, _ = self.rnn(self.cnn(images).squeeze(2).transpose(1, 2))
        scores: Tensor = self.scores(output)
        return scores


def _weights(model: nn.Module, draw: Draw) -> dict[str, Tensor]:
    """Fill the model with drawn weights, small enough for RNNs; gives its state."""
    state = {name: draw.tensor(*value.shape) / 8 for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return state


def _as_function(model: nn.Module) -> Callable[..., Any]:
    """Return ``f(weights, *inputs)``, which runs ``model`` with those weights."""
    return lambda weights, *inputs: functional_call(model, weights, inputs)


def _run_reader(ask: Ask, draw: Draw, images: int, gpus: int) -> tuple[Any, Tensor]:
    """Return the student's output and the right one; ``gpus`` 0 is one device, without DataParallel."""
    model = _Reader(int(draw.numbers["characters"]))
    state = _weights(model, draw)
    batch = draw.tensor(images, 1, 32, int(draw.numbers["width"])) / 4
    factors = draw_factors(draw, gpus)
    with torch.no_grad():
        right = compute_by_pieces(_as_function(model), state, factors, batch)
    return ask(drivers.reader, state=state, images=batch, gpus=gpus, factors=factors), right


@part(
    "repaired",
    2,
    en="On one device: each image's own scores, the batch first",
    zh="在一个设备上：每幅图像自己的分数，批次在最前",
)
def alone(ask: Ask, draw: Draw) -> Iterator[Hint]:
    images = draw.integer(2, 5)
    got, right = _run_reader(ask, draw, images, 0)
    yield from wrong_reader(got["output"], right, images, draw.numbers)


@part(
    "repaired",
    2,
    en="On two and three GPUs the same, also where the images come out uneven",
    zh="两块、三块 GPU 上也一样，图像数除不尽时也一样",
)
def several(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for images, gpus in ((draw.choice((4, 6)), 2), (draw.choice((4, 5, 7)), 3)):
        got, right = _run_reader(ask, draw, images, gpus)
        if list(read_tensor(got["output"], "forward").shape) == list(right.shape):
            yield from differs_from_one_gpu(got["output"], right, gpus)
        else:
            yield from wrong_reader(got["output"], right, images, draw.numbers)


@part("repaired", 1, en="Trained weights still load", zh="训练好的权重仍能加载")
def keys(ask: Ask, draw: Draw) -> Iterator[Hint]:
    images = draw.integer(2, 5)
    got, right = _run_reader(ask, draw, images, 0)
    if not same(got["names"], list(_Reader(1).state_dict())):
        yield hint("keys")
    yield from wrong_reader(got["output"], right, images, draw.numbers)


class _Stream(nn.Module):
    """The reader of strips, whose hidden state has the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, num_layers=2, batch_first=True)
        self.scores = nn.Linear(6, 5)

    def forward(self, strip: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        output, hidden = self.rnn(strip, hidden.transpose(0, 1).contiguous())
        return self.scores(output), hidden.transpose(0, 1)


def _strips(ask: Ask, draw: Draw, rows: int, gpus: int, *, start: bool) -> Iterator[Hint]:
    model = _Stream()
    state = _weights(model, draw)
    strips = [draw.tensor(rows, draw.integer(2, 5), 4) / 4 for _ in range(3)]
    first = draw.tensor(rows, 2, 6) / 4 if start else None
    hidden, right, factors = torch.zeros(rows, 2, 6) if first is None else first, [], draw_factors(draw, gpus)
    with torch.no_grad():
        for strip in strips:
            right.append(compute_by_pieces(_as_function(model), state, factors, strip, hidden))
            hidden = right[-1][1]
    got = ask(drivers.stream, state=state, strips=strips, gpus=gpus, start=first, factors=factors)
    yield from wrong_strips(got, right, gpus)


@part(
    "stream",
    2,
    en="On one device: hidden state in and out with the batch first",
    zh="在一个设备上：隐藏状态进出都是批次在最前",
)
def carries_state(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from _strips(ask, draw, draw.integer(3, 6), 0, start=True)


@part("stream", 2, en="Strip after strip on two and three GPUs", zh="在两块、三块 GPU 上一段接一段")
def strips(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from _strips(ask, draw, draw.integer(3, 6), 2, start=True)
    yield from _strips(ask, draw, draw.integer(7, 8), 3, start=True)


@part("stream", 1, en="`None` at the beginning", zh="开头可以传 `None`")
def nothing(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from _strips(ask, draw, draw.integer(3, 6), 2, start=False)


def _features(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a table, features near some of its rows, and the numbers of these rows."""
    rows, count = draw.integer(6, 12), draw.integer(7, 12)
    table = torch.eye(rows) * 8 + draw.tensor(rows, rows) / 16
    right = torch.tensor([draw.integer(0, rows - 1) for _ in range(count)])
    return table, table[right] + draw.tensor(count, rows) / 32, right


@part(
    "nearest",
    2,
    en="On two and three GPUs the right rows of the whole table",
    zh="在两块、三块 GPU 上找到的都是整张表里的行号",
)
def table_rows(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus in (0, 2, 3):
        table, features, right = _features(draw)
        got = ask(drivers.nearest, table=table, features=features, gpus=gpus)
        yield from wrong_nearest(got, right, gpus)


@part("nearest", 1, en="The table is saved with the model", zh="表随模型一起保存")
def saves_table(ask: Ask, draw: Draw) -> Iterator[Hint]:
    table, _, _ = _features(draw)
    yield from wrong_saved(ask(drivers.nearest_state, table=table), table)


@part(
    "nearest",
    1,
    en="It goes to any device with the model, and is not trained",
    zh="模型到哪个设备它就到哪个设备，而且不参与训练",
)
def moves_table(ask: Ask, draw: Draw) -> Iterator[Hint]:
    table, _, _ = _features(draw)
    got = ask(drivers.nearest_state, table=table)
    yield from wrong_saved(got, table)
    yield from wrong_table(got)


def _loss(ask: Ask, draw: Draw, images: int, gpus: int) -> tuple[Any, Tensor, Tensor]:
    columns, characters = draw.integer(6, 9), draw.integer(4, 7)
    weight, batch = draw.tensor(5, characters) / 4, draw.tensor(images, columns, 5) / 4
    longest = columns // 2
    lengths = torch.tensor([draw.integer(1, longest) for _ in range(images)])
    targets = torch.tensor([[draw.integer(1, characters - 1) for _ in range(longest)] for _ in range(images)])
    leaf = weight.clone().requires_grad_()
    scores = (batch @ leaf).log_softmax(-1).transpose(0, 1)
    right = F.ctc_loss(scores, targets, torch.full((images,), columns), lengths)
    right.backward()
    assert leaf.grad is not None
    got = ask(drivers.ctc, weight=weight, images=batch, targets=targets, lengths=lengths, gpus=gpus)
    return got, right.detach(), leaf.grad


@part("ctc", 2, en="The loss of the whole batch", zh="整个批次的损失")
def loss(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, right, _ = _loss(ask, draw, 2 * draw.integer(2, 4), 2)
    yield from wrong_loss(got["loss"], right)


@part("ctc", 1, en="The same where the images come out uneven", zh="图像数除不尽时也一样")
def odd(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for images, gpus in ((draw.choice((5, 7)), 2), (draw.choice((4, 5)), 3)):
        got, right, _ = _loss(ask, draw, images, gpus)
        yield from wrong_loss(got["loss"], right)


@part("ctc", 1, en="Its gradient reaches the model", zh="梯度能传到模型")
def trains_model(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, _, right = _loss(ask, draw, 2 * draw.integer(2, 4), 2)
    if not same(got["gradient"], right, 1e-3):
        yield hint("gradient")
