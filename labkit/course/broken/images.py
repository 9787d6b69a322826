"""Broken models of images: photos of different size, and photos that are told apart by one another."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...base.language import say
from . import models, repaired
from .judging import Hint, Problem, Seen
from .running import alike


def _photos(rows: int, generator: Generator) -> tuple[list[Tensor], ...]:
    sizes = torch.randint(4, 10, (rows, 2), generator=generator).tolist()
    return ([torch.rand(3, height, width, generator=generator) for height, width in sizes],)


def padded(photos: list[Tensor]) -> list[Tensor]:
    """All of one size, with zeros at the right and below."""
    height, width = (max(photo.size(dim) for photo in photos) for dim in (1, 2))
    return [F.pad(photo, (0, width - photo.size(2), 0, height - photo.size(1))) for photo in photos]


def _photo_hints(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        words, step = seen.failure.words, seen.failure.step
        if step == "before" and ("stack" in words or "Sizes of tensors" in words):
            yield Hint(
                "unequal",
                say(
                    en="photos of different size do not fit into one tensor as they are: they have to be padded "
                    "first, and `forward` has to know which part is photo",
                    zh="大小不同的照片不能直接叠成一个张量：要先填充成一样大，而且 `forward` 得知道哪一部分才是照片",
                ),
            )
        if step == "forward" and "channels" in words:
            yield Hint(
                "channels",
                say(
                    en=f"{seen.on()}: a list is not cut between its photos: scatter walks into it and cuts every "
                    "photo along its channels. The photos must reach the wrapper as one tensor",
                    zh=f"{seen.on()}：列表不会在照片与照片之间切开：分发会走进列表，把每张照片都沿通道切开。"
                    "照片要以一个张量的形式交给包装",
                ),
            )
        return
    if seen.at is None or not isinstance(seen.result, Tensor):
        return
    if seen.result.size(0) != seen.case.rows:
        yield Hint(
            "list_cut",
            say(
                en=f"{seen.on()}: {seen.case.rows} photos give {seen.result.size(0)} results: a list of tensors was "
                "cut along the channels of each photo, not between photos",
                zh=f"{seen.on()}：{seen.case.rows} 张照片得到 {seen.result.size(0)} 个结果："
                "列表里的每个张量都被沿通道切开，而不是在照片之间切开",
            ),
        )
    if seen.alone and alike(seen.result, seen.would_give(padded(seen.given[0]))):
        yield Hint(
            "padding_counted",
            say(
                en="the padding is averaged with the photo: small photos get paler. Its size must come along, so "
                "that `forward` can leave the padding out",
                zh="取平均时把填充的部分也算进去了，小照片因此变淡。照片的大小要一起传进来，`forward` "
                "才能把填充的部分去掉",
            ),
        )
    if seen.alone:
        yield Hint(
            "changed",
            say(
                en="on one GPU already the scores are others than before: is every photo still seen whole, in its "
                "own size, and nothing beside it? (Scaling or cropping is another model.)",
                zh="在一块 GPU 上分数就已经变了：每张照片是不是仍按自己的大小、完整地参与计算，而且没有混进别的东西？"
                "（缩放或裁剪就成了另一个模型。）",
            ),
        )


PHOTOS = Problem(
    "photos",
    models.Photos,
    repaired.Photos,
    _photos,
    _photo_hints,
    lambda: (
        say(
            en="Each replica gets all the photos: one with two of the three channels, the other with one.",
            zh="每个副本都拿到了全部照片：一个拿到每张的两个通道，另一个拿到剩下的一个。",
        ),
        say(
            en="Scatter cuts tensors along dimension 0, and walks into lists to find them. What would have the "
            "photos on dimension 0?",
            zh="分发沿第 0 维切开张量，遇到列表就走进去找张量。什么样的东西，第 0 维才对应照片？",
        ),
        say(
            en="`before` pads all photos to one size, stacks them, and returns the sizes as a second tensor; "
            "`forward` cuts each photo out of its padding again.",
            zh="`before` 把照片填充到同样大小，叠成一个张量，再把原来的大小作为第二个张量返回；`forward` "
            "再从填充后的图里把每张照片裁出来。",
        ),
    ),
    lambda: say(
        en="A batch of unequal things travels as one tensor and their sizes: so do sentences, sounds and point "
        "clouds.",
        zh="大小不一的东西组成批次，就用“一个张量加各自的大小”来传：句子、声音、点云都是如此。",
    ),
)


def _captions(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    return torch.randn(rows, 12, generator=generator), torch.randn(rows, 6, generator=generator)


def _pair_hints(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        if (
            seen.failure.step == "gather"
            or "out of bounds" in seen.failure.words
            or "batch_size" in seen.failure.words
            or "device-side assert" in seen.failure.words
        ):
            yield Hint(
                "square",
                say(
                    en=f"{seen.on()}: the table of scores is square only in a piece. Joined, its rows have as many "
                    "columns as the piece had captions, not as many as the batch has",
                    zh=f"{seen.on()}：分数表只有在一个分块里才是方的。拼起来之后，"
                    "每一行的列数是分块里说明文字的条数，不是整个批次的条数",
                ),
            )
        return
    if seen.at is None:
        return
    if not isinstance(seen.result, Tensor) or seen.result.numel() != 1:
        yield Hint(
            "no_loss",
            say(
                en=f"{seen.on()}: training wants one number, the loss, from `after`",
                zh=f"{seen.on()}：训练需要 `after` 给出一个数，也就是损失",
            ),
        )
    if not seen.alone:
        yield Hint(
            "own_piece",
            say(
                en=f"{seen.on()}: each photo is still compared with the captions of its own piece only: fewer wrong "
                "ones, an easier question, a smaller loss. No weighting of the losses brings the others back. What "
                "would have to be gathered instead?",
                zh=f"{seen.on()}：每张照片仍然只和自己分块里的说明文字比较：错误选项少了，题目变容易，损失也就变小。"
                "给损失加权，也找不回缺少的那些选项。那应该收集什么？",
            ),
        )
    yield Hint(
        "other_loss",
        say(
            en="on one GPU already the loss is another than before: are both sides normalised, is `scale` in it, "
            "and is photo i's own caption number i?",
            zh="在一块 GPU 上损失就已经变了：两边都归一化了吗？乘 `scale` 了吗？第 i 张照片对应的是第 i "
            "条说明文字吗？",
        ),
    )


PAIRS = Problem(
    "pairs",
    models.Pairs,
    repaired.Pairs,
    _captions,
    _pair_hints,
    lambda: (
        say(
            en="The more GPUs, the smaller the loss, though the weights are the same.",
            zh="权重没变，GPU 越多，损失却越小。",
        ),
        say(
            en="Look at `photos @ captions.T`: how many captions does a photo meet in a replica, and how many on "
            "one GPU?",
            zh="看 `photos @ captions.T`：在副本里一张照片遇到几条说明文字？在一块 GPU 上呢？",
        ),
        say(
            en="`forward` returns the two normalised tensors, row by row; gather joins them, and `after` computes "
            "the scores and the loss of the whole batch.",
            zh="`forward` 返回两个归一化后的张量，每行各一份；收集把它们拼起来，`after` 再对整个批次算分数和损失。",
        ),
    ),
    lambda: say(
        en="Where rows look at one another, the wrapper may hold only what each row does alone.",
        zh="行与行之间互相比较的计算，不能放进包装；包装里只放每一行自己就能算的部分。",
    ),
)
