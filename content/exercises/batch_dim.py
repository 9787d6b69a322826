"""Exercises of lesson 06: what gather makes of a CRNN, what scatter does to each input, and a reader to repair."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, Unreadable, choice, exercise
from ..kinds import A_SHAPE, returned, wrong_return
from .gpus import some_gpus


@exercise(
    "06.shape",
    A_SHAPE,
    ask=lambda: say(en="Which shape has the output on four GPUs?", zh="在四块 GPU 上，输出是什么形状？"),
    solution=lambda: say(
        en="`[260, 8, 5530]`: each replica returns `[65, 8, 5530]` for its 8 images, and gather joins the four along "
        "dimension 0.",
        zh="`[260, 8, 5530]`：每个副本对自己的 8 幅图像返回 `[65, 8, 5530]`，收集再把四份沿第 0 维拼接。",
    ),
)
def _output(shape: tuple[int, ...]) -> Hints:
    return {
        (260, 8, 5530): RIGHT,
        (65, 32, 5530): say(
            en="that is what one GPU gives; to get it from four, gather would have to know that your batch is on "
            "dimension 1, and it does not: where does it join?",
            zh="这是一块 GPU 上的结果；要从四块得到它，收集就得知道你的批次在第 1 维，而它并不知道：它沿哪一维拼接？",
        ),
        (130, 16, 5530): say(
            en="that is the riddle, on two GPUs: take it apart into what each of the two replicas returned",
            zh="这是谜题里两块 GPU 的结果：先把它拆开，看两个副本各返回了什么",
        ),
        (65, 8, 5530): say(
            en="that is the output of one replica; gather makes one tensor of all four",
            zh="这是一个副本的输出；收集要把四份合成一个张量",
        ),
        **dict.fromkeys(
            [(260, 32, 5530), (260, 16, 5530)],
            say(
                en="dimension 0 is right; but how many of the 32 images does each replica see?",
                zh="第 0 维对了；但 32 幅图像里，每个副本看到几幅？",
            ),
        ),
        (130, 8, 5530): say(
            en="8 images for each replica, that is right; but there are four of them to join",
            zh="每个副本 8 幅，这一点对了；但要拼起来的有四份",
        ),
        (32, 65, 5530): say(
            en="that would be batch first; but `forward` returns the columns first, and nobody turns them back",
            zh="这是批次在最前的样子；可 `forward` 返回时列在最前，之后谁也没有把它换回来",
        ),
        ANY_OTHER: say(
            en="go step by step: how many images does a replica get, what does it return, and along which dimension "
            "does gather join the four?",
            zh="一步一步想：一个副本拿到几幅图像，它返回什么形状，收集又沿哪一维把四份拼起来？",
        ),
    }


@exercise(
    "06.hidden",
    A_SHAPE,
    ask=lambda: say(
        en="Which shape has the part of the hidden state in each replica?",
        zh="每个副本拿到的那部分隐藏状态是什么形状？",
    ),
    solution=lambda: say(
        en="`[1, 8, 6]`: dimension 0 is cut, and in a hidden state that is the layers, `batch_first` or not. One "
        "layer "
        "for each replica, with all 8 rows.",
        zh="`[1, 8, 6]`：切的是第 0 维，而隐藏状态的第 0 维是层数，与 `batch_first` 无关。每个副本拿到一层，8 "
        "行都在。",
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
            en=f"the scores have the right shape, but the hidden state is {list(hidden.shape)}, its layers first, "
            f"with "
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


choice(
    "06.whose",
    lambda: say(en="Whose scores are in `two[70, 3]`?", zh="`two[70, 3]` 里是谁的分数？"),
    lambda: [
        (
            say(en="Image 3, column 70", zh="图像 3，第 70 列"),
            say(
                en="an image has only 65 columns: what comes after them along dimension 0?",
                zh="一幅图像只有 65 列：沿第 0 维，65 列之后是什么？",
            ),
        ),
        (
            say(en="Image 3, column 5", zh="图像 3，第 5 列"),
            say(
                en="column 5 is right; but from 65 on it is the second replica's, and its images begin at 16",
                zh="第 5 列是对的；但从 65 起是第二个副本的，它的图像从 16 开始",
            ),
        ),
        (say(en="Image 19, column 5", zh="图像 19，第 5 列"), RIGHT),
    ],
    solution=lambda: say(
        en="Row 70 is column 70 − 65 = 5 of the second replica, and its place 3 is image 16 + 3 = 19.",
        zh="第 70 行是第二个副本的第 70 − 65 = 5 列；它的第 3 个位置是图像 16 + 3 = 19。",
    ),
)

choice(
    "06.odd",
    lambda: say(en="And with 31 images?", zh="换成 31 幅图像呢？"),
    lambda: [
        (
            say(en="[130, 16, 5530], the last image doubled", zh="[130, 16, 5530]，最后一幅算两次"),
            say(
                en="nothing is doubled to fill up: the pieces are 16 and 15",
                zh="不会为了凑满而重复：分块是 16 和 15",
            ),
        ),
        (
            say(en="[130, 15, 5530], the rest dropped", zh="[130, 15, 5530]，多余的丢弃"),
            say(
                en="gather drops nothing: it joins what it gets, or refuses",
                zh="收集不会丢弃什么：要么把拿到的拼起来，要么拒绝",
            ),
        ),
        (say(en="An error in gather", zh="收集那一步报错"), RIGHT),
    ],
    solution=lambda: say(
        en="16 and 15 images do not fit side by side, and gather joins along dimension 0 only.",
        zh="16 幅和 15 幅对不齐，而收集只会沿第 0 维拼接。",
    ),
)

choice(
    "06.advice",
    lambda: say(en="What will the check-up advise?", zh="体检会建议怎么做？"),
    lambda: [
        (
            "`drop_last=True`",
            say(
                en="that takes away the error and leaves the fault: full batches are wrong too",
                zh="这样只是不再报错，毛病还在：装满的批次也是错的",
            ),
        ),
        (say(en="Return the batch first", zh="返回时让批次在最前"), RIGHT),
        (
            say(en="`batch_first=True` for the hidden state", zh="给隐藏状态写 `batch_first=True`"),
            say(en="no hidden state enters or leaves this model", zh="没有隐藏状态进出这个模型"),
        ),
    ],
    solution=lambda: say(
        en="What leaves `forward` must have the batch on dimension 0, where gather joins.",
        zh="离开 `forward` 的张量，批次要在第 0 维，因为收集就在那里拼接。",
    ),
)

choice(
    "06.cured",
    lambda: say(en="Which shape comes out of the wrapped model now?", zh="现在包装后的模型输出什么形状？"),
    lambda: [
        (
            "[65, 32, 5530]",
            say(
                en="that is the columns first, as before the cure: `forward` now ends in `transpose(0, 1)`",
                zh="这是列在最前，和治之前一样：现在 `forward` 最后有 `transpose(0, 1)`",
            ),
        ),
        ("[32, 65, 5530]", RIGHT),
        (
            "[16, 130, 5530]",
            say(
                en="each replica returns [16, 65, 5530]; which dimension does gather make longer?",
                zh="每个副本返回 [16, 65, 5530]；收集会让哪一维变长？",
            ),
        ),
    ],
    solution=lambda: say(
        en="Two outputs of [16, 65, 5530] are joined along dimension 0, and that is the batch now.",
        zh="两份 [16, 65, 5530] 沿第 0 维拼接，而这一维现在就是批次。",
    ),
)

choice(
    "06.album",
    lambda: say(
        en="A list of six images on two GPUs: what comes out?", zh="六幅图像的列表，两块 GPU：得到什么？"
    ),
    lambda: [
        (
            say(en="Six numbers, three from each GPU", zh="六个数，每块 GPU 三个"),
            say(
                en="that would cut the list; scatter walks into it and cuts each tensor in it",
                zh="那是把列表切开；分发会走进列表，把里面每个张量都切开",
            ),
        ),
        (say(en="Twelve numbers", zh="十二个数"), RIGHT),
        (
            say(en="An error", zh="报错"),
            say(
                en="every image has channels to cut, so nothing fails",
                zh="每幅图像都有通道可切，所以什么错也不报",
            ),
        ),
    ],
    solution=lambda: say(
        en="Every image is cut along its channels, so both replicas have some channels of all six, and each "
        "returns six numbers.",
        zh="每幅图像都沿通道切开，两个副本各有六幅图像的一部分通道，各返回六个数。",
    ),
)

choice(
    "06.table",
    lambda: say(
        en="Eight rows and a table of ten on two GPUs: what comes out?",
        zh="八行数据和十行的表，两块 GPU：得到什么？",
    ),
    lambda: [
        (
            say(en="0 to 7, as on one GPU", zh="0 到 7，和一块 GPU 上一样"),
            say(
                en="only if each replica had the whole table; but every tensor among the inputs is cut",
                zh="除非每个副本都有整张表；可输入里的每个张量都会被切开",
            ),
        ),
        (say(en="Eight numbers, the second half wrong", zh="八个数，后一半是错的"), RIGHT),
        (
            say(en="An error: rows and table do not fit", zh="报错：行和表对不上"),
            say(
                en="four rows and five lines of a table fit each other well: that is why nobody notices",
                zh="四行数据和五行的表完全对得上，所以没有人发现",
            ),
        ),
    ],
    solution=lambda: say(
        en="The second replica has the lower half of the table, and counts from its own row 0.",
        zh="第二个副本只有下半张表，行号从它自己的第 0 行数起。",
    ),
)

choice(
    "06.uncut",
    lambda: say(
        en="8 rows of ones and the list `[1, 2, 3, 4, 5, 0, 1, 2]`: what does `Bags` give on two GPUs?",
        zh="8 行全是 1，列表是 `[1, 2, 3, 4, 5, 0, 1, 2]`：在两块 GPU 上，`Bags` 得到什么？",
    ),
    lambda: [
        (
            "[1, 2, 3, 4, 5, 0, 1, 2]",
            say(
                en="that would need the list to be cut like the rows; scatter cuts tensors, nothing else",
                zh="除非列表和行一样被切开；分发只切张量，别的都不切",
            ),
        ),
        ("[1, 2, 3, 4, 1, 2, 3, 4]", RIGHT),
        (
            say(en="An error: 4 rows and 8 numbers", zh="报错：4 行对 8 个数"),
            say(
                en="each replica takes as many of the 8 as it has rows, and says nothing",
                zh="副本有几行，就从 8 个里取几个，一声不响",
            ),
        ),
    ],
    solution=lambda: say(
        en="Both replicas have the whole list, and both begin at its first number.",
        zh="两个副本拿到的都是完整的列表，都从第一个数用起。",
    ),
)

choice(
    "06.dropped",
    lambda: say(
        en="8 rows and a `scale` of [1, 5]: which shape does `Scaled` give on two GPUs?",
        zh="8 行，`scale` 是 [1, 5]：在两块 GPU 上，`Scaled` 得到什么形状？",
    ),
    lambda: [
        (
            "[8, 5]",
            say(
                en="for that the second replica would need a `scale` too; how many pieces does one row make?",
                zh="那第二个副本也得有一份 `scale`；一行能切出几个分块？",
            ),
        ),
        ("[4, 5]", RIGHT),
        (
            say(en="An error: the second replica has no scale", zh="报错：第二个副本没有 scale"),
            say(
                en="there is no second replica: PyTorch makes as many as there are pieces of every input",
                zh="根本没有第二个副本：每个输入都有分块，才会有一个副本",
            ),
        ),
    ],
    solution=lambda: say(
        en="One row is one piece, so one replica runs, on the first 4 rows. The others are dropped without a word.",
        zh="一行只有一个分块，所以只有一个副本运行，处理前 4 行。其余的行不声不响地丢弃了。",
    ),
)

choice(
    "06.axis",
    lambda: say(
        en="[6 steps, 8 rows, 5] on two GPUs, `dim` not set: what does the reader return?",
        zh="[6 步, 8 行, 5]，两块 GPU，不写 `dim`：识别器返回什么？",
    ),
    lambda: [
        (
            say(en="[6, 8, 6], as on one GPU", zh="[6, 8, 6]，和一块 GPU 上一样"),
            say(
                en="the shape is right; but which steps does the second GPU see, and what does its RNN know then?",
                zh="形状是对的；但第二块 GPU 看到的是哪几步，它的 RNN 那时记得什么？",
            ),
        ),
        (say(en="[6, 8, 6], half of the values wrong", zh="[6, 8, 6]，一半的数值是错的"), RIGHT),
        (
            "[12, 4, 6]",
            say(
                en="that would be rows shared out and joined along the steps; here the steps are shared out",
                zh="那是把行分开、再沿时间步拼起来；这里分开的是时间步",
            ),
        ),
        (
            say(en="An error", zh="报错"),
            say(
                en="3 steps are a sequence like any other, and [3, 8, 6] twice fits along dimension 0",
                zh="3 步也是一个正常的序列，两份 [3, 8, 6] 沿第 0 维正好拼得上",
            ),
        ),
    ],
    solution=lambda: say(
        en="The second replica begins with step 3 as if it were the first: what came before is unknown to it.",
        zh="第二个副本把第 3 步当成第一步，之前的内容它一无所知。",
    ),
)

choice(
    "06.silent",
    lambda: say(
        en="Numbers 1, 2 and 6 of the models below: which gives the right shape and wrong values?",
        zh="看下面的第 1、2、6 个模型：哪一个形状没变、数值却错了？",
    ),
    lambda: [
        (
            say(en="The average over the batch (1)", zh="对整个批次求平均（1）"),
            say(
                en="it returns [3]; two GPUs return one each, which gather makes [6]",
                zh="它返回 [3]；两块 GPU 各返回一份，收集成了 [6]",
            ),
        ),
        (say(en="The average taken off (2)", zh="减去批次的平均值（2）"), RIGHT),
        (
            say(en="The batch size written into the model (6)", zh="把批量大小写死在模型里（6）"),
            say(
                en="4 rows of 3 numbers cannot be viewed as [8, 3]: that is an error",
                zh="4 行、每行 3 个数，`view` 不成 [8, 3]：会报错",
            ),
        ),
    ],
    solution=lambda: say(
        en="Each replica takes off the average of its own 4 rows: still [8, 3], other values.",
        zh="每个副本减去的是自己那 4 行的平均值：形状还是 [8, 3]，数值变了。",
    ),
)

choice(
    "06.dim",
    lambda: say(
        en="`dim=1`, 4 time steps with 8 rows: which shape comes out on two GPUs?",
        zh="`dim=1`，时间步 4 个、8 行：在两块 GPU 上得到什么形状？",
    ),
    lambda: [
        (
            "[8, 5]",
            say(
                en="that would be joined along dimension 0; with `dim=1` outputs are joined along dimension 1 as well",
                zh="那是沿第 0 维拼接；写了 `dim=1`，输出也沿第 1 维拼接",
            ),
        ),
        ("[4, 10]", RIGHT),
        (
            say(en="An error", zh="报错"),
            say(
                en="two outputs of [4, 5] can be joined along dimension 1 without any error",
                zh="两份 [4, 5] 沿第 1 维拼接，一点错也不会报",
            ),
        ),
    ],
    solution=lambda: say(
        en="Each replica has 4 of the 8 rows and returns [4, 5], and these are joined along dimension 1.",
        zh="每个副本拿到 8 行里的 4 行，返回 [4, 5]，再沿第 1 维拼起来。",
    ),
)
