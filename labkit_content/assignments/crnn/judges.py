"""The rubric draws weights and images for the student, and computes the right results in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, part, read_tensor, same
from labkit_classroom.sandbox.inside.replicas import compute_by_pieces, draw_factors
from labkit_classroom.verdict import Hint

from . import checks, drivers

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
    yield from checks.wrong_shape("two_gpus", got, 2, draw.numbers)


@part("shape", 1, en="The shape on four GPUs", zh="四块 GPU 上的形状")
def four(ask: Ask, draw: Draw) -> Iterator[Hint]:
    (got,) = ask(drivers.values, names=["four_gpus"])
    yield from checks.wrong_shape("four_gpus", got, 4, draw.numbers)


@part("shape", 2, en="Whose scores: image (1) and column (1)", zh="是谁的分数：图像（1 分）、列（1 分）")
def image_and_column(ask: Ask, draw: Draw) -> Iterator[Hint]:
    (got,) = ask(drivers.values, names=["image_and_column"])
    yield from checks.wrong_place(got, draw.numbers)


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
    yield from checks.wrong_reader(got["output"], right, images, draw.numbers)


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
            yield from checks.differs_from_one_gpu(got["output"], right, gpus)
        else:
            yield from checks.wrong_reader(got["output"], right, images, draw.numbers)


@part("repaired", 1, en="Trained weights still load", zh="训练好的权重仍能加载")
def keys(ask: Ask, draw: Draw) -> Iterator[Hint]:
    images = draw.integer(2, 5)
    got, right = _run_reader(ask, draw, images, 0)
    if not same(got["names"], list(_Reader(1).state_dict())):
        yield checks.hint("keys")
    yield from checks.wrong_reader(got["output"], right, images, draw.numbers)


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
    yield from checks.wrong_strips(got, right, gpus)


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
        yield from checks.wrong_nearest(got, right, gpus)


@part("nearest", 1, en="The table is saved with the model", zh="表随模型一起保存")
def saves_table(ask: Ask, draw: Draw) -> Iterator[Hint]:
    table, _, _ = _features(draw)
    yield from checks.wrong_saved(ask(drivers.nearest_state, table=table), table)


@part(
    "nearest",
    1,
    en="It goes to any device with the model, and is not trained",
    zh="模型到哪个设备它就到哪个设备，而且不参与训练",
)
def moves_table(ask: Ask, draw: Draw) -> Iterator[Hint]:
    table, _, _ = _features(draw)
    got = ask(drivers.nearest_state, table=table)
    yield from checks.wrong_saved(got, table)
    yield from checks.wrong_table(got)


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
    yield from checks.wrong_loss(got["loss"], right)


@part("ctc", 1, en="The same where the images come out uneven", zh="图像数除不尽时也一样")
def odd(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for images, gpus in ((draw.choice((5, 7)), 2), (draw.choice((4, 5)), 3)):
        got, right, _ = _loss(ask, draw, images, gpus)
        yield from checks.wrong_loss(got["loss"], right)


@part("ctc", 1, en="Its gradient reaches the model", zh="梯度能传到模型")
def trains_model(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, _, right = _loss(ask, draw, 2 * draw.integer(2, 4), 2)
    if not same(got["gradient"], right, 1e-3):
        yield checks.hint("gradient")
