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
    """A term.

    forms    the English forms that stand for it, as a regular expression; "" where the word is too common
             in plain English to be held to it ("split" the verb).
    written  Chinese that counts as using it, besides ``zh`` itself.
    never    Chinese words that would be another translation of it.
    """

    en: str
    zh: str
    forms: str = ""
    written: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


TERMS = (
    Term("data parallelism", "数据并行", "data parallelism", never=("数据并行化",)),
    Term("batch", "批次", "batch(?:es)?", ("小批量", "每批", "一批", "批量大小"), ("批处理",)),
    Term("batch size", "批量大小", "batch sizes?", never=("批次大小", "批大小", "批尺寸")),
    Term("mini-batch", "小批量", "mini-batch(?:es)?", never=("迷你批",)),
    Term("batch dimension", "批次维度", "batch dimension", never=("批维度", "批处理维度", "批量维度")),
    Term("full", "装满", never=("满载",)),
    Term("short", "不满", "short (?:last )?(?:batch|piece)", never=("不足的", "残缺")),
    Term("row", "行", "rows?"),
    Term("sample", "样本", "samples?", never=("样例",)),
    Term("epoch", "轮（epoch）", "epochs?", ("轮",), ("时代", "纪元")),
    Term("dataset", "数据集", "datasets?"),
    Term("loader", "加载器", "loaders?", ("DataLoader",), ("装载器",)),
    Term("split (the rule)", "切分", never=("拆分", "劈分")),
    Term("piece, chunk", "分块", "pieces?|chunks?", ("这一段",), ("切片", "碎片")),
    Term("tensor", "张量", "tensors?", never=("张亮", "矢量")),
    Term("module", "模块", "modules?"),
    Term("wrap", "包装", "wrap(?:s|ped|ping|per)?", never=("包裹", "封装")),
    Term("buffer", "缓冲区", "buffers?", never=("缓存区",)),
    Term("key (of a state_dict)", "键", "keys?"),
    Term("prefix", "前缀", "prefix(?:es)?"),
    Term("label", "标签", "labels?", never=("标记",)),
    Term("deep copy", "深拷贝", "deep cop(?:y|ies)", never=("深度拷贝", "深复制")),
    Term("leaf tensor", "叶子张量", "leaf tensors?", never=("叶张量",)),
    Term("in place", "原地", "in place", never=("就地",)),
    Term("replicate", "复制", "replicates?"),
    Term("replica", "副本", "replicas?", never=("复本", "复制品")),
    Term("scatter", "分发", "scatters?", never=("散射", "散布", "分散")),
    Term("gather", "收集", "gathers?|gathered", never=("聚集", "聚合", "汇集")),
    Term("parallel apply", "并行执行", "parallel apply", never=("并行应用",)),
    Term("broadcast", "广播"),
    Term("reduce, all-reduce", "归约，全归约", "all-reduce", ("全归约",), ("规约", "全规约", "全约减")),
    Term("device", "设备", "devices?", never=("装置",)),
    Term("home device", "主设备", "home device", never=("主卡", "主 GPU")),
    Term("idle", "空闲", "idle", never=("闲置", "闲着")),
    Term("simulated GPU", "模拟 GPU", "simulated GPUs?", never=("虚拟 GPU", "仿真 GPU")),
    Term("memory (of a GPU)", "显存"),
    Term("gradient", "梯度", "gradients?"),
    Term("running statistics", "移动平均（running statistics）", "running statistics", ("移动平均",), ("运行统计", "滑动统计")),
    Term("permute", "维度换位", never=("维度置换",)),
    Term("hidden state", "隐藏状态", "hidden states?", never=("隐状态", "隐含状态")),
    Term("layer (of an RNN)", "层"),
    Term("lookup table", "查找表", "lookup tables?", never=("查询表", "检索表")),
    Term("channel", "通道", never=("频道", "信道")),
    Term("check-up", "体检", "check-ups?"),
    Term("thread", "线程", "threads?"),
    Term("process", "进程", "processes"),
    Term("rank", "进程编号（rank）", "ranks?", ("rank",)),
    Term("distributed data parallel (DDP)", "分布式数据并行", "ddp", ("DDP",)),
    Term("ring (all-reduce)", "环", "ring", never=("圆环",)),
    Term("sampler", "采样器", "samplers?", never=("取样器", "抽样器")),
    Term("average", "平均", "averag(?:e|es|ed|ing)", never=("均值化",)),
    Term("optimizer state", "优化器状态", "optimizer states?"),
    Term("shard", "分片", "shard(?:s|ed|ing)?"),
    Term("launch", "启动", "launch(?:es|ed|er|ing)?", ("`launch`",), ("发射",)),
    Term("bandwidth", "带宽", "bandwidth"),
    Term("latency", "延迟", "latency", never=("时延",)),
    Term("parameter", "参数", "parameters?"),
    Term("weight", "权重", "weights?"),
    Term("activation", "激活值", "activations?", never=("激活量",)),
    Term("loss", "损失", "loss(?:es)?"),
    Term("optimizer", "优化器", "optimizers?"),
    Term("throughput", "吞吐量", "throughput", never=("吞吐率",)),
    Term("efficiency", "效率", "efficiency"),
    Term("step (of training)", "训练步"),
    Term("exercise", "练习", "exercises?"),
)


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
        head = say(en="English | Chinese", zh="英文 | 中文")
        return table(head, [f"{term.en} | {term.zh}" for term in TERMS])

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
