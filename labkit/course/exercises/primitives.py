"""Exercises of lesson 04: where gradients go, what a replica is, and the four steps as one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, exercise
from ..kinds import a_function, returned, whole, wrong_return
from .gpus import some_gpus


@exercise(
    "04.gradient",
    Kind(whole, lambda: say(en="a whole number of parameters", zh="一个整数（参数的个数）")),
    solution=lambda: say(
        en="`0`: a deep copy is a model with parameters of its own. The gradients land in the three copies; "
        "nothing connects them with `model`.",
        zh="`0`：深拷贝出来的模型有自己的参数。梯度落在那三份拷贝里，它们和 `model` 没有任何联系。",
    ),
)
def _gradient(count: int) -> Hints:
    return {
        0: RIGHT,
        4: say(
            en="that is what training needs; but `deepcopy` is not an operation that autograd follows: "
            "the copies have parameters of their own, and the gradients stay there",
            zh="训练需要的正是这样；但 autograd 并不追踪 `deepcopy`：每份拷贝有自己的参数，梯度就留在那里",
        ),
        12: say(
            en="three copies with 4 parameters each do have one; the question is about `model` itself",
            zh="三份拷贝各有 4 个参数，它们确实得到了梯度；题目问的是 `model` 自己",
        ),
        ANY_OTHER: say(
            en="`model` has 4 parameters; were they themselves used to compute the output, or only their copies?",
            zh="`model` 有 4 个参数；计算输出时，用的是它们自己，还是只用了它们的拷贝？",
        ),
    }


@exercise(
    "04.parameters",
    Kind(whole, lambda: say(en="a whole number of parameters", zh="一个整数（参数的个数）")),
    solution=lambda: say(
        en="`0`: the weights of a replica are results of copying, plain tensors that autograd connects with the "
        "originals. Parameters would be leaf tensors, without that connection.",
        zh="`0`：副本的权重是拷贝运算的结果，是普通的张量，由 autograd 和原来的参数连着。"
        "参数必须是叶子张量，那样就没有这种连接了。",
    ),
)
def _parameters(count: int) -> Hints:
    return {
        0: RIGHT,
        4: say(
            en="a normal module, or a deep copy of one, has 4; but then gradients would stay in the replica. "
            "What did the `replicate` above put in the place of the parameters?",
            zh="普通的模块或它的深拷贝才有 4 个；但那样梯度就会留在副本里。上面的 `replicate` 用什么换掉了参数？",
        ),
        12: say(
            en="that counts three replicas; the question is about one, and whether its weights are parameters at all",
            zh="这是把三个副本加在一起数了；题目问的是一个副本，而且要先想想它的权重还算不算参数",
        ),
        ANY_OTHER: say(
            en="are the weights of a replica parameters, or results of copying?",
            zh="副本的权重是参数，还是拷贝运算的结果？",
        ),
    }


_CALL = """```
def one_call(model, batch, devices):
    pieces = scatter(batch, devices)
    replicas = replicate(model, devices[: len(pieces)])
    return gather(parallel_apply(replicas, pieces), devices[0])
```"""


@exercise(
    "04.call",
    a_function(
        "one_call",
        lambda: say(
            en="a function of `model`, `batch` and `devices`",
            zh="一个以 `model`、`batch`、`devices` 为参数的函数",
        ),
    ),
    solution=lambda: say(
        en=f"Scatter first: only then is it known how many replicas are needed.\n{_CALL}",
        zh=f"先分发：分好了才知道需要几个副本。\n{_CALL}",
    ),
)
def _call(answer: Callable[..., object]) -> Iterator[str]:
    with some_gpus() as devices:
        for rows in (7, 1):
            yield from _called(answer, rows, devices)


def _called(answer: Callable[..., Any], rows: int, devices: list[str]) -> Iterator[str]:
    """What is wrong with one call on ``rows`` rows, seen from inside the module."""
    seen: list[tuple[str, int]] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((str(x.device), len(x)))
            return x * self.weight

    model = Watched().to(devices[0])
    batch = torch.arange(float(rows)).reshape(rows, 1)
    got = returned(answer(model, batch, list(devices)))
    case_en, case_zh = f"for {rows} rows on {len(devices)} GPUs", f"{rows} 行、{len(devices)} 块 GPU 时，"
    if isinstance(got, (list, tuple)):
        yield say(
            en=f"{case_en} it gives {len(got)} outputs, one for each piece: the last step, gather, is missing",
            zh=f"{case_zh}返回了 {len(got)} 份输出，每个分块一份：还缺最后一步，收集",
        )
    if not isinstance(got, torch.Tensor):
        raise wrong_return(got, say(en="a tensor", zh="一个张量"))
    if not seen:
        yield say(
            en=f"{case_en} it gives a tensor, but the model was never called",
            zh=f"{case_zh}返回了一个张量，但一次也没有调用模型",
        )
    if rows > 1 and len({device for device, _ in seen}) == 1:
        yield say(
            en=f"{case_en} everything ran on {seen[0][0]}: the pieces have to be scattered over all `devices`",
            zh=f"{case_zh}一切都在 {seen[0][0]} 上运行：要把分块分发到 `devices` 里的每个设备",
        )
    if rows > 1 and max(count for _, count in seen) == rows:
        yield say(
            en=f"{case_en} a replica saw all {rows} rows: each gets its own piece, not the whole batch",
            zh=f"{case_zh}有副本看到了全部 {rows} 行：每个副本只该拿到自己的分块，不是整个批次",
        )
    if str(got.device) != devices[0]:
        yield say(
            en=f"{case_en} the output is on {got.device}; it is gathered on the first device, {devices[0]}",
            zh=f"{case_zh}输出在 {got.device} 上；应该收集到第一个设备 {devices[0]} 上",
        )
    if got.shape != batch.shape or not torch.equal(got.detach().cpu(), batch * 2):
        yield say(
            en=f"{case_en} the output is not the model's output for the whole batch, in the order of its rows",
            zh=f"{case_zh}输出和模型对整个批次的输出不一样，或者行的顺序不对",
        )
    if got.requires_grad:
        got.sum().backward()
    if model.weight.grad is None:
        yield say(
            en="the output is right, but no gradient comes back to `model`: deep copies are models of their own",
            zh="输出是对的，但没有梯度传回 `model`：深拷贝出来的是各自独立的模型",
        )
