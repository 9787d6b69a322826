"""Exercises of lesson 06: what gather makes of a CRNN, how a hidden state is cut, and a reader to repair."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, Unreadable, exercise
from ..kinds import A_SHAPE, returned, wrong_return
from .gpus import some_gpus


@exercise(
    "06.shape",
    A_SHAPE,
    solution=lambda: say(
        en="`[130, 16, 5530]`: each replica returns `[65, 16, 5530]` for its 16 images, and gather joins the two "
        "along dimension 0.",
        zh="`[130, 16, 5530]`：每个副本对自己的 16 幅图像返回 `[65, 16, 5530]`，收集再把两份沿第 0 维拼接。",
    ),
)
def _output(shape: tuple[int, ...]) -> Hints:
    return {
        (130, 16, 5530): RIGHT,
        (65, 32, 5530): say(
            en="that is what one GPU gives; to get it from two, gather would have to know that your batch is on "
            "dimension 1, and it joins along dimension 0, always",
            zh="这是一块 GPU 上的结果；要从两块得到它，收集就得知道你的批次在第 1 维，而它总是沿第 0 维拼接",
        ),
        (65, 16, 5530): say(
            en="that is the output of one replica; gather makes one tensor of both",
            zh="这是一个副本的输出；收集要把两份合成一个张量",
        ),
        (130, 32, 5530): say(
            en="dimension 0 does get twice as long; but each replica sees only 16 of the 32 images",
            zh="第 0 维确实变成两倍；但每个副本只看到 32 幅图像里的 16 幅",
        ),
        (32, 65, 5530): say(
            en="that would be batch first; but `forward` returns the columns first, and nobody turns them back",
            zh="这是批次在最前的样子；可 `forward` 返回时列在最前，之后谁也没有把它换回来",
        ),
        ANY_OTHER: say(
            en="go step by step: how many images does a replica get, what does it return, and along which dimension "
            "does gather join the two?",
            zh="一步一步想：一个副本拿到几幅图像，它返回什么形状，收集又沿哪一维把两份拼起来？",
        ),
    }


@exercise(
    "06.hidden",
    A_SHAPE,
    solution=lambda: say(
        en="`[1, 8, 6]`: dimension 0 is cut, and in a hidden state that is the layers, `batch_first` or not. One layer "
        "for each replica, with all 8 rows.",
        zh="`[1, 8, 6]`：切的是第 0 维，而隐藏状态的第 0 维是层数，与 `batch_first` 无关。每个副本拿到一层，8 行都在。",
    ),
)
def _hidden(shape: tuple[int, ...]) -> Hints:
    turned = say(
        en="`batch_first` does not turn the hidden state round: its dimension 0 is the layers",
        zh="`batch_first` 不会把隐藏状态的维度换过来：它的第 0 维是层数",
    )
    return {
        (1, 8, 6): RIGHT,
        (2, 4, 6): say(
            en="that is what the GRU needs; but `batch_first` is about its input and its output, the hidden state "
            "stays (layers, batch, h), and scatter cuts dimension 0",
            zh="GRU 需要的正是这样；但 `batch_first` 只管它的输入和输出，隐藏状态还是（层数，批次，隐藏单元数），"
            "分发切的是第 0 维",
        ),
        (2, 8, 6): say(
            en="that is the whole hidden state; every tensor among the inputs is cut, this one too",
            zh="这是完整的隐藏状态；输入里的每个张量都会被切开，它也不例外",
        ),
        (4, 2, 6): turned,
        (8, 2, 6): turned,
        ANY_OTHER: say(
            en="dimension 0 of [2, 8, 6] is cut into two pieces, the others stay",
            zh="把 [2, 8, 6] 的第 0 维切成两个分块，其余各维不变",
        ),
    }


_REPAIRED = """```
class Repaired(Digits):
    def forward(self, images):
        scores, hidden = super().forward(images)
        return scores.transpose(0, 1), hidden.transpose(0, 1)
```"""


def _model(answer: object) -> nn.Module:
    """The model, or an object of the class, without a wrapper."""
    model = answer() if isinstance(answer, type) and issubclass(answer, nn.Module) else answer
    if not isinstance(model, nn.Module):
        raise Unreadable
    return model.module if isinstance(model, nn.DataParallel) else model


@exercise(
    "06.repair",
    Kind(
        _model,
        lambda: say(
            en="a model, `answer = Repaired()`, that returns two tensors",
            zh="一个返回两个张量的模型，写 `answer = Repaired()`",
        ),
    ),
    solution=lambda: say(
        en=f"Both results have their batch on dimension 1, and both are turned round:\n{_REPAIRED}",
        zh=f"两个结果的批次都在第 1 维，都要换到最前：\n{_REPAIRED}",
    ),
)
def _repair(model: nn.Module) -> Iterator[str]:
    with some_gpus(2) as devices, torch.no_grad():
        model = copy.deepcopy(model).to(devices[0]).eval()
        images = torch.linspace(-1, 1, 6 * 8 * 24).sin().mul(40).cos().reshape(6, 1, 8, 24).to(devices[0])
        results = returned(model(images), en="`forward`", zh="`forward` ")
        yield from _alone(results)
        yield from _rows(model, images, *results)
        for rows in (6, 5):
            outputs = nn.DataParallel(model, [*map(torch.device, devices)])(images[:rows])
            for many, one in zip(outputs, model(images[:rows]), strict=True):
                if many.shape != one.shape or not _same(many, one):
                    yield say(
                        en=f"on two GPUs {rows} images give {list(many.shape)}, on one {list(one.shape)}, or "
                        "other values: does `forward` rely on how many images there are?",
                        zh=f"{rows} 幅图像在两块 GPU 上得到 {list(many.shape)}，在一块上是 {list(one.shape)}，"
                        "或者值不同：`forward` 里是不是用到了图像的总数？",
                    )


def _alone(results: object) -> Iterator[str]:
    """What is wrong with the two results for six images on one GPU, as far as their shapes tell."""
    if isinstance(results, Tensor):
        yield say(
            en="that is one tensor; the caller wants two, the scores and the hidden state",
            zh="这是一个张量；调用者要的是两个：分数和隐藏状态",
        )
    if not (
        isinstance(results, (tuple, list))
        and len(results) == 2
        and all(isinstance(result, Tensor) for result in results)
    ):
        raise wrong_return(results, say(en="two tensors", zh="两个张量"), en="`forward`", zh="`forward` ")
    scores, hidden = results
    if list(scores.shape) == [12, 6, 10]:
        yield say(
            en="for 6 images the scores are still `[12, 6, 10]`, the columns first: two GPUs would make `[24, 3, 10]` "
            "of them",
            zh="6 幅图像，分数还是 `[12, 6, 10]`，列在最前：两块 GPU 会把它拼成 `[24, 3, 10]`",
        )
    if list(scores.shape) != [6, 12, 10]:
        yield say(
            en=f"for 6 images the scores are {list(scores.shape)}; 6 images, 12 columns and 10 digits are wanted, "
            "the batch first",
            zh=f"6 幅图像，分数是 {list(scores.shape)}；要的是 6 幅图像、12 列、10 个数字，批次在最前",
        )
    if list(hidden.shape) in ([1, 6, 7], [1, 12, 7]):
        yield say(
            en=f"the scores have the right shape, but the hidden state is {list(hidden.shape)}, its layers first, with "
            "`batch_first` too: gather would join it along its layers",
            zh=f"分数的形状对了，但隐藏状态是 {list(hidden.shape)}，层数在最前，写了 `batch_first` 也一样："
            "收集会沿层数把它拼起来",
        )
    if hidden.dim() < 2 or len(hidden) != 6 or hidden.numel() != 6 * 7:
        yield say(
            en=f"for 6 images the hidden state is {list(hidden.shape)}; 6 images, 1 layer and 7 numbers are wanted, "
            "the batch first",
            zh=f"6 幅图像，隐藏状态是 {list(hidden.shape)}；要的是 6 幅图像、1 层、7 个数，批次在最前",
        )


def _rows(model: nn.Module, images: Tensor, scores: Tensor, hidden: Tensor) -> Iterator[str]:
    """Whether each image's results are its own: the same as if it came alone."""
    single = [model(images[at : at + 1]) for at in range(len(images))]
    right = torch.cat([one[0] for one in single])
    if _same(scores, right) and _same(hidden, torch.cat([one[1] for one in single])):
        return
    if _same(scores.flatten(), right.transpose(0, 1).flatten()):
        yield say(
            en="the shape is right, but the scores are in other places: `reshape` and `view` cut the numbers up anew, "
            "they do not swap dimensions; `transpose` and `permute` do",
            zh="形状对了，但分数放错了位置：`reshape` 和 `view` 只是把数重新分段，并不交换维度；"
            "交换维度要用 `transpose` 或 `permute`",
        )
    yield say(
        en="the shapes are right, but an image's results depend on the other images of its piece: does the RNN go "
        "along the images instead of the columns?",
        zh="形状都对，但一幅图像的结果取决于同一分块里的其他图像：RNN 是不是沿着图像走，而不是沿着列走？",
    )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-3)
