"""Predictions of lesson 09: what a broken model does on two GPUs. How repairs are judged stands in ..broken."""

from __future__ import annotations

from ...base.language import say
from ..exercise import RIGHT, choice

choice(
    "09.tagger",
    lambda: say(
        en="A batch of sentences, the longest of them in the first half: what comes out on two GPUs?",
        zh="一个批次的句子，最长的一句在前一半里：在两块 GPU 上得到什么？",
    ),
    lambda: [
        (
            say(en="The same as on one GPU", zh="和一块 GPU 上一样"),
            say(
                en="the second replica has never seen the longest sentence: how long is what it returns?",
                zh="第二个副本从没见过最长的那一句：它返回的有多长？",
            ),
        ),
        (
            say(en="The right shape, but tags of padding", zh="形状对，但填充的位置也有标注"),
            say(
                en="the padding is left out by packing, in each replica as on one GPU; look at what each returns",
                zh="打包时已经去掉了填充的位置，每个副本都和一块 GPU 上一样；再看每个副本返回什么形状",
            ),
        ),
        (say(en="An error in gather", zh="收集那一步报错"), RIGHT),
    ],
    solution=lambda: say(
        en="Two outputs of different length do not fit along dimension 0. Had both halves a sentence of that "
        "length, nobody would have noticed.",
        zh="两份输出的长度不同，沿第 0 维拼不起来。要是两半里都有一句这么长的，就没有人会发现。",
    ),
)

choice(
    "09.pairs",
    lambda: say(
        en="The same 8 pairs, the same weights, on 4 GPUs: what becomes of the loss?",
        zh="同样的 8 对，同样的权重，放到 4 块 GPU 上：损失会怎样？",
    ),
    lambda: [
        (
            say(en="It stays", zh="不变"),
            say(
                en="pieces are even here; but with how many captions is a photo compared in a replica?",
                zh="这里的分块大小相同；可在副本里，一张照片和几条说明文字比较？",
            ),
        ),
        (say(en="It gets smaller", zh="变小"), RIGHT),
        (
            say(en="It gets larger", zh="变大"),
            say(
                en="is it harder to find the right caption among two or among eight?",
                zh="从两条里找出对的那条，和从八条里找，哪个更难？",
            ),
        ),
        (
            say(en="An error", zh="报错"),
            say(
                en="every replica has as many photos as captions, so its table is square and nothing fails",
                zh="每个副本的照片和说明文字一样多，分数表是方的，什么错也不报",
            ),
        ),
    ],
    solution=lambda: say(
        en="Among two captions the right one is found more easily than among eight.",
        zh="两条里找对的一条，比八条里找容易。",
    ),
)

choice(
    "09.roads",
    lambda: say(
        en="8 hours of traffic and 14 roads on two GPUs: what comes out?",
        zh="8 小时的车流、14 条道路，放到两块 GPU 上：得到什么？",
    ),
    lambda: [
        (say(en="The right shape, wrong values", zh="形状对，数值错"), RIGHT),
        (
            say(en="An error: 4 hours and 7 roads do not fit", zh="报错：4 小时和 7 条道路对不上"),
            say(
                en="`forward` takes any number of roads; is there a line in which the two numbers meet?",
                zh="`forward` 能接受任意条数的道路；有哪一行要求这两个数相同吗？",
            ),
        ),
        (
            say(en="The same as on one GPU", zh="和一块 GPU 上一样"),
            say(
                en="that needs all 14 roads in each replica; but `roads` is a tensor among the inputs",
                zh="那需要每个副本都有全部 14 条道路；可 `roads` 是输入里的一个张量",
            ),
        ),
    ],
    solution=lambda: say(
        en="Each replica has 4 hours and 7 of the roads, and adds up what comes along those.",
        zh="每个副本拿到 4 小时和其中 7 条道路，只把这些道路上传来的加起来。",
    ),
)

choice(
    "09.words",
    lambda: say(
        en="8 sentences on two GPUs, 4 in each: does the mean of the two losses agree with one GPU?",
        zh="8 句话放到两块 GPU 上，每块 4 句：两个损失的平均和一块 GPU 上一致吗？",
    ),
    lambda: [
        (
            say(en="Yes: both pieces have 4 rows", zh="一致：两个分块都是 4 行"),
            say(
                en="it is not rows that this loss is averaged over: what does `ignore_index` leave out?",
                zh="这个损失不是按行取平均的：`ignore_index` 略去了什么？",
            ),
        ),
        (
            say(en="Only if both pieces have as many words", zh="只有两个分块的词数相同时才一致"),
            RIGHT,
        ),
        (
            say(en="No: it is half as large", zh="不一致：只有一半"),
            say(
                en="each of the two is a mean by itself, and the mean of two means is no half of anything",
                zh="两个损失各自已经是平均值，两个平均值再取平均并不会变成一半",
            ),
        ),
    ],
    solution=lambda: say(
        en="Each replica divides by its own number of words, and then both count one half.",
        zh="每个副本除以自己的词数，然后两边各占一半。",
    ),
)

choice(
    "09.waves",
    lambda: say(
        en="The table is made on `x.device`, so on the replica's own GPU. What happens on two?",
        zh="表是在 `x.device` 上做的，也就是副本自己的 GPU。放到两块 GPU 上会怎样？",
    ),
    lambda: [
        (
            say(en="Right: each replica makes its own", zh="没问题：每个副本各做一张"),
            say(
                en="replica 1 looks first whether there is one already. In which dict does it look?",
                zh="副本 1 会先看有没有现成的。它看的是哪一个字典？",
            ),
        ),
        (
            say(en="Right, but made anew in each call", zh="没问题，只是每次调用都要重做"),
            say(
                en="so it would be for a new attribute; but a dict is changed here, not assigned",
                zh="如果是给属性赋值，确实如此；但这里是改动一个字典，不是赋值",
            ),
        ),
        (say(en="An error in replica 1", zh="副本 1 报错"), RIGHT),
    ],
    solution=lambda: say(
        en="All replicas have the same dict: replica 0 puts its table in, and replica 1 finds it, on cuda:0.",
        zh="所有副本共用同一个字典：副本 0 把自己的表放进去，副本 1 拿到的就是它，在 cuda:0 上。",
    ),
)

choice(
    "09.surprise",
    lambda: say(
        en="Three batches in a row on two GPUs: which results are wrong?",
        zh="在两块 GPU 上连续运行三个批次：哪些结果是错的？",
    ),
    lambda: [
        (
            say(en="None: buffers are copied to replicas", zh="都对：缓冲区会复制到各副本"),
            say(
                en="copied to them, yes; and back?",
                zh="去的时候会复制；那回来呢？",
            ),
        ),
        (
            say(en="All three", zh="三个都错"),
            say(
                en="in the first, `usual` is what it should be: it has not been changed yet",
                zh="第一个批次里，`usual` 还没有改过，正是该有的值",
            ),
        ),
        (say(en="The second and the third", zh="第二个和第三个"), RIGHT),
    ],
    solution=lambda: say(
        en="What the first batch writes into `usual` goes away with its replicas, so the others begin with the old "
        "one.",
        zh="第一个批次写进 `usual` 的值随副本一起消失，后面的批次用的还是旧值。",
    ),
)
