"""The terms of the course in both languages, and a check that texts use them as written.

A text in two languages is checked as a pair: where the English has a term, the Chinese has its Chinese
term, and nowhere stands a word that another translation would use for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..base.language import say


@dataclass(frozen=True)
class Term:
    """A term, and in one line what it means, in both languages.

    forms    the English forms that stand for it, as a regular expression; "" where the word is too common
             in plain English to be held to it ("split" the verb).
    written  Chinese that counts as using it, besides ``zh`` itself.
    never    other translations of it, which readers meet elsewhere and these lessons do not use.
    """

    en: str
    zh: str
    means_en: str
    means_zh: str
    forms: str = ""
    written: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


# fmt: off
TERMS = (
    Term("data parallelism", "数据并行", "every GPU has the whole model and computes a part of the batch",
         "每块 GPU 都有完整的模型，各算批次中的一部分", "data parallelism", never=("数据并行化",)),
    Term("batch", "批次", "the rows that go through the model together in one step",
         "一步里一起送进模型的那些行", "batch(?:es)?", ("小批量", "每批", "一批", "批量大小"), ("批处理",)),
    Term("batch size", "批量大小", "how many rows a full batch has",
         "一个装满的批次有几行", "batch sizes?", never=("批次大小", "批大小", "批尺寸")),
    Term("mini-batch", "小批量", "the same as batch, where “batch” would mean the whole dataset",
         "就是批次；用来区别于“整个数据集”那种 batch", "mini-batch(?:es)?", never=("迷你批",)),
    Term("batch dimension", "批次维度", "the dimension that counts rows: 0, unless DataParallel is told otherwise",
         "张量中对应各行的那一维；DataParallel 默认它是第 0 维",
         "batch dimension", never=("批维度", "批处理维度", "批量维度")),
    Term("full", "装满", "of a batch: it has as many rows as the batch size says",
         "指批次：行数达到批量大小", never=("满载",)),
    Term("short", "不满", "of a batch or a piece, the last one: it has fewer rows than the others",
         "指最后一个批次或分块：行数比别的少", "short (?:last )?(?:batch|piece)", never=("不足的", "残缺")),
    Term("row", "行", "one sample of a batch: what stands at one place along dimension 0",
         "批次中的一个样本，对应第 0 维的一格", "rows?"),
    Term("sample", "样本", "one element of the dataset; in a batch, a row",
         "数据集里的一个元素；在批次里就是一行", "samples?", never=("样例",)),
    Term("epoch", "轮（epoch）", "one pass over the whole dataset",
         "把整个数据集完整地用一次", "epochs?", ("轮",), ("时代", "纪元")),
    Term("dataset", "数据集", "gives row i when asked, and says how many rows there are",
         "能回答有多少行、第 i 行是什么", "datasets?"),
    Term("loader", "加载器", "makes batches of a dataset: `DataLoader`",
         "把数据集做成一个个批次，即 `DataLoader`", "loaders?", ("DataLoader",), ("装载器",)),
    Term("split (the rule)", "切分", "who gets which rows: pieces of ceil(rows / GPUs) rows, in order",
         "哪些行归哪块 GPU：按顺序，每个分块 ⌈行数 / GPU 数⌉ 行", never=("拆分", "劈分")),
    Term("piece, chunk", "分块", "the neighbouring rows that one GPU gets",
         "一块 GPU 拿到的那段相邻的行", "pieces?|chunks?", ("这一段",), ("切片", "碎片")),
    Term("tensor", "张量", "numbers of one type in a box of some shape, on one device",
         "同一类型的数排成某个形状，放在一个设备上", "tensors?", never=("矢量",)),
    Term("module", "模块", "a part of a model with parameters and a `forward`: `nn.Module`",
         "模型的一部分，有参数和 `forward`，即 `nn.Module`", "modules?"),
    Term("wrap", "包装", "put a model inside another module that runs it on several GPUs",
         "把模型放进另一个模块里，由它安排到多块 GPU 上运行", "wrap(?:s|ped|ping|per)?", never=("包裹", "封装")),
    Term("buffer", "缓冲区", "a tensor of a module that is saved and moved with it but not trained",
         "模块里的张量：随模块保存和移动，但不参与训练", "buffers?", never=("缓存区",)),
    Term("key (of a state_dict)", "键", "the name under which a weight is saved, such as `fc.weight`",
         "保存权重时用的名字，例如 `fc.weight`", "keys?"),
    Term("prefix", "前缀", "what a name begins with: `module.` for a wrapped model",
         "名字开头的部分：包装过的模型是 `module.`", "prefix(?:es)?"),
    Term("label", "标签", "the right answer for a row, which the loss compares with the output",
         "某一行的正确答案，损失拿它和输出比较", "labels?", never=("标记",)),
    Term("deep copy", "深拷贝", "a copy that shares nothing with the original",
         "和原件没有任何共享的拷贝", "deep cop(?:y|ies)", never=("深度拷贝", "深复制")),
    Term("shallow copy", "浅拷贝", "a copy whose parts are the original's own: both have the same list, say",
         "里面的东西和原件共用的拷贝：例如两边是同一个列表", "shallow cop(?:y|ies)", never=("浅复制",)),
    Term("leaf tensor", "叶子张量", "a tensor that no operation made; gradients are collected in its `.grad`",
         "不是由运算得到的张量；梯度累积在它的 `.grad` 里", "leaf tensors?", never=("叶张量",)),
    Term("in place", "原地", "changing the thing itself instead of giving back a changed copy",
         "直接改动本身，而不是返回一个改过的拷贝", "in place", never=("就地",)),
    Term("replicate", "复制", "the step that puts a copy of the model on each GPU",
         "把模型拷贝到每块 GPU 上的那一步", "replicates?"),
    Term("replica", "副本", "the copy of a model on one GPU, made anew in each call",
         "模型在一块 GPU 上的拷贝，每次调用都重新制作", "replicas?", never=("复本", "复制品")),
    Term("scatter", "分发", "the step that cuts the inputs and sends each GPU its piece",
         "切开输入，把分块送到各块 GPU 的那一步", "scatters?", never=("散射", "散布", "分散")),
    Term("gather", "收集", "the step that joins the outputs on one device",
         "把各份输出拼接到一个设备上的那一步", "gathers?|gathered", never=("聚集", "聚合", "汇集")),
    Term("parallel apply", "并行执行", "the step in which every replica computes its piece, each in a thread",
         "各副本在自己的线程里计算自己分块的那一步", "parallel apply", never=("并行应用",)),
    Term("broadcast", "广播", "one sends, all receive the same",
         "一个发送，大家收到同样的内容"),
    Term("reduce, all-reduce", "归约，全归约", "many tensors are summed into one; all-reduce gives everybody the sum",
         "把多份张量加成一份；全归约让人人都拿到总和", "all-reduce", ("全归约",), ("规约", "全规约", "全约减")),
    Term("device", "设备", "where a tensor lives and is computed with: `cpu`, `cuda:0`",
         "张量所在并用来计算的地方：`cpu`、`cuda:0`", "devices?", never=("装置",)),
    Term("home device", "主设备", "the first of `device_ids`: the model lives there and outputs come back there",
         "`device_ids` 的第一个：模型在那里，输出也回到那里", "home device", never=("主卡", "主 GPU")),
    Term("idle", "空闲", "of a GPU: it got no rows and waits",
         "指 GPU：没有分到行，只能等着", "idle", never=("闲置", "闲着")),
    Term("simulated GPU", "模拟 GPU", "a GPU that labkit imitates: real values, no speed",
         "由 labkit 模仿的 GPU：数值是真的，速度不是", "simulated GPUs?", never=("虚拟 GPU", "仿真 GPU")),
    Term("memory (of a GPU)", "显存", "where a GPU keeps its tensors; when it is full, allocation fails",
         "GPU 存放张量的地方；满了就分配失败"),
    Term("gradient", "梯度", "how the loss changes when a weight changes a little",
         "权重变动一点点时，损失怎样变化", "gradients?"),
    Term("running statistics", "移动平均（running statistics）",
         "the mean and variance that BatchNorm keeps up to date for evaluation",
         "BatchNorm 在训练中不断更新、留到评估时用的均值和方差",
         "running statistics", ("移动平均",), ("运行统计", "滑动统计")),
    Term("permute", "维度换位", "put a tensor's dimensions into another order",
         "调换张量各维的先后", never=("维度置换",)),
    Term("hidden state", "隐藏状态", "what an RNN carries from step to step: (layers, batch, hidden units)",
         "RNN 从一步带到下一步的状态，形状（层数，批次，隐藏单元数）", "hidden states?", never=("隐状态", "隐含状态")),
    Term("layer (of an RNN)", "层", "one of several RNNs stacked on each other",
         "叠在一起的几个 RNN 中的一个"),
    Term("lookup table", "查找表", "a tensor from which rows are picked by number",
         "按编号取行的张量", "lookup tables?", never=("查询表", "检索表")),
    Term("channel", "通道", "one of the planes of an image, such as red",
         "图像的一个平面，例如红色", never=("频道", "信道")),
    Term("check-up", "体检", "what `labkit.diagnose` does with a model",
         "`labkit.diagnose` 对模型做的事", "check-ups?"),
    Term("thread", "线程", "one of several runs through the code in one process, sharing its memory",
         "同一进程里的一条执行路线，共用内存", "threads?"),
    Term("process", "进程", "a running program with a memory of its own",
         "正在运行的程序，有自己的内存", "processes"),
    Term("process group", "进程组", "the processes that communicate with each other",
         "互相通信的一组进程", "process groups?", never=("进程群",)),
    Term("rank", "进程编号（rank）", "the number of a process in its group, from 0",
         "进程在进程组里的编号，从 0 开始", "ranks?", ("rank",)),
    Term("distributed data parallel (DDP)", "分布式数据并行", "data parallelism with one process for each GPU",
         "每块 GPU 一个进程的数据并行", "ddp", ("DDP",)),
    Term("ring (all-reduce)", "环", "everyone sends only to the next one; after 2(n − 1) steps all have the sum",
         "每个只发给下一个，2(n − 1) 步之后人人都有总和", "ring", never=("圆环",)),
    Term("star (all-reduce)", "星形", "all send to rank 0, which sums and sends the sum back to each",
         "都发给 rank 0，由它加起来，再发回给每一个"),
    Term("sampler", "采样器", "says which rows a loader reads, and in which order",
         "决定加载器读哪些行、按什么顺序读", "samplers?", never=("取样器", "抽样器")),
    Term("average", "平均", "the sum divided by how many there are",
         "总和除以个数", "averag(?:e|es|ed|ing)", never=("均值化",)),
    Term("optimizer state", "优化器状态", "what an optimizer remembers for each weight; Adam keeps two numbers",
         "优化器为每个权重记住的东西；Adam 记两个数", "optimizer states?"),
    Term("shard", "分片", "keep only one part of something on each GPU",
         "每块 GPU 只存其中的一份", "shard(?:s|ed|ing)?"),
    Term("launch", "启动", "start all processes of a run",
         "把一次运行的所有进程启动起来", "launch(?:es|ed|er|ing)?", ("`launch`",), ("发射",)),
    Term("deadlock", "死锁", "everyone waits for somebody who waits too",
         "大家互相等待，谁也动不了", "deadlock(?:s|ed)?"),
    Term("bandwidth", "带宽", "how many bytes a connection carries in a second",
         "连接每秒能传多少字节", "bandwidth"),
    Term("latency", "延迟", "how long it takes until the first byte arrives",
         "第一个字节到达之前要等多久", "latency", never=("时延",)),
    Term("parameter", "参数", "a tensor of a model that training changes",
         "模型中由训练来改变的张量", "parameters?"),
    Term("weight", "权重", "the same as parameter; also the factor of an input",
         "就是参数；也指输入前面的系数", "weights?"),
    Term("activation", "激活值", "a result inside the model, kept for the way back",
         "模型中间的结果，留到反向传播时用", "activations?", never=("激活量",)),
    Term("forward pass", "前向传播", "from the input to the loss",
         "从输入算到损失", "forward pass(?:es)?", ("前向",)),
    Term("backward pass", "反向传播", "from the loss back to the gradients",
         "从损失往回算出梯度", "backward pass(?:es)?", ("反向",)),
    Term("loss", "损失", "one number that says how wrong the output is",
         "表示输出错得多厉害的一个数", "loss(?:es)?"),
    Term("optimizer", "优化器", "changes the weights by their gradients",
         "根据梯度更新权重", "optimizers?"),
    Term("learning rate", "学习率", "how far an optimizer goes in one step",
         "优化器一步走多远", "learning rates?", never=("学习速率",)),
    Term("gradient accumulation", "梯度累积", "several parts go there and back before the optimizer takes one step",
         "分几份各做前向、反向，优化器最后只走一步", "gradient accumulation", never=("梯度累加",)),
    Term("padding", "填充", "what makes rows equally long and must not count in the loss",
         "让各行一样长的部分，不能算进损失", "padding|padded", never=("补齐",)),
    Term("throughput", "吞吐量", "how many rows are done in a second",
         "每秒处理多少行", "throughput", never=("吞吐率",)),
    Term("efficiency", "效率", "the share of perfect scaling that is reached",
         "达到理想扩展的百分之几", "efficiency"),
    Term("step (of training)", "训练步", "one batch there and back, and one update of the weights",
         "一个批次前向、反向各一次，再更新一次权重"),
    Term("exercise", "练习", "what you answer yourself, judged at once",
         "由你自己作答、当场判定的题目", "exercises?"),
)
# fmt: on


def problems(en: str, zh: str) -> list[str]:
    """What is wrong with the terms of a text in two languages, a line each; [] if nothing is.

    `Code` between backticks is left out of both: it is the same in every language.
    """
    en, zh = _prose(en).lower(), _prose(zh)
    found = []
    for term in TERMS:
        if term.forms and re.search(rf"\b(?:{term.forms})\b", en):
            accepted = (*re.split("[，,] ?", term.zh), *term.written)
            if not any(word in zh for word in accepted):
                found.append(f"{term.en!r} is in the English, {term.zh!r} not in the Chinese")
        found += [f"{word!r} is written; the term is {term.zh!r}" for word in term.never if word in zh]
    return found


class Glossary:
    """The table of the terms: shows itself as Markdown."""

    def _repr_markdown_(self) -> str:
        """One line a term: a Chinese reader also sees what the same thing is called elsewhere."""
        head = say(en="English | Chinese | What it is", zh="中文 | 英文 | 意思 | 别处的叫法")
        rows = (
            say(
                en=f"{term.en} | {term.zh} | {term.means_en}",
                zh=f"{term.zh} | {term.en} | {term.means_zh} | {'、'.join(term.never)}",
            )
            for term in TERMS
        )
        return table(head, [*rows])

    def __repr__(self) -> str:
        return "\n".join(f"{term.en}: {term.zh}" for term in TERMS)


def table(head: str, rows: list[str]) -> str:
    """A table in Markdown; ``|`` stands between the columns."""
    columns = head.count("|") + 1
    return "\n".join(f"| {line} |" for line in [head, " | ".join(["---"] * columns), *rows])


def _prose(text: str) -> str:
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", " ", text)
    return re.sub(r"\]\([^)]*\)", "] ", text)
