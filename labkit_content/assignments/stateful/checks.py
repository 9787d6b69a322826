"""Hints for wrong answers, and the student's ``check(...)``, which tries open examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit_classroom.checking import Student, visible
from labkit_classroom.judging import NoAnswer, read_tensor, same
from labkit_classroom.messages import Words, text_maker
from labkit_classroom.verdict import Hint

from . import drivers

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


def _example(model: nn.Module) -> dict[str, Tensor]:
    """Weights for an open example."""
    torch.manual_seed(0)
    drawn = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    return {name: value for name, value in drawn.items() if model.get_parameter(name).requires_grad}


def _batch(student: Student, *shape: int) -> Tensor:
    return torch.arange(1.0 + torch.Size(shape).numel())[1:].sin().reshape(shape)


@visible("counter", "Counted")
def _counter(student: Student) -> Iterator[Hint]:
    batch = _batch(student, 4, student["numbers"]["size"])
    for gpus in (0, 2):
        got = drivers.counter(student, {}, [batch] * 3, gpus)
        yield from wrong_count(got["count"], 3, gpus)
    yield from wrong_restored(got["restored"], 3)


@visible("cache", "Positions")
def _cache(student: Student) -> Iterator[Hint]:
    size = student["numbers"]["size"]
    state = _example(student["Positions"]())
    batch, longer = _batch(student, 4, 3, size), _batch(student, 4, 5, size)
    one = drivers.outputs(student, "Positions", state, [longer], 0)
    yield from wrong_outputs(
        drivers.outputs(student, "Positions", state, [batch, longer], 0)[1:], one, 0, "stale"
    )
    yield from wrong_outputs(drivers.outputs(student, "Positions", state, [longer], 2), one, 2, "positions")


@visible("memory", "Memory")
def _memory(student: Student) -> Iterator[Hint]:
    state = _example(student["Memory"]())
    batch = _batch(student, 4, student["numbers"]["size"])
    one = drivers.memory(student, state, [batch, batch * 2], 0)
    two = drivers.memory(student, state, [batch, batch * 2], 2)
    yield from wrong_outputs(two["states"], one["states"], 2, "states")


@visible("running", "Standard")
def _running(student: Student) -> Iterator[Hint]:
    size, percent = student["numbers"]["size"], student["numbers"]["percent"]
    state = _example(student["Standard"]())
    batch = _batch(student, 5, size)
    for gpus in (0, 2):
        got = drivers.running(student, state, [batch], gpus)
        yield from wrong_mean(got, batch.mean(0) * percent / 100, gpus)


@visible("lists", "Branches")
def _lists(student: Student) -> Iterator[Hint]:
    size = student["numbers"]["size"]
    batch = _batch(student, 4, size)
    one, two = (drivers.lists(student, {}, batch, gpus) for gpus in (0, 2))
    yield from wrong_parameters(one, 3 * size * (size + 1) + 2 * (size + 1))
    yield from wrong_scale(two)


@visible(
    "lost", "Sparse", "loss", en="the class `Sparse` and the function `loss`", zh="类 `Sparse` 和函数 `loss`"
)
def _run_lost(student: Student) -> Iterator[Hint]:
    state = _example(student["Sparse"]())
    x, y = _batch(student, 5, student["numbers"]["size"]), torch.tensor([0, 1, 2, 0, 1])
    one = drivers.loss_and_gradient(student, state, x, y, 0)
    if isinstance(one["result"], list) and len(one["result"]) == 2:
        scores, penalty = (read_tensor(value, "forward") for value in one["result"])
        if penalty.dim() == 0:
            penalty = penalty.repeat(len(x))
        two = drivers.loss_and_gradient(student, state, x, y, 2)
        yield from wrong_result(two, scores, penalty)
        yield from wrong_loss(two, read_tensor(one["loss"], "loss"))
    else:
        yield from wrong_result(one, x, x)
