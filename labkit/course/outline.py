"""What the course consists of: its lessons, and the ten beliefs about DataParallel that they put right.

The one place where this stands: the index notebooks and the progress board are made from it, and a test
compares it with the notebooks themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.language import say
from .glossary import table


@dataclass(frozen=True)
class Entry:
    """A lesson: its notebook, its question, what it is for, and about how long it takes."""

    name: str
    question: str
    purpose: str
    minutes: int

    @property
    def number(self) -> str:
        """``"03"``."""
        return self.name.partition("_")[0]

    @property
    def title(self) -> str:
        """``"03 · Who gets which rows?"``: the heading of the notebook."""
        return f"{self.number} · {self.question}"


def lessons() -> tuple[Entry, ...]:
    """The lessons in order, in the language in use."""
    return (
        Entry(
            "00_start",
            say(en="What does my computer have?", zh="我的电脑上有什么？"),
            say(
                en="Real and simulated GPUs, what is simulated and what is not; a first split.",
                zh="真 GPU 与模拟 GPU；哪些是模拟的，哪些不是；第一次切分。",
            ),
            15,
        ),
        Entry(
            "01_dataset",
            say(en="Where do the rows come from?", zh="数据行从哪里来？"),
            say(
                en="A dataset and a DataLoader: full batches, a short last one, `drop_last`, shuffling.",
                zh="数据集与 DataLoader：装满的批次、不满的最后一批、`drop_last`、打乱顺序。",
            ),
            15,
        ),
        Entry(
            "02_wrap",
            say(en="What changes when I wrap a model?", zh="包装模型之后，什么变了？"),
            say(
                en="`nn.DataParallel` on 0, 1 and 2 GPUs: what `forward` sees inside and what you see outside.",
                zh="`nn.DataParallel` 在 0、1、2 块 GPU 上：`forward` 里面看到什么，外面看到什么。",
            ),
            20,
        ),
        Entry(
            "03_split",
            say(en="Who gets which rows?", zh="哪些行归谁？"),
            say(
                en="The rule of the split, the short piece, idle GPUs, and the order in which replicas print.",
                zh="切分的规则、不满的分块、空闲的 GPU，以及各副本打印的顺序。",
            ),
            20,
        ),
        Entry(
            "04_primitives",
            say(en="What happens in one call?", zh="一次调用里发生了什么？"),
            say(
                en="Scatter, replicate, parallel apply and gather, built by hand and equal to PyTorch's.",
                zh="亲手搭出分发、复制、并行执行、收集，结果与 PyTorch 相同。",
            ),
            25,
        ),
        Entry(
            "05_devices",
            say(en="Which GPU is home?", zh="主设备是哪一块？"),
            say(
                en="device_ids, output_device, loading weights: a clinic of PyTorch's exact error messages.",
                zh="device_ids、output_device、加载权重：PyTorch 报错的“门诊”，全用原文。",
            ),
            30,
        ),
        Entry(
            "06_batch_dim",
            say(en="Why is my output [130, 16, 5530]?", zh="为什么我的输出是 [130, 16, 5530]？"),
            say(
                en="Outputs that do not begin with the batch dimension: no error, wrong meaning; the cure.",
                zh="输出的第 0 维不是批次维度：不报错，意思却错了；怎么治。",
            ),
            30,
        ),
        Entry(
            "07_training",
            say(en="Is it still the same gradient?", zh="梯度还是原来的梯度吗？"),
            say(
                en="Proof of equal gradients; losses, BatchNorm, lost attributes, and what GPU 0's memory holds.",
                zh="证明梯度相同；损失、BatchNorm、丢失的属性，以及 0 号 GPU 的显存里装了什么。",
            ),
            35,
        ),
        Entry(
            "08_beyond",
            say(en="When is one process not enough?", zh="什么时候一个进程不够用？"),
            say(
                en="All-reduce as a star and as a ring; DDP with real processes; what a step costs, what ZeRO saves.",
                zh="星形与环形的全归约；用真正的多个进程运行 DDP；一步的代价；ZeRO 省下什么。",
            ),
            25,
        ),
        Entry(
            "09_broken",
            say(en="Can you repair ten broken models?", zh="十个出了毛病的模型，你能修好吗？"),
            say(
                en="Text, images, graphs, losses, caches: found and repaired without `diagnose`, for 100 points.",
                zh="文本、图像、图、损失、缓存：不用 `diagnose`，自己找出毛病并修好，满分 100。",
            ),
            90,
        ),
    )


@dataclass(frozen=True)
class Belief:
    """Something that learners believe about DataParallel, what is so instead, and the lesson that shows it."""

    belief: str
    instead: str
    lesson: str


def beliefs() -> tuple[Belief, ...]:
    """The ten, in the order in which the lessons meet them."""
    return (
        Belief(
            say(en="“Every GPU gets an equal share.”", zh="“每块 GPU 分到的一样多。”"),
            say(
                en="Pieces have ceil(rows / GPUs) rows: the last may be short, and GPUs after it are idle.",
                zh="每个分块 ⌈行数 / GPU 数⌉ 行：最后一个可能不满，再往后的 GPU 空闲。",
            ),
            "03_split",
        ),
        Belief(
            say(en="“A replica is a normal module.”", zh="“副本就是普通的模块。”"),
            say(
                en="It lives for one call: its weights are copies, and what `forward` stores on it is lost.",
                zh="它只存在于一次调用之中：权重是拷贝，`forward` 往它身上存的东西会丢失。",
            ),
            "04_primitives",
        ),
        Belief(
            say(en="“A saved model loads anywhere.”", zh="“存下来的模型到哪里都能加载。”"),
            say(
                en="A wrapped model's keys begin with `module.`; an unwrapped one does not know them.",
                zh="包装过的模型，键以 `module.` 开头；没有包装的模型不认识它们。",
            ),
            "05_devices",
        ),
        Belief(
            say(en="“Any GPU can be home.”", zh="“模型放在哪块 GPU 上都行。”"),
            say(
                en="Parameters and buffers must be on the first of `device_ids`.",
                zh="参数和缓冲区必须在 `device_ids` 的第一个设备上。",
            ),
            "05_devices",
        ),
        Belief(
            say(en="“It knows which dimension is my batch.”", zh="“DataParallel 知道哪一维是批次。”"),
            say(
                en="It cuts and joins along dimension 0, whatever that dimension means.",
                zh="它只沿第 0 维切开、拼接，不管那一维是什么意思。",
            ),
            "06_batch_dim",
        ),
        Belief(
            say(
                en="“`batch_first=True` takes care of the hidden state.”",
                zh="“`batch_first=True` 也管隐藏状态。”",
            ),
            say(
                en="A hidden state is (layers, batch, h) either way, so it is cut along its layers.",
                zh="隐藏状态的形状始终是（层数，批次，h），所以切开的是层数那一维。",
            ),
            "06_batch_dim",
        ),
        Belief(
            say(en="“Losses are averaged over GPUs.”", zh="“各 GPU 的损失会取平均。”"),
            say(
                en="Gradients are summed; averaging per-GPU mean losses is biased when pieces differ in size.",
                zh="梯度是相加的；分块大小不同时，对各 GPU 的平均损失再取平均会有偏差。",
            ),
            "07_training",
        ),
        Belief(
            say(en="“BatchNorm sees the whole batch.”", zh="“BatchNorm 看到的是整个批次。”"),
            say(
                en="Each replica normalises its own piece; only GPU 0's running statistics are kept.",
                zh="每个副本只对自己那个分块做归一化；最后留下的只有 0 号 GPU 的移动平均（running statistics）。",
            ),
            "07_training",
        ),
        Belief(
            say(en="“GPU 0's extra memory is a leak.”", zh="“0 号 GPU 多占的显存是泄漏。”"),
            say(
                en="GPU 0 holds the outputs, the loss, the master weights, the gradients and the optimizer state.",
                zh="0 号 GPU 上有输出、损失、主权重、梯度和优化器状态。",
            ),
            "07_training",
        ),
        Belief(
            say(en="“More GPUs are always faster.”", zh="“GPU 越多越快。”"),
            say(
                en="Copies and waiting cost time: a small batch can be slower on eight GPUs than on one.",
                zh="拷贝和等待都要花时间：批次小的时候，八块 GPU 可能比一块还慢。",
            ),
            "08_beyond",
        ),
    )


class Outline:
    """The table of the lessons: shows itself as Markdown, with links to the notebooks beside it."""

    def _repr_markdown_(self) -> str:
        head = say(en="Lesson | What it is for | Minutes", zh="课 | 学什么 | 分钟")
        rows = [f"{_link(e.title, e.name)} | {e.purpose} | {e.minutes}" for e in lessons()]
        return table(head, rows)

    def __repr__(self) -> str:
        return "\n".join(entry.title for entry in lessons())


class Beliefs:
    """The table of the ten beliefs and the lessons that answer them: shows itself as Markdown."""

    def _repr_markdown_(self) -> str:
        head = say(en="What many believe | What is so | Lesson", zh="很多人以为 | 其实 | 课")
        rows = [f"{b.belief} | {b.instead} | {_link(b.lesson[:2], b.lesson)}" for b in beliefs()]
        return table(head, rows)

    def __repr__(self) -> str:
        return "\n".join(f"{belief.belief} -> {belief.lesson}" for belief in beliefs())


def _link(text: str, name: str) -> str:
    escaped = text.replace("[", "\\[").replace("]", "\\]")
    return f"[{escaped}]({name}.ipynb)"
