"""Broken models of text: sentences of different length, and a state that goes from call to call."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ...base.language import say
from ...base.tree import tensors
from . import models, repaired
from .judging import Hint, Problem, Seen
from .running import alike


def lengths_of(rows: int, generator: Generator, longest: int = 9) -> Tensor:
    """Of so many sentences: one is the longest, and all others are much shorter."""
    lengths = torch.randint(1, longest - 3, (rows,), generator=generator)
    lengths[torch.randint(rows, (1,), generator=generator)] = longest
    return lengths


def _sentences(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    lengths = lengths_of(rows, generator, int(torch.randint(7, 10, (1,), generator=generator)))
    tokens = torch.randint(1, 50, (rows, int(lengths.max())), generator=generator)
    return tokens.where(torch.arange(tokens.size(1)) < lengths.unsqueeze(1), 0), lengths


def _tagger(seen: Seen) -> Iterator[Hint]:
    if seen.failure and seen.failure.step == "gather":
        yield Hint(
            "own_length",
            say(
                en=f"{seen.on()}: replicas return different lengths, and gather cannot join them. Each pads to the "
                "longest sentence of its own piece: `lengths.max()` is the piece's, too. What does a replica still "
                "have that is as long as the longest of the whole batch?",
                zh=f"{seen.on()}：各副本返回的长度不一样，收集时拼不起来。"
                "每个副本都只填充到自己那个分块里最长的一句：`lengths.max()` 也只是这个分块的。副本手里还有什么，"
                "长度等于整个批次里最长的那一句？",
            ),
        )
    if seen.failure and "lengths" in seen.failure.words:
        yield Hint(
            "lengths_on_gpu",
            say(
                en="`pack_padded_sequence` wants the lengths on the CPU, and the inputs are on the GPU: "
                "`lengths.cpu()`",
                zh="`pack_padded_sequence` 要求长度在 CPU 上，而输入在 GPU 上：要写 `lengths.cpu()`",
            ),
        )
    if seen.failure or seen.at is None or not isinstance(seen.result, Tensor) or seen.result.dim() != 3:
        return
    got, right = seen.result.size(1), seen.right.size(1)
    if got > right:
        yield Hint(
            "fixed_length",
            say(
                en=f"{seen.on()}: the sentences are padded to {got} words; the longest of this batch has {right}, of "
                "the next another number. No fixed length is right for every batch",
                zh=f"{seen.on()}：句子填充到了 {got} 个词，而这个批次最长的一句是 {right} 个词，"
                "下一个批次又是别的数。写死一个长度，不可能每个批次都对",
            ),
        )
    if got < right:
        yield Hint(
            "cut_off",
            say(
                en=f"{seen.on()}: the result has {got} words to a sentence, the longest has {right}: its end is cut "
                "off, and its tags are gone",
                zh=f"{seen.on()}：结果里每句只有 {got} 个词，而最长的一句有 {right} 个：句尾被截掉，"
                "那里的标注也没有了",
            ),
        )
    if seen.alone and seen.result.shape == seen.right.shape:
        yield Hint(
            "padding_read",
            say(
                en="the shape is right, but on one GPU already the values are others: does the RNN read the padding? "
                "Its backward direction begins there. That is what packing is for",
                zh="形状对了，但在一块 GPU 上数值就已经变了：RNN 是不是把填充的位置也读进去了？"
                "它的反方向正是从那里开始读。打包（pack）就是为了避开它",
            ),
        )


TAGGER = Problem(
    "tagger",
    models.Tagger,
    repaired.Tagger,
    _sentences,
    _tagger,
    lambda: (
        say(
            en="One replica returns `[4, 7, 6]`, the other `[4, 3, 6]`. It works whenever every piece happens to have "
            "a sentence of the greatest length.",
            zh="一个副本返回 `[4, 7, 6]`，另一个返回 `[4, 3, 6]`。只有碰巧每个分块里都有一句最长的，才不出错。",
        ),
        say(
            en="Look at `pad_packed_sequence`: to which length does it pad, and whose longest sentence is that?",
            zh="看 `pad_packed_sequence`：它填充到多长？那是谁的最长一句？",
        ),
        say(
            en="`tokens` was padded before it was cut, so `tokens.size(1)` is the same in all replicas; "
            "`pad_packed_sequence` takes a `total_length`.",
            zh="`tokens` 在切开之前就已经填充好，所以 `tokens.size(1)` 在各副本里都一样；`pad_packed_sequence` "
            "有一个参数 `total_length`。",
        ),
    ),
    lambda: say(
        en="A length that a replica measures is its piece's; what was measured before the cut is the batch's.",
        zh="副本自己量出来的长度只属于它的分块；切开之前量好的，才属于整个批次。",
    ),
)


def _letters(rows: int, generator: Generator) -> tuple[Tensor | tuple[Tensor, ...], ...]:
    steps = int(torch.randint(3, 7, (1,), generator=generator))
    typed = torch.randint(0, 20, (rows, steps), generator=generator)
    state = torch.randn(2, 2, rows, 8, generator=generator)
    return typed, (state[0].clone(), state[1].clone())


def _typist(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        if "Expected hidden" in seen.failure.words:
            yield Hint(
                "state_cut",
                say(
                    en=f"{seen.on()}: `{seen.failure.words}`. The state has its layers first when it reaches the "
                    "LSTM, or had them first when it was cut. Where is it turned, before the cut or after it?",
                    zh=f"{seen.on()}：`{seen.failure.words}`。要么状态到 LSTM 手里时维度不对，"
                    "要么被切开时层数还在最前。它是在切开之前换的维度，还是之后？",
                ),
            )
        if "contiguous" in seen.failure.words:
            yield Hint(
                "contiguous",
                say(
                    en="a GPU's LSTM wants its state contiguous: after `transpose` that takes `.contiguous()`",
                    zh="GPU 上的 LSTM 要求状态在内存里连续：`transpose` 之后要加 `.contiguous()`",
                ),
            )
        return
    found = tensors(seen.result, "")
    if seen.at is None or found.keys() != tensors(seen.right, "").keys():
        return
    scores, *state = found.values()
    rows = seen.case.rows
    if all(part.dim() == 3 and part.size(0) == rows != 2 for part in state):
        yield Hint(
            "not_turned_back",
            say(
                en=f"{seen.on()}: the state that comes out is {list(state[0].shape)}, rows first. Whoever calls the "
                "model gives it to the next call as it is: after the join, turn it back",
                zh=f"{seen.on()}：返回的状态是 {list(state[0].shape)}，行在最前。调用者会把它原样交给下一次调用："
                "拼接之后要换回来",
            ),
        )
    if any(part.shape != right.shape for part, right in zip(state, seen.right[1], strict=True)):
        yield Hint(
            "state_joined",
            say(
                en=f"{seen.on()}: the state that goes in is mended, the one that comes out is "
                f"{list(state[0].shape)}: gather joined it along its layers",
                zh=f"{seen.on()}：进去的状态修好了，出来的却是 {list(state[0].shape)}：收集把它沿层数拼起来了",
            ),
        )
    typed, first = seen.given
    if alike(seen.result, seen.would_give(typed, tuple(torch.zeros_like(part) for part in first))):
        yield Hint(
            "state_unused",
            say(
                en=f"{seen.on()}: the result is that of a state of zeros: the one that is given is not used, and the "
                "typist forgets what came before",
                zh=f"{seen.on()}：结果等于从全零状态开始：给它的状态没有用上，前面打过的字全忘了",
            ),
        )
    if scores.shape == seen.right[0].shape:
        yield Hint(
            "reshaped",
            say(
                en=f"{seen.on()}: shapes are right, values are not. `reshape` and `view` only cut the numbers up "
                "anew; `transpose` swaps dimensions",
                zh=f"{seen.on()}：形状都对，数值不对。`reshape` 和 `view` 只是把数重新分段；交换维度要用 `transpose`",
            ),
        )


TYPIST = Problem(
    "typist",
    models.Typist,
    repaired.Typist,
    _letters,
    _typist,
    lambda: (
        say(
            en="The LSTM wants a state of `[2, 4, 8]` and gets `[1, 8, 8]`.",
            zh="LSTM 要的状态是 `[2, 4, 8]`，拿到的是 `[1, 8, 8]`。",
        ),
        say(
            en="`batch_first=True` is about `output`, not about `state`. Look at dimension 0 of the state in all "
            "places: as it enters, as it leaves.",
            zh="`batch_first=True` 只管 `output`，不管 `state`。看状态的第 0 维，进来时和出去时都要看。",
        ),
        say(
            en="Four turns with `transpose(0, 1)`: `before` makes the state rows first, `forward` turns it for the "
            "LSTM (with `.contiguous()`) and back, `after` restores what the caller knows.",
            zh="一共用四次 `transpose(0, 1)`：`before` 把状态换成行在最前；`forward` 为 LSTM 换过去（加 "
            "`.contiguous()`），算完再换回来；`after` 恢复成调用者熟悉的样子。",
        ),
    ),
    lambda: say(
        en="Whatever crosses the wrapper has its rows first, in both directions; what is inside and outside is free.",
        zh="凡是穿过包装的东西，来回都要行在最前；里面和外面怎么放都行。",
    ),
)
