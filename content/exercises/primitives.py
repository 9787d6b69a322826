"""Exercises of lesson 04: what travels, where gradients go, what a replica is, and the four steps as one function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch import nn

from ...base.language import say
from ...base.numbers import plural
from ...plans.split import split
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import a_function, returned, whole, wrong_return
from .gpus import some_gpus


@exercise(
    "04.gradient",
    Kind(whole, lambda: say(en="a whole number of parameters", zh="一个整数（参数的个数）")),
    ask=lambda: say(
        en="How many of `model`'s four parameters have a gradient then?",
        zh="到时候 `model` 的四个参数里，有几个得到了梯度？",
    ),
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
            en="that is what training needs; but does autograd follow `deepcopy` as it follows an operation?",
            zh="训练需要的正是这样；但 autograd 会像追踪运算那样追踪 `deepcopy` 吗？",
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
    ask=lambda: say(en="How many parameters has one replica?", zh="一个副本有几个参数？"),
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
            en="a normal module, or a deep copy of one, has 4. What did the `replicate` above put in "
            "their place?",
            zh="普通的模块或它的深拷贝才有 4 个。上面的 `replicate` 用什么换掉了参数？",
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
    ready: list[str] = []  # parallel_apply of torch or labkit, where it ran the model

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((str(x.device), len(x)))
            ready.extend(filter(_is_ready_made, map(_module_of, walk_stack(sys._getframe()))))
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
    if ready:
        yield say(
            en="the model was run by `nn.DataParallel`, or by a part of it: here the four functions of this lesson are "
            "to do it",
            zh="运行模型的是 `nn.DataParallel` 或它的一部分；这里要用本课写的四个函数来做",
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


def _module_of(frame: tuple[FrameType, int]) -> str:
    return str(frame[0].f_globals.get("__name__"))


def _is_ready_made(module: str) -> bool:
    """Whether it is PyTorch's or labkit's own data parallelism that is at work."""
    return module.startswith(("torch.nn.parallel.", "labkit.engine."))


def _replicas(rows: int, gpus: int) -> int:
    return len(split(rows, gpus).sizes)


def _another_call(random: Random) -> dict[str, int]:
    gpus = random.randint(4, 9)
    return {"rows": random.randint(gpus - 2, 2 * gpus), "gpus": gpus}


@exercise(
    "04.replicas",
    Kind(whole, lambda: say(en="a whole number of replicas", zh="一个整数（副本的个数）")),
    facts={"rows": (9, 1, 1_000_000), "gpus": (4, 1, 64)},
    fresh=_another_call,
    ask=lambda rows, gpus: say(
        en=f"{plural(rows, 'row')} on {plural(gpus, 'GPU')}: how many replicas does one call make?",
        zh=f"{rows} 行、{gpus} 块 GPU：一次调用做几个副本？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{_replicas(rows, gpus)}`: one for each piece, and pieces have ceil({rows} / {gpus}) = {-(-rows // gpus)} "
        "rows.",
        zh=f"`{_replicas(rows, gpus)}`：有几个分块就有几个副本，每个分块 ⌈{rows} / {gpus}⌉ = {-(-rows // gpus)} 行。",
    ),
)
def _replicas_made(count: int, rows: int, gpus: int) -> Hints:
    return {
        ANY_OTHER: say(
            en="scatter comes first: how many pieces does it make of these rows?",
            zh="先做的是分发：这些行切成几个分块？",
        ),
        rows: say(en="a replica is made for a piece, not for a row", zh="副本是按分块做的，不是按行做的"),
        gpus: say(
            en="that is one for every GPU; is there a piece for every GPU?",
            zh="这是每块 GPU 一个；每块 GPU 都有分块吗？",
        ),
        _replicas(rows, gpus): RIGHT,
    }


@exercise(
    "04.travel",
    Kind(whole, lambda: say(en="a whole number of bytes", zh="一个整数（字节数）")),
    facts={"gpus": (3, 1, 64), "calls": (10, 1, 1000)},
    fresh=lambda random: {"gpus": random.randint(2, 8), "calls": random.randint(2, 20)},
    ask=lambda gpus, calls: say(
        en=f"The weights of `model` are 136 bytes. How many bytes of weights travel in {plural(calls, 'call')} on "
        f"{plural(gpus, 'GPU')}, if there are rows for every GPU?",
        zh=f"`model` 的权重一共 136 字节。{gpus} 块 GPU 都分得到行，调用 {calls} 次，一共要搬多少字节的权重？",
    ),
    solution=lambda gpus, calls: say(
        en=f"`{136 * (gpus - 1) * calls}`: 136 bytes to each of the other GPUs ({gpus - 1}), anew in every call: the "
        "replicas are thrown away.",
        zh=f"`{136 * (gpus - 1) * calls}`：每次调用都要给另外 {gpus - 1} 块 GPU 各搬 136 字节，因为副本用完就丢。",
    ),
)
def _travel(count: int, gpus: int, calls: int) -> Hints:
    return {
        ANY_OTHER: say(
            en="bytes of the weights × GPUs that do not have them yet × calls",
            zh="权重的字节数 × 手里还没有权重的 GPU 数 × 调用次数",
        ),
        136: say(
            en="that is one copy; how many GPUs need one, and how often?",
            zh="这是一份拷贝；有几块 GPU 需要，需要几次？",
        ),
        136 * gpus * calls: say(
            en="that counts home too: do the weights travel to where they are already?",
            zh="这把主设备也算进去了：权重本来就在那里，还用搬吗？",
        ),
        136 * (gpus - 1): say(
            en="that is one call; does a replica live until the next one?",
            zh="这是一次调用；副本能留到下一次调用吗？",
        ),
        136 * (gpus - 1) * calls: RIGHT,
    }


choice(
    "04.inputs",
    lambda: say(
        en="`model(batch, scale=2.0, names=[...])` with 7 rows, 7 names and 3 GPUs: what does cuda:1 get?",
        zh="`model(batch, scale=2.0, names=[...])`，7 行、7 个名字、3 块 GPU：cuda:1 拿到什么？",
    ),
    lambda: [
        (
            say(en="3 rows, 2.0, 3 names", zh="3 行、2.0、3 个名字"),
            say(
                en="scatter looks into a list for tensors; a text in it is none, so where should it cut?",
                zh="分发会到列表里去找张量；列表里是文字，不是张量，它从哪里切呢？",
            ),
        ),
        (say(en="3 rows, 2.0, all 7 names", zh="3 行、2.0、全部 7 个名字"), RIGHT),
        (
            say(en="An error: only tensors can be given", zh="报错：只能传张量"),
            say(
                en="anything can be given; the question is only what is cut",
                zh="什么都可以传；问题只在于切的是什么",
            ),
        ),
    ],
    solution=lambda: say(
        en="Only tensors are cut, also those inside lists and dicts; everything else is given to every replica whole.",
        zh="切开的只有张量（列表、字典里的张量也算）；其余的东西原样交给每个副本。",
    ),
)

choice(
    "04.bytes",
    lambda: say(
        en="What makes up most of the bytes that travel in this call?",
        zh="这次调用里，搬来搬去的字节大部分是什么？",
    ),
    lambda: [
        (
            say(en="The rows", zh="数据行"),
            say(
                en="7 rows of 5 numbers are 140 bytes, and each GPU gets only a part of them",
                zh="7 行、每行 5 个数，一共 140 字节，而且每块 GPU 只拿到一部分",
            ),
        ),
        (say(en="The weights", zh="权重"), RIGHT),
        (
            say(en="The outputs", zh="输出"),
            say(
                en="7 rows of 2 numbers, and those of cuda:0 need not travel at all",
                zh="7 行、每行 2 个数，而且 cuda:0 上的那部分不用搬",
            ),
        ),
    ],
    solution=lambda: say(
        en="Every other GPU gets all the weights, in every call; of the rows it gets only its piece.",
        zh="另外每块 GPU 每次调用都要拿到全部权重，而数据行只拿自己的分块。",
    ),
)

choice(
    "04.undo",
    lambda: say(en="Does gather undo scatter?", zh="先分发、再收集，能还原吗？"),
    lambda: [
        (
            say(en="Only if the rows come out even", zh="只有行数恰好整除时才能"),
            say(
                en="a short piece is a piece as well: `cat` does not ask for equal lengths",
                zh="不满的分块也是分块：`cat` 并不要求长度相同",
            ),
        ),
        (say(en="Yes, whatever the number of rows", zh="能，多少行都行"), RIGHT),
        (
            say(en="The rows are there, but in another order", zh="行都在，但顺序变了"),
            say(
                en="pieces are neighbouring rows, and they are joined in the order of the list",
                zh="分块是相邻的行，又按列表的顺序拼起来",
            ),
        ),
    ],
    solution=lambda: say(
        en="Neighbouring rows, joined in the order of the list, are the batch again.",
        zh="相邻的行按列表的顺序拼起来，又是原来的批次。",
    ),
)

choice(
    "04.equal",
    lambda: say(
        en="Your four steps against PyTorch's wrapper: outputs and gradients are …",
        zh="你的四步和 PyTorch 的包装器相比，输出和梯度……",
    ),
    lambda: [
        (
            say(en="both equal to the last bit", zh="两者都连最后一位也相同"),
            say(
                en="the outputs, yes; but gradients are sums over the replicas, and another order of adding may "
                "round otherwise",
                zh="输出确实如此；但梯度是各副本之和，相加的顺序不同，舍入就可能不同",
            ),
        ),
        (
            say(
                en="outputs equal to the last bit, gradients up to rounding",
                zh="输出逐位相同，梯度只差舍入误差",
            ),
            RIGHT,
        ),
        (
            say(
                en="both a little different: threads are never quite alike",
                zh="两者都略有不同：线程每次都不完全一样",
            ),
            say(
                en="threads change when something is computed, not what: each row goes through the same operations",
                zh="线程改变的只是先后，不是内容：每一行经过的运算都一样",
            ),
        ),
    ],
    solution=lambda: say(
        en="The same numbers go through the same operations; only the sum of the gradients may be taken in another "
        "order.",
        zh="同样的数经过同样的运算；只有梯度求和的顺序可能不同。",
    ),
)

choice(
    "04.half",
    lambda: say(en="Which layers run on cuda:1?", zh="哪些层会在 cuda:1 上运行？"),
    lambda: [
        (
            say(en="All three", zh="三层都在"),
            say(
                en="the first and the last layer are on the CPU, and nobody has wrapped them",
                zh="第一层和最后一层在 CPU 上，谁也没有包装它们",
            ),
        ),
        (say(en="The block alone", zh="只有中间那个模块"), RIGHT),
        (
            say(en="None: the model is on the CPU", zh="一层也没有：模型在 CPU 上"),
            say(
                en="a wrapped block scatters what it is given, wherever its input is: here from the CPU",
                zh="包装过的模块会把拿到的输入分发出去，不管输入在哪里；这里是从 CPU 分发",
            ),
        ),
    ],
    solution=lambda: say(
        en="Only what is wrapped is replicated; its output comes home to cuda:0.",
        zh="只有包装过的才会复制；它的输出回到主设备 cuda:0。",
    ),
)
