"""Exercises of lesson 02: what moves, what forward sees, what wrapping does, and a program for any computer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import nn

from ...base.language import say
from ...base.numbers import plural
from ...machine import Machine
from ...plans.split import split
from ..exercise import ANY_OTHER, RIGHT, Fact, Hints, Kind, choice, exercise
from ..kinds import A_DEVICE, a_function, returned, whole, wrong_return


@exercise(
    "02.tensor_copy",
    A_DEVICE,
    ask=lambda: say(en="Where is `x`?", zh="`x` 在哪里？"),
    solution=lambda: say(
        en='`"cpu"`: `x.to("cuda:0")` makes a copy on cuda:0. Nobody kept that copy, and `x` itself has not moved.',
        zh='`"cpu"`：`x.to("cuda:0")` 在 cuda:0 上生成一个拷贝；没有人把这个拷贝留下来，`x` 自己并没有动。',
    ),
)
def _tensor_copy(found: str) -> Hints:
    return {
        "cpu": RIGHT,
        ANY_OTHER: say(
            en="`.to()` gives something back. What do the lines do with it?",
            zh="`.to()` 会返回一个东西。这几行代码拿它做了什么？",
        ),
    }


choice(
    "02.module",
    lambda: say(
        en='The same with a layer: after `layer.to("cuda:0")`, where are its weights?',
        zh='换成一个层：运行 `layer.to("cuda:0")` 之后，它的权重在哪里？',
    ),
    lambda: [
        (
            say(en="On the CPU: nobody kept the copy", zh="在 CPU 上：没有人把拷贝留下来"),
            say(
                en="that is how tensors do it; but an optimizer holds the layer's parameters, and copies would be of "
                "no use to it",
                zh="张量是这样；但优化器手里是这个层的参数，另做一份拷贝对它毫无用处",
            ),
        ),
        (say(en="On cuda:0", zh="在 cuda:0 上"), RIGHT),
        (
            say(en="On both", zh="两边都有"),
            say(
                en="a parameter is one tensor, and a tensor is in one place",
                zh="一个参数就是一个张量，一个张量只在一个地方",
            ),
        ),
    ],
    solution=lambda: say(
        en="A module moves its own parameters, in place, and gives itself back.",
        zh="模块把自己的参数原地搬过去，返回的就是它自己。",
    ),
)


@exercise(
    "02.inside",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    facts={"rows": (30, 1, 1_000_000), "gpus": (2, 1, 64)},
    fresh=lambda random: {"rows": random.randint(10, 60), "gpus": random.randint(2, 5)},
    ask=lambda rows, gpus: say(
        en=f"A batch of {plural(rows, 'row')} on {plural(gpus, 'GPU')}: how many of them does `forward` see on cuda:0?",
        zh=f"一个 {rows} 行的批次、{gpus} 块 GPU：`forward` 在 cuda:0 上看到几行？",
    ),
    solution=lambda rows, gpus: say(
        en=f"`{-(-rows // gpus)}`: scatter cuts the {rows} rows into pieces, and `forward` runs once on each GPU with "
        "its own piece.",
        zh=f"`{-(-rows // gpus)}`：分发把 {rows} 行切成分块，`forward` 在每块 GPU 上各运行一次，只拿到自己的分块。",
    ),
)
def _inside(count: int, rows: int, gpus: int) -> Hints:
    return {
        ANY_OTHER: say(
            en=f"{rows} rows are shared out over {gpus} GPUs, with the quotient rounded up",
            zh=f"{rows} 行分给 {gpus} 块 GPU，每块的行数向上取整",
        ),
        gpus: say(
            en=f"{gpus} is the number of GPUs; how many of the {rows} rows does each one get?",
            zh=f"{gpus} 是 GPU 的数目；{rows} 行里，每块分到几行？",
        ),
        rows * gpus: say(
            en="the batch is shared out, not given to every GPU whole: it is the model that is copied",
            zh="批次是分给各块 GPU 的，不是每块都拿一整份；整个复制的是模型",
        ),
        rows: say(
            en=f"{rows} rows is what you see outside, before and after; inside, each replica sees only its own piece",
            zh=f"{rows} 行是在外面看到的，调用前后都是；在里面，每个副本只看到自己的分块",
        ),
        -(-rows // gpus): RIGHT,
    }


def _printed(rows: int, size: int, gpus: int) -> int:
    """How many lines a pass over ``rows`` rows prints inside the model."""
    full, rest = divmod(rows, size)
    return full * _replicas(size, gpus) + (_replicas(rest, gpus) if rest else 0)


def _replicas(rows: int, gpus: int) -> int:
    return len(split(rows, gpus).sizes) if gpus > 1 else 1


_RUN: dict[str, Fact] = {"rows": (100, 1, 1_000_000), "size": (30, 1, 1_000_000), "gpus": (2, 0, 64)}


def _another_run(random: Random) -> dict[str, int]:
    size = random.randint(8, 40)
    return {
        "rows": size * random.randint(2, 4) + random.randint(1, size - 1),
        "size": size,
        "gpus": random.randint(2, 6),
    }


def _hints_of_lines(count: int, rows: int, size: int, gpus: int) -> Hints:
    batches = -(-rows // size)
    return {
        ANY_OTHER: say(
            en="batches × runs of `forward` for each batch; and does the short batch at the end reach every GPU?",
            zh="批次的个数 × 每个批次里 `forward` 运行的次数；最后那个不满的批次，每块 GPU 都轮得到吗？",
        ),
        batches * (max(gpus, 1) + 1): say(
            en="that counts the lines printed outside too; the question is about those inside the model",
            zh="这把外面打印的也算进去了；题目问的是模型里面打印的",
        ),
        max(gpus, 1): say(
            en="so many lines come from one batch; how many batches are there?",
            zh="这是一个批次打印的条数；一共有几个批次？",
        ),
        batches * max(gpus, 1): say(
            en="that is one line for each GPU and batch; does the short batch at the end reach every GPU?",
            zh="这是每个批次、每块 GPU 各一条；最后那个不满的批次，每块 GPU 都轮得到吗？",
        ),
        batches: say(
            en="that is one line for each batch; how often does `forward` run for one batch?",
            zh="这是每个批次一条；一个批次里，`forward` 要运行几次？",
        ),
        _printed(rows, size, gpus): RIGHT,
    }


@exercise(
    "02.lines",
    Kind(whole, lambda: say(en="a whole number of lines", zh="一个整数（打印了几条）")),
    facts=_RUN,
    fresh=_another_run,
    ask=lambda rows, size, gpus: say(
        en=f"{plural(rows, 'row')} in batches of {size} on {plural(gpus, 'GPU')}: how many lines are printed inside "
        "the model, over all batches?",
        zh=f"{rows} 行、每批 {size} 行、{gpus} 块 GPU：所有批次跑完，模型里面一共打印几条？",
    ),
    solution=lambda rows, size, gpus: say(
        en=f"`{_printed(rows, size, gpus)}`: {plural(-(-rows // size), 'batch').replace('batchs', 'batches')}, and "
        "for each of them `forward` runs once on every GPU that gets rows.",
        zh=f"`{_printed(rows, size, gpus)}`：{-(-rows // size)} 个批次，每个批次里，`forward` 在每块分到行的 GPU 上"
        "各运行一次。",
    ),
)
def _lines(count: int, rows: int, size: int, gpus: int) -> Hints:
    return _hints_of_lines(count, rows, size, gpus)


@exercise(
    "02.own",
    Kind(whole, lambda: say(en="a whole number of lines", zh="一个整数（打印了几条）")),
    facts=_RUN,
    fresh=_another_run,
    ask=lambda rows, size, gpus: say(
        en=f"Your numbers: {plural(rows, 'row')} in batches of {size}, {plural(gpus, 'GPU')}. How many lines are "
        "printed inside the model?",
        zh=f"你的数：{rows} 行、每批 {size} 行、{gpus} 块 GPU。模型里面一共打印几条？",
    ),
    solution=lambda rows, size, gpus: say(
        en=f"`{_printed(rows, size, gpus)}`: one for each batch and each GPU that gets rows of it.",
        zh=f"`{_printed(rows, size, gpus)}`：每个批次里，每块分到行的 GPU 一条。",
    ),
)
def _own(count: int, rows: int, size: int, gpus: int) -> Hints:
    return _hints_of_lines(count, rows, size, gpus)


@exercise(
    "02.wrapping",
    A_DEVICE,
    ask=lambda: say(en="Where are the weights of the wrapped model?", zh="包装好的模型，权重在哪里？"),
    solution=lambda: say(
        en='`"cpu"`: wrapping only puts your module inside another one. Moving it is your step, `.to("cuda:0")`; '
        "the copies on the other GPUs are made in each call and thrown away after it.",
        zh='`"cpu"`：包装只是把你的模块放进另一个模块里。搬到 GPU 上要你自己来：`.to("cuda:0")`；'
        "其他 GPU 上的副本在每次调用时才生成，用完就丢。",
    ),
)
def _wrapping(found: str) -> Hints:
    return {
        "cpu": RIGHT,
        "cuda:0": say(
            en="that is where they must be before the model runs; has anything in these lines brought them there?",
            zh="运行之前它们确实必须在那里；可这几行代码里，有谁把它们搬过去了吗？",
        ),
        ANY_OTHER: say(
            en="wrapping puts nothing on any GPU: replicas are made later, in each call",
            zh="包装不会往任何 GPU 上放东西：副本要到每次调用时才生成",
        ),
    }


choice(
    "02.zero",
    lambda: say(
        en="Four batches: how many lines are printed inside the model without a GPU, and with one?",
        zh="四个批次：没有 GPU 时，模型里面打印几条？有一块时呢？",
    ),
    lambda: [
        (
            say(en="None without a GPU, four with one", zh="没有 GPU 时一条也没有，有一块时四条"),
            say(
                en="without a GPU the model runs as well, on the CPU: `forward` is called for every batch",
                zh="没有 GPU，模型照样在 CPU 上运行：每个批次都会调用 `forward`",
            ),
        ),
        (say(en="Four, both times", zh="两次都是四条"), RIGHT),
        (
            say(en="One, both times", zh="两次都是一条"),
            say(
                en="`forward` is called once for each batch, and there are four batches",
                zh="每个批次调用一次 `forward`，一共四个批次",
            ),
        ),
    ],
    solution=lambda: say(
        en="One model, whole batches: `forward` runs once for each of the four.",
        zh="一个模型，完整的批次：四个批次各运行一次 `forward`。",
    ),
)

choice(
    "02.alone",
    lambda: say(
        en="Somebody wraps a model where there are not two GPUs. What happens?",
        zh="没有两块 GPU，也照样包装，会怎样？",
    ),
    lambda: [
        (
            say(en="An error", zh="报错"),
            say(
                en="the wrapper takes what there is: it is made for programs that run anywhere",
                zh="有多少 GPU 它就用多少：包装器本来就要让程序在哪里都能运行",
            ),
        ),
        (
            say(en="A warning, then a result on the CPU", zh="先警告，再给出 CPU 上的结果"),
            say(
                en="there is no warning, which is why code that seems to use GPUs may use none",
                zh="没有警告；正因为如此，看起来用了 GPU 的代码可能一块也没用上",
            ),
        ),
        (
            say(
                en="A result, without a word: on the CPU, or on the only GPU",
                zh="不声不响地给出结果：在 CPU 上，或在仅有的那块 GPU 上",
            ),
            RIGHT,
        ),
    ],
    solution=lambda: say(
        en="Without a GPU the call is passed on; with one, the model is moved there.",
        zh="没有 GPU 时，调用原样转给模型；只有一块时，模型会被搬过去。",
    ),
)

choice(
    "02.default",
    lambda: say(
        en='Four GPUs, a layer and 30 rows on `"cuda"`: on how many GPUs does something lie?',
        zh='四块 GPU，一个层和 30 行都放到 `"cuda"`：有几块 GPU 上有东西？',
    ),
    lambda: [
        (say(en="On one", zh="一块"), RIGHT),
        (
            say(en="On all four", zh="四块都有"),
            say(
                en='`"cuda"` is no pool: it is the current device, cuda:0 unless it was changed',
                zh='`"cuda"` 不是一个公共的池子，而是当前设备；没有改过的话就是 cuda:0',
            ),
        ),
        (
            say(en="On two: the layer on one, the rows on the next", zh="两块：层在一块上，行在下一块上"),
            say(
                en="nothing is spread out on its own; both lines name the same device",
                zh="没有什么会自动摊开；两处写的是同一个设备",
            ),
        ),
    ],
    solution=lambda: say(
        en="By default everything goes to one GPU; the other three stay empty until the code names them.",
        zh="默认全都放在一块 GPU 上；另外三块一直空着，直到代码点到它们。",
    ),
)


_ANYWHERE = """```
def anywhere(model):
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)
    return model.to("cuda:0" if torch.cuda.is_available() else "cpu")
```"""


@exercise(
    "02.anywhere",
    a_function("anywhere", lambda: say(en="a function of `model`", zh="一个以 `model` 为参数的函数")),
    solution=lambda: say(
        en=f"Wrap where there are two GPUs or more; go to cuda:0 where there is a GPU at all:\n{_ANYWHERE}",
        zh=f"有两块或更多 GPU 就包装；只要有 GPU，就搬到 cuda:0 上：\n{_ANYWHERE}",
    ),
)
def _anywhere(answer: Callable[..., Any]) -> Iterator[str]:
    for gpus in (0, 1, 3):
        with Machine(gpus).open():  # for the moment, a computer with so many GPUs
            yield from _made_for(gpus, answer)


def _made_for(gpus: int, answer: Callable[..., Any]) -> Iterator[str]:
    """What is wrong with the model that ``answer`` makes on a computer with so many GPUs."""
    seen: list[tuple[str, int]] = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((str(x.device), len(x)))
            return super().forward(x)

    model = Watched(5, 2)
    case_en, case_zh = f"on a computer with {plural(gpus, 'GPU')}", f"在有 {gpus} 块 GPU 的电脑上，"
    made = returned(answer(model))
    if not isinstance(made, nn.Module):
        raise wrong_return(made, say(en="a model", zh="一个模型"))
    home = "cuda:0" if gpus else "cpu"
    places = {str(weight.device) for weight in made.parameters()}
    if places != {home}:
        yield say(
            en=f"{case_en} the weights are on {', '.join(sorted(places)) or 'nothing'}; a call begins on {home}",
            zh=f"{case_zh}权重在 {'、'.join(sorted(places)) or '空处'}；调用是从 {home} 开始的",
        )
        return
    made(torch.ones(6, 5, device=home))
    busy = len({device for device, _ in seen})
    if busy != max(gpus, 1):
        yield say(
            en=f"{case_en} `forward` ran on {plural(busy, 'device')} only: who shares the batch out?",
            zh=f"{case_zh}`forward` 只在 {busy} 个设备上运行了：批次由谁来分？",
        )
    if gpus < 2 and any(name.startswith("module.") for name in made.state_dict()):
        yield say(
            en=f"{case_en} the model is wrapped, though there is nothing to share; the program of this lesson wraps "
            "only where there are two GPUs or more",
            zh=f"{case_zh}没有什么可分的，模型却包装了；本课的程序只在有两块或更多 GPU 时才包装",
        )
