"""Hints for wrong answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from labkit_classroom.judging import NoAnswer, read_tensor, same
from labkit_classroom.messages import Words, text_maker
from labkit_classroom.verdict import Hint

hint = text_maker(Hint, __file__)


def wrong_count(count: object, calls: int, gpus: int) -> Iterator[Hint]:
    """Checks a count of ``calls`` calls on ``gpus`` GPUs."""
    if count == calls:
        return
    on = Words(f" on {gpus} GPUs", f"在 {gpus} 块 GPU 上") if gpus else Words("", "")
    if gpus and count == 0:
        yield hint("lost", calls=calls, on=on, count=count)
    if gpus and count == calls * gpus:
        yield hint("each-replica", calls=calls, on=on, count=count)
    yield hint("count", calls=calls, on=on, count=count)


def wrong_restored(restored: object, calls: int) -> Iterator[Hint]:
    if restored != calls:
        yield hint("unsaved", restored=restored, calls=calls)


def wrong_outputs(got: Any, right: list[Tensor], gpus: int, why: str) -> Iterator[Hint]:
    """Yield the hint with the id ``why`` for wrong outputs, or a hint about the type."""
    for at, (output, wanted) in enumerate(zip(got, right, strict=True), 1):
        output = read_tensor(output, "forward")
        if output.shape != wanted.shape:
            yield hint("shape", at=at, gpus=gpus, shape=list(output.shape), wanted=list(wanted.shape))
        if not same(output, wanted, 1e-4):
            yield hint(why)


def wrong_mean(got: Any, right: Tensor, gpus: int) -> Iterator[Hint]:
    mean = read_tensor(got["mean"], "mean")
    if mean.shape == right.shape and not mean.any():
        yield hint("unmoved")
    if not same(mean, right, 1e-4):
        on = Words(f"on {gpus} GPUs ", f"在 {gpus} 块 GPU 上 ") if gpus else Words("", "")
        shown, wanted = format_values(mean), format_values(right)
        yield hint("mean", on=on, shown=shown, wanted=wanted)


def wrong_kept(got: Any, gpus: int) -> Iterator[Hint]:
    if not got["saved"]:
        yield hint("mean-unsaved")
    if gpus and got["home"] != "cuda:0":
        yield hint("mean-moved", place=got["home"])


def wrong_parameters(got: Any, right: int) -> Iterator[Hint]:
    if got["count"] != right:
        yield hint("parameters", count=got["count"], right=right)


def wrong_scale(got: Any) -> Iterator[Hint]:
    if got["trained"]:
        yield hint("trained")
    if got["moved"] not in ("-", "cuda:1"):
        yield hint("left-behind", place=got["moved"])


def wrong_result(got: Any, scores: Tensor, penalty: Tensor) -> Iterator[Hint]:
    """Checks the pair that ``forward`` returns."""
    result = got["result"]
    if not isinstance(result, list) or len(result) != 2:
        raise NoAnswer(hint("kind"))
    first, second = (read_tensor(value, "forward") for value in result)
    if not same(first, scores, 1e-4):
        yield hint("scores")
    if second.dim() != 1 or len(second) != len(penalty):
        yield hint("per-replica", rows=len(penalty), shape=list(second.shape))
    if not same(second, penalty, 1e-4):
        yield hint("penalty")


def wrong_loss(got: Any, right: Tensor) -> Iterator[Hint]:
    value = read_tensor(got["loss"], "loss")
    if not same(value, right, 1e-4):
        told = f"{float(value):.4f}" if value.numel() == 1 else f"{list(value.shape)}"
        yield hint("loss", told=told, right=float(right))


def format_values(value: Tensor) -> str:
    return "[" + ", ".join(f"{number:.3f}" for number in value.flatten()[:3].tolist()) + ", …]"
