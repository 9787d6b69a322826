"""Hints for wrong answers, and the student's ``check(...)``, which tries open examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit_classroom.checking import Student, visible
from labkit_classroom.judging import NoAnswer, same
from labkit_classroom.verdict import Hint

from . import drivers


def wrong_count(count: object, calls: int, gpus: int) -> Iterator[Hint]:
    """Checks a count of ``calls`` calls on ``gpus`` GPUs."""
    if count == calls:
        return
    case_en = (
        f"after {calls} calls on {gpus} GPUs `calls` is {count}"
        if gpus
        else f"after {calls} calls `calls` is {count}"
    )
    case_zh = (
        f"在 {gpus} 块 GPU 上调用 {calls} 次之后，`calls` 是 {count}"
        if gpus
        else f"调用 {calls} 次之后，`calls` 是 {count}"
    )
    if gpus and count == 0:
        yield Hint(
            "lost",
            f"{case_en}: `forward` writes to a replica, which is thrown away. Only replica 0 shares something with the "
            "model: its buffers, if they are changed in place",
            f"{case_zh}：`forward` 写在副本上，副本用完就扔。只有 0 号副本和模型共用一样东西：缓冲区，而且要原地修改",
        )
    if gpus and count == calls * gpus:
        yield Hint(
            "each-replica",
            f"{case_en}: every replica counts; one for each call is wanted",
            f"{case_zh}：每个副本都数了一次；要的是每次调用算一次",
        )
    yield Hint("count", case_en, case_zh)


def wrong_restored(restored: object, calls: int) -> Iterator[Hint]:
    if restored != calls:
        yield Hint(
            "unsaved",
            f"a model that loads the state begins at {restored} instead of {calls}: `state_dict()` has parameters and "
            "buffers only",
            f"加载状态之后从 {restored} 开始数，应该是 {calls}：`state_dict()` 里只有参数和缓冲区",
        )


def wrong_outputs(got: Any, right: list[Tensor], gpus: int, why: Hint) -> Iterator[Hint]:
    """Yield the hint ``why`` for wrong outputs, or a hint about the type."""
    for at, (output, wanted) in enumerate(zip(got, right, strict=True), 1):
        output = tensor(output)
        if output.shape != wanted.shape:
            yield Hint(
                "shape",
                f"call {at} on {gpus} GPUs gives {list(output.shape)}, {list(wanted.shape)} is wanted",
                f"在 {gpus} 块 GPU 上第 {at} 次调用得到 {list(output.shape)}，应该是 {list(wanted.shape)}",
            )
        if not same(output, wanted, 1e-4):
            yield why


# fmt: off
POSITIONS = Hint(
    "positions",
    "the output is not what one device gives: a table of another call, another device or another replica?",
    "输出和一个设备上的不一样：是不是用了别的调用、别的设备或别的副本留下的表？",
)
STALE = Hint(
    "stale",
    "with another number of steps the output is wrong: the table of an earlier call is used again",
    "步数变了，输出就不对：又用了之前那次调用的表",
)
STATES = Hint(
    "states",
    "the hidden state does not go on from call to call, or a row gets another row's state",
    "隐藏状态没有一次次接下去，或者某一行拿到了别的行的状态",
)
RUNS_BACK = Hint(
    "runs-back",
    "the gradient of the last call runs back into the first: the hidden state that comes in is to be cut from its graph "
    "(`detach`)",
    "最后一次调用的梯度一直传回了第一次：进来的隐藏状态要从计算图上断开（`detach`）",
)
READS = Hint(
    "reads",
    "the output is not that of the model with the mean of `observe`: does `forward` still change `mean`, or subtract "
    "another one?",
    "输出不是用 `observe` 得到的均值算出来的：`forward` 是不是还在改 `mean`，或者减去了别的值？",
)
REGISTERED = Hint(
    "unregistered",
    "on several GPUs the output is another than on one",
    "几块 GPU 上的输出和一块上的不一样",
)
# fmt: on


def wrong_mean(got: Any, right: Tensor, gpus: int) -> Iterator[Hint]:
    mean = tensor(got["mean"])
    if mean.shape == right.shape and not mean.any():
        yield Hint(
            "unmoved",
            "`mean` is still zero: `observe` does not change the model's own buffer",
            "`mean` 还是零：`observe` 没有改动模型自己的缓冲区",
        )
    if not same(mean, right, 1e-4):
        yield Hint(
            "mean",
            f"on {gpus} GPUs `mean` is {format_values(mean)}; with the means of the whole batches it would be {format_values(right)}"
            if gpus
            else f"`mean` is {format_values(mean)}; with the means of the whole batches it would be {format_values(right)}",
            f"在 {gpus} 块 GPU 上 `mean` 是 {format_values(mean)}；按整个批次的均值应该是 {format_values(right)}"
            if gpus
            else f"`mean` 是 {format_values(mean)}；按整个批次的均值应该是 {format_values(right)}",
        )


def wrong_kept(got: Any, gpus: int) -> Iterator[Hint]:
    if not got["saved"]:
        yield Hint("mean-unsaved", "`mean` is not in `state_dict()`", "`state_dict()` 里没有 `mean`")
    if gpus and got["home"] != "cuda:0":
        yield Hint(
            "mean-moved",
            f"afterwards `mean` is on {got['home']}, the model on cuda:0",
            f"之后 `mean` 在 {got['home']} 上，而模型在 cuda:0 上",
        )


def wrong_parameters(got: Any, right: int) -> Iterator[Hint]:
    if got["count"] != right:
        yield Hint(
            "parameters",
            f"`parameters()` finds {got['count']} numbers of {right}: what stands in a plain list or dict is not found, "
            "and what is a parameter is trained",
            f"`parameters()` 找到 {got['count']} 个数，应该是 {right} 个：放在普通列表或字典里的找不到，而注册成参数的就会被训练",
        )


def wrong_scale(got: Any) -> Iterator[Hint]:
    if got["trained"]:
        yield Hint("trained", "`scale` is a parameter: it would be trained", "`scale` 成了参数：会被训练")
    if got["moved"] not in ("-", "cuda:1"):
        yield Hint(
            "left-behind",
            f"after `.to('cuda:1')` `scale` is on {got['moved']}: a plain attribute does not go along",
            f"`.to('cuda:1')` 之后 `scale` 在 {got['moved']} 上：普通的属性不会跟着走",
        )


def wrong_result(got: Any, scores: Tensor, penalty: Tensor) -> Iterator[Hint]:
    """Checks the pair that ``forward`` returns."""
    result = got["result"]
    if not isinstance(result, list) or len(result) != 2:
        raise NoAnswer(Hint("kind", "`forward` is to return two tensors", "`forward` 应该返回两个张量"))
    first, second = map(tensor, result)
    if not same(first, scores, 1e-4):
        yield Hint("scores", "the scores are wrong", "分数不对")
    if second.dim() != 1 or len(second) != len(penalty):
        yield Hint(
            "per-replica",
            f"the penalty for {len(penalty)} rows comes out as {list(second.shape)}: one value for each row is "
            "wanted, else each replica's mean counts alike, however many rows it has",
            f"{len(penalty)} 行的惩罚值，得到的形状是 {list(second.shape)}：要的是每一行一个值，否则不管有几行，"
            "每个副本的平均都占同样的比重",
        )
    if not same(second, penalty, 1e-4):
        yield Hint("penalty", "the penalties of the rows are wrong", "各行的惩罚值不对")


def wrong_loss(got: Any, right: Tensor) -> Iterator[Hint]:
    value = tensor(got["loss"])
    if not same(value, right, 1e-4):
        told = f"{float(value):.4f}" if value.numel() == 1 else f"{list(value.shape)}"
        yield Hint(
            "loss",
            f"the loss is {told}; over all rows it is {float(right):.4f}",
            f"损失是 {told}；对所有行计算应该是 {float(right):.4f}",
        )


def tensor(got: object) -> Tensor:
    if isinstance(got, Tensor):
        return got
    if got is None or got is ...:
        raise NoAnswer(Hint("nothing", "nothing is given back yet", "还没有返回任何东西"))
    name = type(got).__name__
    raise NoAnswer(Hint("kind", f"a tensor is wanted, not a {name}", f"这里要的是张量，而不是 {name}"))


def format_values(value: Tensor) -> str:
    return "[" + ", ".join(f"{number:.3f}" for number in value.flatten()[:3].tolist()) + ", …]"


def _example(model: nn.Module) -> dict[str, Tensor]:
    """Weights for an open example."""
    torch.manual_seed(0)
    drawn = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    return {name: value for name, value in drawn.items() if model.get_parameter(name).requires_grad}


def _batch(student: Student, *shape: int) -> Tensor:
    return torch.arange(1.0 + torch.Size(shape).numel())[1:].sin().reshape(shape)


@visible(
    "counter", "Counted", en="the class `Counted`, not an object of it", zh="类 `Counted` 本身，不是它的对象"
)
def _counter(student: Student) -> Iterator[Hint]:
    batch = _batch(student, 4, student["numbers"]["size"])
    for gpus in (0, 2):
        got = drivers.counter(student, {}, [batch] * 3, gpus)
        yield from wrong_count(got["count"], 3, gpus)
    yield from wrong_restored(got["restored"], 3)


@visible(
    "cache",
    "Positions",
    en="the class `Positions`, not an object of it",
    zh="类 `Positions` 本身，不是它的对象",
)
def _cache(student: Student) -> Iterator[Hint]:
    size = student["numbers"]["size"]
    state = _example(student["Positions"]())
    batch, longer = _batch(student, 4, 3, size), _batch(student, 4, 5, size)
    one = drivers.outputs(student, "Positions", state, [longer], 0)
    yield from wrong_outputs(
        drivers.outputs(student, "Positions", state, [batch, longer], 0)[1:], one, 0, STALE
    )
    yield from wrong_outputs(drivers.outputs(student, "Positions", state, [longer], 2), one, 2, POSITIONS)


@visible(
    "memory", "Memory", en="the class `Memory`, not an object of it", zh="类 `Memory` 本身，不是它的对象"
)
def _memory(student: Student) -> Iterator[Hint]:
    state = _example(student["Memory"]())
    batch = _batch(student, 4, student["numbers"]["size"])
    one = drivers.memory(student, state, [batch, batch * 2], 0)
    two = drivers.memory(student, state, [batch, batch * 2], 2)
    yield from wrong_outputs(two["states"], one["states"], 2, STATES)


@visible(
    "running",
    "Standard",
    en="the class `Standard`, not an object of it",
    zh="类 `Standard` 本身，不是它的对象",
)
def _running(student: Student) -> Iterator[Hint]:
    size, percent = student["numbers"]["size"], student["numbers"]["percent"]
    state = _example(student["Standard"]())
    batch = _batch(student, 5, size)
    for gpus in (0, 2):
        got = drivers.running(student, state, [batch], gpus)
        yield from wrong_mean(got, batch.mean(0) * percent / 100, gpus)


@visible(
    "lists", "Branches", en="the class `Branches`, not an object of it", zh="类 `Branches` 本身，不是它的对象"
)
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
        scores, penalty = map(tensor, one["result"])
        if penalty.dim() == 0:
            penalty = penalty.repeat(len(x))
        two = drivers.loss_and_gradient(student, state, x, y, 2)
        yield from wrong_result(two, scores, penalty)
        yield from wrong_loss(two, tensor(one["loss"]))
    else:
        yield from wrong_result(one, x, x)
