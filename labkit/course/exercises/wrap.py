"""Exercises of lesson 02: what moves, what forward sees, what wrapping does."""

from __future__ import annotations

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import A_DEVICE, whole


@exercise(
    "02.tensor_copy",
    A_DEVICE,
    ask=lambda: say(en="Where is `x`?", zh="`x` 在哪里？"),
    solution=lambda: say(
        en='`"cpu"`: `x.to("cuda:0")` makes a copy on cuda:0. Nobody kept that copy, and `x` itself has not moved.',
        zh='`"cpu"`：`x.to("cuda:0")` 在 cuda:0 上生成一个拷贝；没有人把这个拷贝留下来，`x` 自己并没有动。',
    ),
)
def _tensor_copy(found: str) -> Hints:
    return {
        "cpu": RIGHT,
        ANY_OTHER: say(
            en="`tensor.to()` gives back a copy and leaves the tensor where it is; only a module is moved in place",
            zh="`tensor.to()` 返回一个拷贝，原张量留在原处；只有模块才会原地移动",
        ),
    }


@exercise(
    "02.inside",
    Kind(whole, lambda: say(en="a whole number of rows", zh="一个整数（行数）")),
    ask=lambda: say(
        en="How many of the 30 rows does `forward` see on one GPU?",
        zh="30 行里，`forward` 在一块 GPU 上看到几行？",
    ),
    solution=lambda: say(
        en="`15`: scatter cuts the 30 rows into two pieces, and `forward` runs once on each GPU with its own piece.",
        zh="`15`：分发把 30 行切成两个分块，`forward` 在每块 GPU 上各运行一次，只拿到自己的分块。",
    ),
)
def _inside(rows: int) -> Hints:
    return {
        15: RIGHT,
        30: say(
            en="30 rows is what you see outside, before and after; inside, each replica sees only its own piece",
            zh="30 行是在外面看到的，调用前后都是；在里面，每个副本只看到自己的分块",
        ),
        60: say(
            en="the batch is shared out, not given to every GPU whole: it is the model that is copied",
            zh="批次是分给各块 GPU 的，不是每块都拿一整份；整个复制的是模型",
        ),
        2: say(
            en="2 is the number of GPUs; how many of the 30 rows does each one get?",
            zh="2 是 GPU 的数目；30 行里，每块分到几行？",
        ),
        ANY_OTHER: say(en="split 30 rows into 2 equal pieces", zh="把 30 行平分成 2 个分块"),
    }


@exercise(
    "02.lines",
    Kind(whole, lambda: say(en="a whole number of lines", zh="一个整数（打印了几条）")),
    ask=lambda: say(
        en="Four batches: how many lines are printed inside the model?", zh="四个批次，模型里面一共打印几条？"
    ),
    solution=lambda: say(
        en="`8`: four batches, and for each of them `forward` runs on two GPUs.",
        zh="`8`：四个批次，每个批次 `forward` 都在两块 GPU 上各运行一次。",
    ),
)
def _lines(count: int) -> Hints:
    return {
        8: RIGHT,
        4: say(
            en="four is right for one GPU; on two, `forward` runs twice for each batch, once in each replica",
            zh="一块 GPU 时是四条；两块 GPU 时，每个批次 `forward` 要运行两次，每个副本一次",
        ),
        2: say(
            en="two lines come from each batch; how many batches are there?",
            zh="每个批次打印两条；一共有几个批次？",
        ),
        12: say(
            en="12 counts the lines printed outside too; the question is about those inside the model",
            zh="12 把外面打印的也算进去了；题目问的是模型里面打印的",
        ),
        ANY_OTHER: say(
            en="batches × runs of `forward` for each batch",
            zh="批次的个数 × 每个批次里 `forward` 运行的次数",
        ),
    }


@exercise(
    "02.wrapping",
    A_DEVICE,
    ask=lambda: say(en="Where are the weights of the wrapped model?", zh="包装好的模型，权重在哪里？"),
    solution=lambda: say(
        en='`"cpu"`: wrapping only puts your module inside another one. Moving it is your step, `.to("cuda:0")`; '
        "the copies on the other GPUs are made in each call and thrown away after it.",
        zh='`"cpu"`：包装只是把你的模块放进另一个模块里。搬到 GPU 上要你自己来：`.to("cuda:0")`；'
        "其他 GPU 上的副本在每次调用时才生成，用完就丢。",
    ),
)
def _wrapping(found: str) -> Hints:
    return {
        "cpu": RIGHT,
        "cuda:0": say(
            en="that is where they must be before the model runs, but wrapping does not bring them there: "
            "nobody has called `.to()` yet",
            zh="运行之前它们确实必须在那里，但包装不会把它们搬过去：还没有人调用 `.to()`",
        ),
        ANY_OTHER: say(
            en="wrapping puts nothing on any GPU: replicas are made later, in each call",
            zh="包装不会往任何 GPU 上放东西：副本要到每次调用时才生成",
        ),
    }


choice(
    "02.zero",
    lambda: say(
        en="Four batches: how many lines are printed inside the model without a GPU, and with one?",
        zh="四个批次：没有 GPU 时，模型里面打印几条？有一块时呢？",
    ),
    lambda: [
        (
            say(en="None without a GPU, four with one", zh="没有 GPU 时一条也没有，有一块时四条"),
            say(
                en="without a GPU the model runs as well, on the CPU: `forward` is called for every batch",
                zh="没有 GPU，模型照样在 CPU 上运行：每个批次都会调用 `forward`",
            ),
        ),
        (say(en="Four, both times", zh="两次都是四条"), RIGHT),
        (
            say(en="One, both times", zh="两次都是一条"),
            say(
                en="`forward` is called once for each batch, and there are four batches",
                zh="每个批次调用一次 `forward`，一共四个批次",
            ),
        ),
    ],
    solution=lambda: say(
        en="One model, whole batches: `forward` runs once for each of the four.",
        zh="一个模型，完整的批次：四个批次各运行一次 `forward`。",
    ),
)

choice(
    "02.alone",
    lambda: say(
        en="Somebody wraps a model where there are not two GPUs. What happens?",
        zh="没有两块 GPU，也照样包装，会怎样？",
    ),
    lambda: [
        (
            say(en="An error", zh="报错"),
            say(
                en="the wrapper takes what there is: it is made for programs that run anywhere",
                zh="有多少 GPU 它就用多少：包装器本来就要让程序在哪里都能运行",
            ),
        ),
        (
            say(en="A warning, then a result on the CPU", zh="先警告，再给出 CPU 上的结果"),
            say(
                en="there is no warning, which is why code that seems to use GPUs may use none",
                zh="没有警告；正因为如此，看起来用了 GPU 的代码可能一块也没用上",
            ),
        ),
        (
            say(
                en="A result, without a word: on the CPU, or on the only GPU",
                zh="不声不响地给出结果：在 CPU 上，或在仅有的那块 GPU 上",
            ),
            RIGHT,
        ),
    ],
    solution=lambda: say(
        en="Without a GPU the call is passed on; with one, the model is moved there.",
        zh="没有 GPU 时，调用原样转给模型；只有一块时，模型会被搬过去。",
    ),
)

choice(
    "02.default",
    lambda: say(
        en='Four GPUs, a layer and 30 rows on `"cuda"`: on how many GPUs does something lie?',
        zh='四块 GPU，一个层和 30 行都放到 `"cuda"`：有几块 GPU 上有东西？',
    ),
    lambda: [
        (say(en="On one", zh="一块"), RIGHT),
        (
            say(en="On all four", zh="四块都有"),
            say(
                en='`"cuda"` is no pool: it is the current device, cuda:0 unless it was changed',
                zh='`"cuda"` 不是一个公共的池子，而是当前设备；没有改过的话就是 cuda:0',
            ),
        ),
        (
            say(en="On two: the layer on one, the rows on the next", zh="两块：层在一块上，行在下一块上"),
            say(
                en="nothing is spread out on its own; both lines name the same device",
                zh="没有什么会自动摊开；两处写的是同一个设备",
            ),
        ),
    ],
    solution=lambda: say(
        en="By default everything goes to one GPU; the other three stay empty until the code names them.",
        zh="默认全都放在一块 GPU 上；另外三块一直空着，直到代码点到它们。",
    ),
)
