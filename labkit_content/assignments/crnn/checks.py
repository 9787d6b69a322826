"""Hints for wrong answers, and the student's ``check(...)``, which tries open examples.

Each check yields hints from the most specific to the least; only the first is shown, and none means right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from labkit_classroom.checking import Student, visible
from labkit_classroom.judging import NoAnswer, read, same
from labkit_classroom.verdict import Hint
from labkit_course.kinds import A_SHAPE, SOME_WHOLE_NUMBERS

from . import drivers

Numbers = Mapping[str, Any]


def wrong_shape(name: str, got: object, gpus: int, numbers: Numbers) -> Iterator[Hint]:
    """Check the shape of an output on ``gpus`` GPUs."""
    images, columns, characters = (numbers[key] for key in ("images", "columns", "characters"))
    shape = list(read(A_SHAPE, got, en=f"`{name}`", zh=f"`{name}` "))
    right = [gpus * columns, images // gpus, characters]
    if shape == right:
        return
    if shape == [columns, images, characters]:
        yield Hint(
            "one-gpu",
            f"`{name}` is what one GPU gives; gather does not know that your batch is on dimension 1",
            f"`{name}` 是一块 GPU 上的结果；收集并不知道你的批次在第 1 维",
        )
    if shape == [columns, images // gpus, characters]:
        yield Hint(
            "replica",
            f"`{name}` is the output of one replica; gather joins all of them",
            f"`{name}` 是一个副本的输出；收集要把所有的拼起来",
        )
    if shape == [gpus * columns, images, characters]:
        yield Hint(
            "not-cut",
            f"`{name}`: dimension 0 is right, but each replica sees only its part of the images",
            f"`{name}`：第 0 维对了，但每个副本只看到自己那部分图像",
        )
    if shape[0] == images:
        yield Hint(
            "batch-first",
            f"`{name}` has the batch first; this model returns the columns first, and nobody turns them round",
            f"`{name}` 把批次放在最前；可这个模型返回时列在最前，没有谁把它换回来",
        )
    yield Hint(
        "shape",
        f"`{name}`: how many images does a replica get, what does it return, and along which dimension are the outputs "
        "joined?",
        f"`{name}`：一个副本拿到几幅图像，返回什么形状，这些输出又沿哪一维拼接？",
    )


def wrong_place(got: object, numbers: Numbers) -> Iterator[Hint]:
    """Checks the image and the column of a place in the output."""
    images, columns, row, place = (numbers[key] for key in ("images", "columns", "row", "place"))
    pair = read(SOME_WHOLE_NUMBERS, got, en="`image_and_column`", zh="`image_and_column` ")
    # ``row`` is in the second replica's part, whose images begin at images // 2 and whose columns begin anew.
    image, column = images // 2 + place, row - columns
    if pair == (image, column):
        return
    if pair == (column, image):
        yield Hint(
            "swapped", "that is the column first; the image comes first", "先写了列；应该先写图像", score=0.5
        )
    if pair == (place, row):
        yield Hint(
            "as-one",
            f"an image has only {columns} columns: what comes after them along dimension 0?",
            f"一幅图像只有 {columns} 列：沿第 0 维，这些列之后是什么？",
        )
    if len(pair) == 2 and pair[1] == column:
        yield Hint(
            "image",
            f"the column is right; but from row {columns} on, the images of the second replica begin at {images // 2}",
            f"列是对的；但从第 {columns} 行起，是第二个副本的图像，从 {images // 2} 号开始",
            score=0.5,
        )
    if len(pair) == 2 and pair[0] == image:
        yield Hint(
            "column",
            "the image is right; but the columns begin at 0 again in the second replica",
            "图像是对的；但第二个副本的列又从 0 开始",
            score=0.5,
        )
    yield Hint(
        "place",
        "first find the replica whose part of dimension 0 this is; then the column, and the image, within it",
        "先看第 0 维的这个位置属于哪个副本；再在这个副本里找列和图像",
    )


def wrong_reader(got: object, right: Tensor | None, images: int, numbers: Numbers) -> Iterator[Hint]:
    """Checks the reader's output on one device; ``right`` (None: unknown) is [images, columns, ...]."""
    wanted = [images, numbers["columns"], numbers["characters"]]
    output = tensor(got, "forward")
    shape = list(output.shape)
    if shape == [wanted[1], wanted[0], wanted[2]]:
        yield Hint(
            "columns-first",
            f"{images} images still give {shape}: two GPUs would double the columns",
            f"{images} 幅图像得到的还是 {shape}：两块 GPU 会让列数翻倍",
        )
    if shape != wanted:
        yield Hint(
            "reader-shape",
            f"{images} images give {shape}; {wanted} is wanted",
            f"{images} 幅图像得到 {shape}；应该是 {wanted}",
        )
    if right is None or same(output, right, 1e-3):
        return
    if same(output.flatten(), right.transpose(0, 1).flatten(), 1e-3):
        yield Hint(
            "reshape",
            "the shape is right, but the scores are in other places: `reshape` and `view` cut the numbers up anew; "
            "`transpose` and `permute` swap dimensions",
            "形状对了，但分数放错了位置：`reshape` 和 `view` 只是把数重新分段；交换维度要用 `transpose` 或 `permute`",
        )
    yield Hint(
        "along-images",
        "the shape is right, but the scores are others: does the RNN still go along the columns, or along the images "
        "(`batch_first`)?",
        "形状对了，但分数变了：RNN 还是沿着列走吗？会不会变成沿着图像走了（`batch_first`）？",
    )


def differs_from_one_gpu(got: object, right: Tensor, gpus: int) -> Iterator[Hint]:
    """Check the output on several GPUs when the output on one is right."""
    output = tensor(got, "forward")
    if not same(output, right, 1e-3):
        yield Hint(
            "several",
            f"{len(right)} images on {gpus} GPUs give {list(output.shape)} or other values than on one: does `forward` "
            "rely on the number of images?",
            f"{len(right)} 幅图像在 {gpus} 块 GPU 上得到 {list(output.shape)}，或者值和一块上的不同：`forward` 里是不是"
            "用到了图像的总数？",
        )


KEYS = Hint(
    "keys",
    "the names of the parameters have changed: trained weights no longer load (a model inside a model puts a prefix before "
    "every name)",
    "参数的名字变了，训练好的权重无法加载（把模型放进另一个模型里，每个名字前面都会多出前缀）",
)


def wrong_strips(got: Any, right: list[tuple[Tensor, Tensor]], gpus: int) -> Iterator[Hint]:
    """Checks scores and hidden states, strip after strip."""
    on_en, on_zh = (f"on {gpus} GPUs", f"在 {gpus} 块 GPU 上") if gpus else ("on one device", "在一个设备上")
    for at, ((scores, hidden), (right_scores, right_hidden)) in enumerate(zip(got, right, strict=True)):
        scores, hidden = tensor(scores, "forward"), tensor(hidden, "forward")
        layers_first = right_hidden.transpose(0, 1).shape
        if hidden.shape == layers_first and hidden.shape != right_hidden.shape:
            yield Hint(
                "layers-first",
                f"{on_en} the hidden state comes out as {list(hidden.shape)}, its layers first: `batch_first` is about "
                "input and output only",
                f"{on_zh}，返回的隐藏状态是 {list(hidden.shape)}，层数在最前：`batch_first` 只管输入和输出",
            )
        if hidden.shape != right_hidden.shape:
            yield Hint(
                "hidden-shape",
                f"{on_en} the hidden state comes out as {list(hidden.shape)}; {list(right_hidden.shape)} is wanted",
                f"{on_zh}，返回的隐藏状态是 {list(hidden.shape)}；应该是 {list(right_hidden.shape)}",
            )
        if not same(hidden, right_hidden, 1e-4) and same(
            hidden.flatten().sort().values, right_hidden.flatten().sort().values, 1e-4
        ):
            yield Hint(
                "hidden-reshape",
                "the hidden state has the right shape, but its numbers are in other places: `reshape` and `view` do not "
                "swap dimensions",
                "隐藏状态的形状对了，数却放错了位置：`reshape` 和 `view` 并不交换维度",
            )
        if not same(scores, right_scores, 1e-4) or not same(hidden, right_hidden, 1e-4):
            if at == 0:
                yield Hint(
                    "first-strip",
                    f"{on_en} the first strip's scores or hidden state are wrong",
                    f"{on_zh}，第一段的分数或隐藏状态不对",
                )
            yield Hint(
                "forgotten",
                f"{on_en} strip {at + 1} does not go on from where strip {at} ended: is `hidden` used, its dimensions "
                "swapped?",
                f"{on_zh}，第 {at + 1} 段没有接着第 {at} 段往下算：`hidden` 用上了吗，维度换过来了吗？",
            )


def wrong_nearest(got: object, right: Tensor, gpus: int) -> Iterator[Hint]:
    found = tensor(got, "forward")
    if same(found, right):
        return
    got_rows, right_rows = found.flatten().tolist()[:8], right.tolist()[:8]
    if gpus:
        yield Hint(
            "nearest",
            f"on {gpus} GPUs the numbers are {got_rows} …, on one they are {right_rows} …",
            f"在 {gpus} 块 GPU 上得到行号 {got_rows} …，在一块上是 {right_rows} …",
        )
    yield Hint(
        "nearest",
        f"the numbers are {got_rows} …, {right_rows} … would be right",
        f"得到的行号是 {got_rows} …，应该是 {right_rows} …",
    )


def wrong_saved(got: Any, table: Tensor) -> Iterator[Hint]:
    """Checks that the table is saved with the model."""
    if not any(same(value, table) for value in got["saved"]):
        yield Hint(
            "unsaved",
            "the table is not in `state_dict()`: a plain attribute is not saved, nor moved by `.to`, nor replicated; a "
            "buffer is",
            "`state_dict()` 里没有这张表：普通的属性不会保存，`.to` 不会移动它，复制时也不会拷贝；缓冲区才会",
        )


def wrong_table(got: Any) -> Iterator[Hint]:
    """Checks that the table goes along, and is not trained."""
    if got["parameters"]:
        yield Hint(
            "trained",
            "the table is a parameter: the optimizer would change it",
            "这张表成了参数：优化器会改动它",
        )
    if set(got["places"]) != {"cuda:1"}:
        yield Hint(
            "left-behind",
            "after `model.to('cuda:1')` the table is not there",
            "`model.to('cuda:1')` 之后，表没有跟过去",
        )


def wrong_loss(got: object, right: Tensor) -> Iterator[Hint]:
    loss = tensor(got, "ctc")
    if loss.dim():
        yield Hint(
            "no-mean",
            f"the loss is {list(loss.shape)}; one number for the whole batch is wanted",
            f"损失的形状是 {list(loss.shape)}；要的是整个批次的一个数",
        )
    if not same(loss, right, 1e-3):
        yield Hint(
            "loss",
            f"the loss is {float(loss):.4f}, {float(right):.4f} is that of the whole batch: are these log-probabilities "
            "(over the characters), the columns first, and is the number of columns right?",
            f"损失是 {float(loss):.4f}，整个批次的应该是 {float(right):.4f}：传进去的是（对字符取的）对数概率吗？"
            "列在最前吗？列数对吗？",
        )


def tensor(got: object, name: str) -> Tensor:
    """Gives ``got`` if it is a tensor; else ends the judging."""
    if isinstance(got, Tensor):
        return got
    if got is None or got is ...:
        raise NoAnswer(Hint("nothing", f"`{name}` gives nothing back yet", f"`{name}` 还没有返回任何东西"))
    raise NoAnswer(
        Hint(
            "kind",
            f"`{name}` should return a tensor here, not a {type(got).__name__}",
            f"`{name}` 在这里应该返回张量，而不是 {type(got).__name__}",
        )
    )


@visible(
    "shape",
    "two_gpus",
    "four_gpus",
    "image_and_column",
    en="two shapes, such as `[1, 2, 3]`, and a pair, such as `[4, 5]`",
    zh="两个形状（例如 `[1, 2, 3]`）和一对数（例如 `[4, 5]`）",
)
def _shape(student: Student) -> Iterator[Hint]:
    numbers = student["numbers"]
    yield from wrong_shape("two_gpus", student["two_gpus"], 2, numbers)
    yield from wrong_shape("four_gpus", student["four_gpus"], 4, numbers)
    yield from wrong_place(student["image_and_column"], numbers)


@visible(
    "repaired",
    "Repaired",
    en="the class `Repaired`, not an object of it",
    zh="类 `Repaired` 本身，不是它的对象",
)
def _check_repaired(student: Student) -> Iterator[Hint]:
    numbers = student["numbers"]
    torch.manual_seed(0)
    images = torch.randn(3, 1, 32, numbers["width"])
    state = student["Repaired"]().state_dict()
    alone = drivers.reader(student, state, images, 0)["output"]
    yield from wrong_reader(alone, None, 3, numbers)
    single = [drivers.reader(student, state, image[None], 0)["output"][0] for image in images]
    yield from wrong_reader(alone, torch.stack(single), 3, numbers)
    yield from differs_from_one_gpu(drivers.reader(student, state, images, 2)["output"], alone, 2)


@visible(
    "stream", "Stream", en="the class `Stream`, not an object of it", zh="类 `Stream` 本身，不是它的对象"
)
def _stream(student: Student) -> Iterator[Hint]:
    torch.manual_seed(0)
    state = student["Stream"]().state_dict()
    strips = torch.randn(2, 3, 4, 4)
    ((_, hidden),) = drivers.stream(student, state, list(strips[:1]), 0, None)
    if list(tensor(hidden, "forward").shape) == [2, 3, 6]:
        # For the hint "layers-first" alone: the hidden state stands in for the scores, too.
        yield from wrong_strips([(hidden, hidden)], [(hidden, hidden.transpose(0, 1))], 0)
    one = drivers.stream(student, state, list(strips), 0, None)
    yield from wrong_strips(drivers.stream(student, state, list(strips), 2, None), one, 2)


@visible(
    "nearest", "Nearest", en="the class `Nearest`, not an object of it", zh="类 `Nearest` 本身，不是它的对象"
)
def _nearest(student: Student) -> Iterator[Hint]:
    table = torch.eye(10)
    for gpus in (0, 2):
        yield from wrong_nearest(drivers.nearest(student, table, table[:8], gpus), torch.arange(8), gpus)
    yield from wrong_saved(drivers.nearest_state(student, table), table)


@visible(
    "ctc",
    "ctc",
    en="a function of `model`, `images`, `targets` and `lengths`",
    zh="一个以 `model`、`images`、`targets`、`lengths` 为参数的函数",
)
def _ctc(student: Student) -> Iterator[Hint]:
    images = torch.arange(60.0).reshape(3, 5, 4).sin()
    targets, lengths = torch.tensor([[1, 2], [3, 0], [2, 2]]), torch.tensor([2, 1, 2])
    got = drivers.ctc(student, torch.eye(4), images, targets, lengths, 2)
    yield from wrong_loss(
        got["loss"], torch.tensor(2.8746)
    )  # F.ctc_loss of these inputs, without DataParallel
