"""The rubric draws weights and batches for the student, and computes the right results in another way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, NoAnswer, part, read_tensor, same
from labkit_classroom.messages import Words, text_maker
from labkit_classroom.sandbox.inside.replicas import compute_by_pieces, draw_factors
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


# The parts of the rubric.

WITHOUT = dict.fromkeys(("counter", "cache", "memory", "running", "lists", "lost"), ("labkit.engine",))


def numbers(draw: Draw | None) -> dict[str, int | str]:
    """Draws how many numbers a row has, and the per cent by which things move."""
    if draw is None:
        return {"size": 4, "percent": 10}
    return {"size": draw.integer(3, 9), "percent": draw.choice((5, 10, 20, 25, 40))}


def _state(draw: Draw, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Weights by the way to each, ``fc_weight`` standing for ``fc.weight``."""
    return {name.replace("_", "."): draw.tensor(*shape) / 8 for name, shape in shapes.items()}


def _size(draw: Draw) -> int:
    return int(draw.numbers["size"])


def _share(draw: Draw) -> float:
    return int(draw.numbers["percent"]) / 100


def _apply_linear(state: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.linear(x, state["fc.weight"], state["fc.bias"])


def _run_counter(ask: Ask, draw: Draw, gpus: int) -> tuple[Any, int, Tensor]:
    """Runs some calls; gives what came, how many there were, and the right last output."""
    size, calls = _size(draw), draw.integer(2, 5)
    state = _state(draw, fc_weight=(2, size), fc_bias=(2,))
    batches = [draw.tensor(draw.integer(3, 8), size) for _ in range(calls)]
    factors = draw_factors(draw, gpus)
    right = compute_by_pieces(_apply_linear, state, factors, batches[-1])
    return ask(drivers.counter, state=state, batches=batches, gpus=gpus, factors=factors), calls, right


@part(
    "counter",
    2,
    en="On two and three GPUs it counts one for each call",
    zh="在两块、三块 GPU 上，每次调用也只算一次",
)
def counts_calls(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus in (2, 3):
        got, calls, right = _run_counter(ask, draw, gpus)
        yield from wrong_count(got["count"], calls, gpus)
        yield from wrong_outputs([got["output"]], [right], gpus, "unregistered")


@part(
    "counter",
    2,
    en="The count is saved with the model; the output is as before",
    zh="计数随模型一起保存；计算结果和原来一样",
)
def count_saved(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, calls, right = _run_counter(ask, draw, 0)
    yield from wrong_count(got["count"], calls, 0)
    yield from wrong_restored(got["restored"], calls)
    yield from wrong_outputs([got["output"]], [right], 1, "unregistered")


def _positions(ask: Ask, draw: Draw, steps: list[int], gpus: Any, why: str) -> Iterator[Hint]:
    size = _size(draw)
    state = _state(draw, fc_weight=(3, size), fc_bias=(3,))
    batches = [draw.tensor(draw.integer(4, 7), count, size) for count in steps]
    counts = gpus if isinstance(gpus, list) else [gpus] * len(batches)
    factors = draw_factors(draw, max(counts))
    right = [
        compute_by_pieces(
            _apply_linear,
            state,
            factors if count > 1 else (),
            x + torch.arange(1, x.shape[1] + 1).sin()[:, None],
        )
        for x, count in zip(batches, counts, strict=True)
    ]
    got = ask(drivers.outputs, name="Positions", state=state, batches=batches, gpus=gpus, factors=factors)
    yield from wrong_outputs(got, right, gpus if isinstance(gpus, int) else 0, why)


@part("cache", 2, en="On two and three GPUs the output of one", zh="在两块、三块 GPU 上，输出和一块上的一样")
def cache_gpus(ask: Ask, draw: Draw) -> Iterator[Hint]:
    steps = draw.integer(3, 6)
    for gpus in (2, 3):
        yield from _positions(ask, draw, [steps] * 2, gpus, "positions")


@part(
    "cache",
    1,
    en="Right for every number of steps, whatever came before",
    zh="不管之前是多长，步数是多少都对",
)
def cache_steps(ask: Ask, draw: Draw) -> Iterator[Hint]:
    steps = [1, *draw.sample(range(2, 9), 2)]  # one position fits every length, and is wrong for it
    yield from _positions(ask, draw, steps, 0, "stale")


@part("cache", 1, en="Right after the model has moved to another device", zh="模型换了设备之后也对")
def cache_moved(ask: Ask, draw: Draw) -> Iterator[Hint]:
    steps = draw.integer(2, 6)
    yield from _positions(ask, draw, [steps] * 3, [2, 1, 2], "positions")


def _run_memory(ask: Ask, draw: Draw, gpus: int) -> tuple[Any, list[Tensor]]:
    size, rows = _size(draw), draw.integer(4, 8)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    shapes = ((15, size), (15, 5), (15,), (15,))
    state = {f"cell.{name}": draw.tensor(*shape) / 4 for name, shape in zip(names, shapes, strict=True)}
    batches, factors = [draw.tensor(rows, size) / 2 for _ in range(3)], draw_factors(draw, gpus)
    hidden, right = torch.zeros(rows, 5), []

    def compute(weights: dict[str, Tensor], x: Tensor, hidden: Tensor) -> Tensor:
        return torch.gru_cell(x, hidden, *weights.values())

    for batch in batches:
        hidden = compute_by_pieces(compute, state, factors, batch, hidden)
        right.append(hidden)
    return ask(drivers.memory, state=state, batches=batches, gpus=gpus, factors=factors), right


@part("memory", 1, en="Alone it goes on from call to call", zh="单独运行时，一次次接着往下算")
def remembers(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, right = _run_memory(ask, draw, 0)
    yield from wrong_outputs(got["states"], right, 0, "states")


@part(
    "memory",
    2,
    en="On two and three GPUs each row has its own state",
    zh="在两块、三块 GPU 上，每一行用的都是自己的状态",
)
def remembers_rows(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus in (2, 3):
        got, right = _run_memory(ask, draw, gpus)
        yield from wrong_outputs(got["states"], right, gpus, "states")


@part("memory", 1, en="Training does not run back into earlier calls", zh="训练时梯度不会传回以前的调用")
def cut_off(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, right = _run_memory(ask, draw, 2)
    yield from wrong_outputs(got["states"], right, 2, "states")
    if got["runs_back"] is not False:
        yield hint("runs-back")


def _run_running(ask: Ask, draw: Draw, gpus: int, rows: int) -> tuple[Any, Tensor, list[Tensor]]:
    size, share = _size(draw), _share(draw)
    state = _state(draw, fc_weight=(2, size), fc_bias=(2,))
    batches = [draw.tensor(rows, size) + 1 for _ in range(3)]
    mean, right, factors = torch.zeros(size), [], draw_factors(draw, gpus)
    for batch in batches:
        mean = mean + share * (batch.mean(0) - mean)
        right.append(compute_by_pieces(_apply_linear, state, factors, batch - mean))
    return ask(drivers.running, state=state, batches=batches, gpus=gpus, factors=factors), mean, right


def _run_cases(ask: Ask, draw: Draw) -> Iterator[tuple[int, Any, Tensor, list[Tensor]]]:
    for gpus, rows in ((2, 2 * draw.integer(2, 4)), (3, draw.choice((5, 7, 8))), (0, draw.integer(3, 8))):
        yield gpus, *_run_running(ask, draw, gpus, rows)


@part(
    "running",
    2,
    en="`mean` follows the mean of the whole batch, on one device and on several",
    zh="不管几个设备，`mean` 都跟踪整个批次的均值",
)
def follows(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus, got, mean, _ in _run_cases(ask, draw):
        yield from wrong_mean(got, mean, gpus)


@part(
    "running",
    2,
    en="`forward` gives on several GPUs what it gives on one",
    zh="`forward` 在几块 GPU 上的结果和一块上的一样",
)
def reads_only(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus, got, _, right in islice(_run_cases(ask, draw), 2):
        yield from wrong_outputs(got["outputs"], right, gpus, "reads")


@part(
    "running",
    1,
    en="`mean` is saved, and stays with the model",
    zh="`mean` 会保存，也一直和模型在同一个设备上",
)
def saves_mean(ask: Ask, draw: Draw) -> Iterator[Hint]:
    gpus, got, mean, _ = next(_run_cases(ask, draw))
    yield from wrong_mean(got, mean, gpus)
    yield from wrong_kept(got, gpus)


def _run_lists(ask: Ask, draw: Draw, gpus: int) -> tuple[Any, Tensor]:
    size = _size(draw)
    shapes = {f"layers.{at}": (size, size) for at in range(3)} | {
        f"heads.{name}": (1, size) for name in ("mean", "peak")
    }
    state: dict[str, Tensor] = {}
    for name, (rows, columns) in shapes.items():
        state |= {f"{name}.weight": draw.tensor(rows, columns) / 4, f"{name}.bias": draw.tensor(rows) / 4}
    batch, factors = draw.tensor(draw.integer(4, 7), size), draw_factors(draw, gpus)

    def compute(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        def layer(name: str, x: Tensor) -> Tensor:
            return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

        for at in range(3):
            x = layer(f"layers.{at}", x).tanh() * 0.5
        return torch.cat([layer("heads.mean", x), layer("heads.peak", x)], 1)

    right = compute_by_pieces(compute, state, factors, batch)
    return ask(drivers.lists, state=state, batch=batch, gpus=gpus, factors=factors), right


@part(
    "lists",
    1,
    en="The optimizer finds every layer, and nothing else",
    zh="优化器能找到每一层，而且只找到这些层",
)
def finds_layers(ask: Ask, draw: Draw) -> Iterator[Hint]:
    size = _size(draw)
    got, right = _run_lists(ask, draw, 0)
    yield from wrong_parameters(got, 3 * size * (size + 1) + 2 * (size + 1))
    yield from wrong_outputs([got["output"]], [right], 1, "unregistered")


@part("lists", 2, en="On two and three GPUs the output of one", zh="在两块、三块 GPU 上，输出和一块上的一样")
def branches(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus in (2, 3):
        got, right = _run_lists(ask, draw, gpus)
        yield from wrong_outputs([got["output"]], [right], gpus, "unregistered")


@part("lists", 1, en="`scale` goes along, and is not trained", zh="`scale` 跟着模型走，而且不参与训练")
def constant_scale(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, _ = _run_lists(ask, draw, 2)
    yield from wrong_scale(got)


def _run_lost(ask: Ask, draw: Draw, gpus: int, rows: int) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
    """Gives what came, and the right scores and penalties, loss and gradient of the first layer."""
    size = _size(draw)
    state = _state(draw, first_weight=(6, size), first_bias=(6,), second_weight=(3, 6), second_bias=(3,))
    x, y = draw.tensor(rows, size), torch.tensor([draw.integer(0, 2) for _ in range(rows)])
    weight, factors = state["first.weight"].clone().requires_grad_(), draw_factors(draw, gpus)

    def compute(weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.linear(x, weights["first.weight"], weights["first.bias"]).relu()
        return F.linear(hidden, weights["second.weight"], weights["second.bias"]), hidden.abs().mean(1)

    scores, penalty = compute_by_pieces(compute, state | {"first.weight": weight}, factors, x)
    loss = F.cross_entropy(scores, y) + _share(draw) * penalty.mean()
    loss.backward()
    assert weight.grad is not None
    got = ask(drivers.loss_and_gradient, state=state, x=x, y=y, gpus=gpus, factors=factors)
    return got, scores.detach(), penalty.detach(), loss.detach(), weight.grad


@part("lost", 1, en="`forward` returns a penalty for each row", zh="`forward` 为每一行返回一个惩罚值")
def per_row(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, scores, penalty, _, _ = _run_lost(ask, draw, 2, 2 * draw.integer(2, 4))
    yield from wrong_result(got, scores, penalty)


@part("lost", 1, en="The loss, alone and on even pieces", zh="单独运行和分块大小相同时，损失正确")
def loss_even(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus in (2, 0):
        got, _, _, loss, _ = _run_lost(ask, draw, gpus, 2 * draw.integer(2, 4))
        yield from wrong_loss(got, loss)


@part("lost", 1, en="The loss on uneven pieces", zh="分块大小不一时，损失正确")
def loss_uneven(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for gpus, rows in ((2, draw.choice((5, 7))), (3, draw.choice((5, 7, 8)))):
        got, _, _, loss, _ = _run_lost(ask, draw, gpus, rows)
        yield from wrong_loss(got, loss)


@part("lost", 1, en="The penalty is trained too", zh="惩罚项也参与训练")
def penalty_trained(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, _, _, loss, gradient = _run_lost(ask, draw, 2, 2 * draw.integer(2, 4))
    yield from wrong_loss(got, loss)
    if not same(got["gradient"], gradient, 1e-4):
        yield hint("gradient")
