"""Broken models in training: a loss whose mean is taken too early, and layers that nobody knows of."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ...base.language import say
from . import models, repaired
from .judging import Hint, Problem, Seen
from .running import alike, parts
from .text import lengths_of


def _text(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    lengths = lengths_of(rows, generator)
    tokens = torch.randint(0, 30, (rows, 9), generator=generator)
    targets = torch.randint(0, 30, (rows, 9), generator=generator)
    return tokens, targets.where(torch.arange(9) < lengths.unsqueeze(1), -1)


def _word_hints(seen: Seen) -> Iterator[Hint]:
    if seen.failure:
        if "'float' object" in seen.failure.words:
            yield Hint(
                "plain_number",
                say(
                    en=f"{seen.on()}: gather joins tensors. A plain number (`.item()`, `float()`) cannot be joined, "
                    "and carries no gradient",
                    zh=f"{seen.on()}：收集只会拼接张量。普通的数（`.item()`、`float()`）拼不起来，也不带梯度",
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
        return
    got = seen.result.reshape(())
    tokens, targets = seen.given
    words = (targets != -1).sum()
    rows = torch.stack(
        [seen.would_give(t, w) for t, w in zip(tokens.split(1), targets.split(1), strict=True)]
    )
    counts = (targets != -1).sum(dim=1)
    if alike(got, rows.mean()):
        yield Hint(
            "by_sentence",
            say(
                en=f"{seen.on()}: every sentence counts the same, a word in a short one more than in a long one. "
                "The mean of one GPU is over words",
                zh=f"{seen.on()}：每句话占同样的比重，短句里的一个词比长句里的更重。一块 GPU 上的平均是按词算的",
            ),
        )
    if alike(got, (rows * counts).sum()):
        yield Hint(
            "sum",
            say(
                en=f"{seen.on()}: that is the sum over all words; it is still to be divided by their number, once",
                zh=f"{seen.on()}：这是所有词的总和；还要除以词数，只除一次",
            ),
        )
    if alike(got, (rows * counts).sum() / len(rows)) or alike(got, (rows * counts).sum() / targets.numel()):
        yield Hint(
            "divided_by_rows",
            say(
                en=f"{seen.on()}: the sum is right, the divisor is not: divide by the {int(words)} words that "
                "count, not by rows, nor by places that are padding",
                zh=f"{seen.on()}：总和对了，除数不对：要除以真正算数的 {int(words)} 个词，不是除以行数，"
                "也不把填充的位置算进去",
            ),
        )
    pieces = list(zip(parts(rows * counts, seen.case.gpus), parts(counts, seen.case.gpus), strict=True))
    means = torch.stack([total.sum() / count.sum() for total, count in pieces])
    sizes = torch.tensor([len(count) for _, count in pieces])
    if not seen.alone and (alike(got, means.mean()) or alike(got, (means * sizes).sum() / sizes.sum())):
        yield Hint(
            "mean_of_means",
            say(
                en=f"{seen.on()}: still a mean of the pieces' means, by piece or by row. The pieces have "
                f"{', '.join(str(int(count.sum())) for _, count in pieces)} words: a mean over words needs sums and "
                "counts",
                zh=f"{seen.on()}：仍然是各分块平均值的平均（按分块或按行加权）。各分块的词数是 "
                f"{', '.join(str(int(count.sum())) for _, count in pieces)}：要得到按词的平均，得有总和与个数",
            ),
        )
    if not seen.alone and alike(got, means.sum()):
        yield Hint(
            "added",
            say(
                en=f"{seen.on()}: that is the sum of the pieces' means: the more GPUs, the greater",
                zh=f"{seen.on()}：这是各分块平均值之和：GPU 越多，它越大",
            ),
        )


WORDS = Problem(
    "words",
    models.Words,
    repaired.Words,
    _text,
    _word_hints,
    lambda: (
        say(
            en="The loss is a little off, more so if long and short sentences lie in different pieces.",
            zh="损失差一点；长句和短句分在不同的分块里时，差得更多。",
        ),
        say(
            en="By what does `cross_entropy` divide in each replica, and with which weight does that mean enter "
            "`losses.mean()`?",
            zh="每个副本里 `cross_entropy` 除以的是什么？这个平均值又以多大的权重进入 `losses.mean()`？",
        ),
        say(
            en="`forward` returns sums and counts instead of a mean (for each row, or for each piece as `[1]`), and "
            "`after` divides the one total by the other.",
            zh="`forward` 不返回平均值，而是返回总和与个数（每行一份，或每个分块一份 `[1]`）；`after` "
            "把两个总数相除。",
        ),
    ),
    lambda: say(
        en="Sums and counts can be joined from pieces, means cannot: divide once, at the end.",
        zh="总和与个数可以由分块合起来，平均值不行：只除一次，放在最后。",
    ),
)


def _numbers(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    return (torch.randn(rows, 6, generator=generator),)


def _expert_hints(seen: Seen) -> Iterator[Hint]:
    names, wanted = seen.got.names.keys(), seen.want.names.keys()
    if names and not any("expert" in name or name not in wanted for name in names):
        yield Hint(
            "plain_list",
            say(
                en="`state_dict()` knows no experts. A plain list hides its layers: `.to()`, `parameters()`, saving "
                "and replicate pass them by. Which container do modules have for this?",
                zh="`state_dict()` 里没有这些专家层。普通列表会把里面的层藏起来：`.to()`、`parameters()`、保存、"
                "复制都看不见它们。模块该放进哪种容器？",
            ),
        )
    if names and wanted - names:
        yield Hint(
            "other_names",
            say(
                en="the experts are registered now, but under other names: their weights are to be saved as "
                "`experts.0.weight`, `experts.0.bias` and so on",
                zh="专家层已经登记了，但名字不对：它们的权重要以 `experts.0.weight`、`experts.0.bias` 等名字保存",
            ),
        )
    if seen.failure and ("same device" in seen.failure.words or "different from other" in seen.failure.words):
        yield Hint(
            "fixed_device",
            say(
                en=f"{seen.on()}: something is still put on one GPU, whichever the replica is on: `cuda:0` (or "
                "`.cuda(0)`) has no place in `forward`",
                zh=f"{seen.on()}：还有东西被固定放在一块 GPU 上，不管副本在哪里：`forward` 里不该出现 `cuda:0`（或 "
                "`.cuda(0)`）",
            ),
        )
    if seen.alone and seen.at is not None and not seen.failure:
        yield Hint(
            "mixed_otherwise",
            say(
                en="on one GPU already the answers are mixed otherwise than before: all experts answer, and each "
                "answer has its share of the softmax over experts",
                zh="在一块 GPU 上，混合的结果就已经和原来不同：每个专家都要作答，各答案按专家上的 softmax 比例相加",
            ),
        )


EXPERTS = Problem(
    "experts",
    models.Experts,
    repaired.Experts,
    _numbers,
    _expert_hints,
    lambda: (
        say(
            en="Replica 1 has its `x` on cuda:1, and meets a weight that is on cuda:0.",
            zh="副本 1 的 `x` 在 cuda:1 上，碰到的权重却在 cuda:0 上。",
        ),
        say(
            en="Print `Experts().state_dict().keys()`: which weights are not there?",
            zh="打印 `Experts().state_dict().keys()`：少了哪些权重？",
        ),
        say(
            en='`nn.ModuleList([...])` instead of the list; then `.to("cuda:0")` can go, and replicate, saving and '
            "the "
            "optimizer see the experts.",
            zh='把列表换成 `nn.ModuleList([...])`；这样 `.to("cuda:0")` 可以去掉，复制、'
            "保存和优化器也都看得见这些专家层了。",
        ),
    ),
    lambda: say(
        en="Only what is registered is moved, saved, trained and replicated.",
        zh="登记过的才会被移动、保存、训练和复制。",
    ),
)
