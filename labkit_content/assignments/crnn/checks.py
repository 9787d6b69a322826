"""Hints for wrong answers.

Each function yields hints from the most specific to the least; only the first is shown, and none means right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from labkit_classroom.judging import read, read_tensor, same
from labkit_classroom.messages import Words, text_maker
from labkit_classroom.verdict import Hint
from labkit_course.kinds import A_SHAPE, SOME_WHOLE_NUMBERS

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
