"""Exercises of lesson 05: which device_ids, where the output is, and keys without ``module.``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, choice, exercise
from ..kinds import A_DEVICE, a_function, gpu_number, numbers, returned, whole, wrong_return


def _gpu_numbers(answer: object) -> tuple[int, ...]:
    return numbers(map(gpu_number, answer) if isinstance(answer, (list, tuple)) else answer)


@exercise(
    "05.ids",
    Kind(
        _gpu_numbers,
        lambda: say(en="a list of GPU numbers, such as `[0, 1]`", zh="一个 GPU 编号的列表，例如 `[0, 1]`"),
    ),
    ask=lambda: say(en="Which `device_ids`?", zh="`device_ids` 该怎么写？"),
    solution=lambda: say(
        en="`[1, 0]`: the first id is home, so it must be the GPU that the model is on. The others may follow in "
        "any order.",
        zh="`[1, 0]`：第一个编号就是主设备，所以必须是模型所在的那块 GPU。其余的顺序随意。",
    ),
)
def _ids(ids: tuple[int, ...]) -> Iterator[str]:
    if ids == (1, 0):
        return
    if len(set(ids)) < len(ids):
        yield say(en="each GPU stands in the list once", zh="每块 GPU 在列表里只出现一次")
    if any(gpu not in (0, 1) for gpu in ids):
        yield say(
            en="GPUs are counted from zero: the two here are 0 and 1",
            zh="GPU 从 0 开始编号：这里的两块是 0 和 1",
        )
    if ids == (1,):
        yield say(
            en="that works, but on cuda:1 alone; both GPUs are to have work",
            zh="这样能运行，但只用到 cuda:1 一块；题目要求两块都干活",
        )
    if ids == (0, 1):
        yield say(
            en="that is the default, which failed: not any GPU can be home, it is the first in the list, here cuda:0",
            zh="这正是刚才出错的默认值：主设备不是随便哪一块，而是列表里的第一个，这里就成了 cuda:0",
        )
    yield say(
        en="the first id is home: it must be the GPU that the model is on, cuda:1, and the other one follows",
        zh="第一个编号就是主设备：必须是模型所在的 cuda:1，另一块跟在后面",
    )


@exercise(
    "05.output",
    A_DEVICE,
    ask=lambda: say(en="Where is the output?", zh="输出在哪里？"),
    solution=lambda: say(
        en='`"cuda:1"`: gather joins the outputs on the home device, `device_ids[0]`, wherever the input was. '
        "`output_device` can name another GPU.",
        zh='`"cuda:1"`：不管输入在哪里，收集都把输出拼在主设备 `device_ids[0]` 上。'
        "用 `output_device` 可以指定别的 GPU。",
    ),
)
def _output(found: str) -> Hints:
    return {
        "cuda:1": RIGHT,
        "cpu": say(
            en="the output does not go back to where the input was: it is gathered on a GPU",
            zh="输出不会回到输入原来的地方，而是收集到一块 GPU 上",
        ),
        "cuda:0": say(
            en="home is not the GPU with the lowest number, it is the first in `device_ids`, here `[1, 0]`",
            zh="主设备不是编号最小的那块，而是 `device_ids` 里的第一个；这里的列表是 `[1, 0]`",
        ),
        ANY_OTHER: say(
            en=f"there is no {found} in `device_ids`, which is `[1, 0]`",
            zh=f"`device_ids` 是 `[1, 0]`，里面没有 {found}",
        ),
    }


@exercise(
    "05.first",
    Kind(
        lambda answer: whole(gpu_number(answer)),
        lambda: say(en="the number of a GPU, such as `0`", zh="GPU 的编号，例如 `0`"),
    ),
    facts={"gpus": (3, 1, 64)},
    ask=lambda gpus: say(
        en=f"`device_ids={[*reversed(range(gpus))]}`: which GPU gets the first row of the batch?",
        zh=f"`device_ids={[*reversed(range(gpus))]}`：批次的第一行归哪块 GPU？",
    ),
    solution=lambda gpus: say(
        en=f"`{gpus - 1}`: pieces go to the GPUs in the order of the list, and home comes first.",
        zh=f"`{gpus - 1}`：分块按列表的顺序发给各块 GPU，主设备排第一。",
    ),
)
def _first(gpu: int, gpus: int) -> Hints:
    return {
        0: say(
            en="cuda:0 is the last in this list, and pieces are handed out in its order",
            zh="在这个列表里，cuda:0 排在最后，而分块是按列表的顺序发的",
        ),
        ANY_OTHER: say(
            en=f"it is one of the {gpus} in the list: the first",
            zh=f"就是列表里这 {gpus} 个中的第一个",
        ),
        gpus - 1: RIGHT,
    }


_PLAIN = """```
def plain(state):
    return {key.removeprefix("module."): value for key, value in state.items()}
```"""


@exercise(
    "05.plain",
    a_function(
        "plain",
        lambda: say(
            en="a function that takes a `state_dict` and returns a dict",
            zh="一个接收 `state_dict`、返回字典的函数",
        ),
    ),
    solution=lambda: say(
        en="The prefix goes, once and at the beginning only. (PyTorch has a function for it, which changes the dict "
        f"in place: `torch.nn.modules.utils.consume_prefix_in_state_dict_if_present`.)\n{_PLAIN}",
        zh="去掉前缀：只在开头，只去一次。（PyTorch 里也有现成的函数，它会原地修改字典："
        f"`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present`。）\n{_PLAIN}",
    ),
)
def _plain(answer: Callable[..., object]) -> Iterator[str]:
    for wanted in (
        ["weight", "bias"],
        ["encoder.module.weight", "submodule.bias"],  # a block inside is wrapped too
        ["module.weight", "model.bias"],
    ):
        yield from _stripped(answer, [f"module.{key}" for key in wanted], wanted)
    yield from _stripped(answer, ["weight", "head.bias"], ["weight", "head.bias"])


def _stripped(answer: Callable[..., Any], keys: list[str], wanted: list[str]) -> Iterator[str]:
    values = [torch.tensor([float(at)]) for at in range(len(keys))]
    got = returned(answer(dict(zip(keys, values, strict=True))))
    if not isinstance(got, Mapping):
        if isinstance(got, (list, tuple)) and list(got) == wanted:
            yield say(
                en="the keys are right, but the values are missing: a dict is wanted",
                zh="键是对的，但值不见了：要的是一个字典",
            )
        raise wrong_return(got, say(en="a dict", zh="一个字典"))
    if list(got) == wanted:
        same = all(
            isinstance(value, torch.Tensor) and torch.equal(value, mine)
            for value, mine in zip(got.values(), values, strict=True)
        )
        if not same:
            yield say(en="the keys are right, but the values changed", zh="键是对的，但值变了")
        return
    case_en, case_zh = f"for the keys `{keys}` it gives `{list(got)}`", f"键是 `{keys}` 时得到 `{list(got)}`"
    if list(got) == [key.lstrip("module.") for key in keys]:  # noqa: B005 (the mistake itself)
        yield say(
            en=f"{case_en}: `lstrip` removes any of the letters m, o, d, u, l, e and dots from the beginning, "
            "not the word",
            zh=f"{case_zh}：`lstrip` 去掉的是开头所有属于 m、o、d、u、l、e 和点的字符，而不是这个词",
        )
    if list(got) == [key.replace("module.", "") for key in keys]:
        yield say(
            en=f"{case_en}: `replace` removes `module.` everywhere; only the one at the beginning is the wrapper's",
            zh=f"{case_zh}：`replace` 会去掉所有的 `module.`；只有开头的那一个是包装器加的",
        )
    if list(got) == [key[7:] for key in keys]:
        yield say(
            en=f"{case_en}: a key without the prefix loses its first seven characters",
            zh=f"{case_zh}：没有前缀的键也被切掉了开头的七个字符",
        )
    if list(got) == keys:
        yield say(
            en=f"{case_en}: the keys still begin with `module.`", zh=f"{case_zh}：键还是以 `module.` 开头"
        )
    yield say(
        en=f"{case_en}; a model without a wrapper has `{wanted}`",
        zh=f"{case_zh}；没有包装的模型是 `{wanted}`",
    )


choice(
    "05.home",
    lambda: say(
        en="The model is on cuda:1; both GPUs are to be used. Does it matter where the model is?",
        zh="模型在 cuda:1 上，两块 GPU 都要用。模型放在哪块上，有关系吗？",
    ),
    lambda: [
        (
            say(
                en="No: the wrapper copies it to both GPUs anyway",
                zh="没有：包装器反正会把它复制到两块 GPU 上",
            ),
            say(
                en="it copies from one device, and does not look for the model elsewhere",
                zh="它只从一个设备往外复制，不会到别处去找模型",
            ),
        ),
        (say(en="Yes: there will be an error", zh="有：会报错"), RIGHT),
        (
            say(en="Yes: it will be slower, but run", zh="有：会慢一些，但能运行"),
            say(
                en="PyTorch could move it in each call, but refuses: nothing is moved behind your back",
                zh="PyTorch 本可以每次调用都替你搬，但它拒绝：不会背着你搬动任何东西",
            ),
        ),
    ],
    solution=lambda: say(
        en="Replicas are copied from the first device of the list, cuda:0 here, and the model must be there.",
        zh="副本从列表里的第一个设备拷贝出去，这里是 cuda:0；模型必须在那里。",
    ),
)

choice(
    "05.cache",
    lambda: say(
        en="Wrapped, then once unwrapped on cuda:0, then wrapped again: what happens?",
        zh="先包装运行，再不包装在 cuda:0 上运行一次，再包装运行：会怎样？",
    ),
    lambda: [
        (
            say(en="All three run", zh="三次都能运行"),
            say(
                en="the single run writes the table to the model itself; where is that table then?",
                zh="不包装的那一次，表会写到模型自己身上；那张表在哪块 GPU 上？",
            ),
        ),
        (
            say(en="The first fails: the table is on one GPU only", zh="第一次就报错：表只在一块 GPU 上"),
            say(
                en="each replica finds none and makes its own, where its own piece is",
                zh="每个副本都没有表，就在自己分块所在的 GPU 上各造一张",
            ),
        ),
        (say(en="Only the last one fails", zh="只有最后一次报错"), RIGHT),
    ],
    solution=lambda: say(
        en="What a replica writes is lost with it; what the model itself writes is handed to all replicas.",
        zh="副本写下的东西随它消失；模型自己写下的东西，所有副本都会拿到。",
    ),
)

choice(
    "05.cases",
    lambda: say(
        en="Numbers 2, 3 and 5 of the models below: which runs on two GPUs, with another result?",
        zh="看下面的第 2、3、5 个模型：哪一个在两块 GPU 上能运行，结果却不同？",
    ),
    lambda: [
        (
            say(en="Half of the model was moved (2)", zh="模型只搬了一半（2）"),
            say(
                en="the wrapper looks at every parameter before it begins, and refuses",
                zh="包装器在开始之前检查每个参数，会拒绝",
            ),
        ),
        (say(en="Something for the first GPU only (3)", zh="只在第一块 GPU 上做的事（3）"), RIGHT),
        (
            say(en="Wrapped already (5)", zh="已经包装过一次（5）"),
            say(
                en="the inner wrapper's home is cuda:0, and one of its replicas is not there: an error",
                zh="里层包装的主设备是 cuda:0，可有一个副本不在那里：会报错",
            ),
        ),
    ],
    solution=lambda: say(
        en="It doubles the rows that happen to be on cuda:0, and no others.",
        zh="它只把恰好分到 cuda:0 的那些行乘以 2。",
    ),
)

choice(
    "05.mixed",
    lambda: say(
        en="The loss of the wrapped model with labels that were left on the CPU: which two devices will the message "
        "name?",
        zh="用包装后的模型算损失，标签忘在 CPU 上：报错会提到哪两个设备？",
    ),
    lambda: [
        (
            say(en="cuda:0 and cpu", zh="cuda:0 和 cpu"),
            say(
                en="the outputs are at home; which GPU is home for `device_ids=[1, 0]`?",
                zh="输出在主设备上；`device_ids=[1, 0]` 时，主设备是哪一块？",
            ),
        ),
        (say(en="cuda:1 and cpu", zh="cuda:1 和 cpu"), RIGHT),
        (
            say(en="cuda:0 and cuda:1", zh="cuda:0 和 cuda:1"),
            say(
                en="the outputs of both replicas have been gathered on one GPU before the loss sees them",
                zh="两个副本的输出在算损失之前已经收集到一块 GPU 上了",
            ),
        ),
    ],
    solution=lambda: say(
        en="The outputs are gathered at home, cuda:1; the labels never left the CPU.",
        zh="输出收集在主设备 cuda:1 上；标签一直在 CPU 上。",
    ),
)

choice(
    "05.absent",
    lambda: say(
        en='Two GPUs, and someone writes `"cuda:2"`. What happens?',
        zh='只有两块 GPU，有人写了 `"cuda:2"`。会怎样？',
    ),
    lambda: [
        (
            say(en="The second GPU is used", zh="用第二块 GPU"),
            say(
                en="GPUs are counted from zero: the second one is cuda:1",
                zh="GPU 从 0 开始编号：第二块是 cuda:1",
            ),
        ),
        (
            say(en="The tensor stays on the CPU", zh="张量留在 CPU 上"),
            say(
                en="PyTorch never chooses another device than the one you name",
                zh="PyTorch 从不自作主张换一个设备",
            ),
        ),
        (say(en="An error: there is no such GPU", zh="报错：没有这块 GPU"), RIGHT),
    ],
    solution=lambda: say(en="Two GPUs are cuda:0 and cuda:1.", zh="两块 GPU 就是 cuda:0 和 cuda:1。"),
)

choice(
    "05.listed",
    lambda: say(en="Which of the two replicas will fail?", zh="两个副本里，哪一个会出错？"),
    lambda: [
        (
            say(en="Replica 0, on cuda:0", zh="副本 0，在 cuda:0 上"),
            say(
                en="the hidden layer is on cuda:0, and so is this replica's piece: for it all fits",
                zh="藏起来的那一层就在 cuda:0 上，这个副本的分块也在：它这里都对得上",
            ),
        ),
        (say(en="Replica 1, on cuda:1", zh="副本 1，在 cuda:1 上"), RIGHT),
        (
            say(en="None: the layer was moved by hand", zh="都不会：那一层已经手工搬过去了"),
            say(
                en="moved, yes, to one GPU; but the other replica needs it on its own",
                zh="是搬了，但只搬到一块 GPU 上；另一个副本要的是在它自己那块上",
            ),
        ),
    ],
    solution=lambda: say(
        en="What lies in a plain list is not replicated: both replicas share the layer on cuda:0.",
        zh="放在普通列表里的层不会被复制：两个副本共用 cuda:0 上的那一个。",
    ),
)

choice(
    "05.keys",
    lambda: say(en="Which of the two loads?", zh="哪一种能加载？"),
    lambda: [
        (
            say(
                en="A bare model loads the weights of a wrapped one",
                zh="没有包装的模型加载包装过的模型的权重",
            ),
            say(
                en="the keys of a wrapped model begin with `module.`, and the bare one does not know them",
                zh="包装过的模型，键以 `module.` 开头，没有包装的模型不认识",
            ),
        ),
        (
            say(
                en="A wrapped model loads the weights of a bare one",
                zh="包装过的模型加载没有包装的模型的权重",
            ),
            say(
                en="then the wrapper looks for `module.weight` and finds `weight`",
                zh="这时包装器要找 `module.weight`，找到的却是 `weight`",
            ),
        ),
        (
            say(en="Both: the layer inside is the same", zh="都能：里面的层是一样的"),
            say(
                en="the numbers are the same, but the names are paths, and one path begins at the wrapper",
                zh="数值一样，但键是路径，其中一条从包装器开始",
            ),
        ),
        (say(en="Neither", zh="都不能"), RIGHT),
    ],
    solution=lambda: say(
        en="A key is the path to a weight, and the two paths begin in different places.",
        zh="键就是通往权重的路径，而两条路径的起点不同。",
    ),
)

choice(
    "05.loaded",
    lambda: say(en="After loading, where is `single`?", zh="加载之后，`single` 在哪里？"),
    lambda: [
        (
            say(en="On cuda:0, where the weights came from", zh="在 cuda:0 上，权重就是从那里来的"),
            say(
                en="`load_state_dict` copies values into the weights where they are; it moves no module",
                zh="`load_state_dict` 只把数值拷进现有的权重里，不会移动模块",
            ),
        ),
        (say(en="On the CPU, as before", zh="还在 CPU 上"), RIGHT),
    ],
    solution=lambda: say(
        en="Values are copied into the weights where they are.",
        zh="数值拷进了权重，权重原来在哪里，就还在哪里。",
    ),
)

choice(
    "05.map",
    lambda: say(
        en="Weights saved on cuda:1 are loaded where there is one GPU. What happens?",
        zh="在 cuda:1 上保存的权重，在只有一块 GPU 的机器上加载，会怎样？",
    ),
    lambda: [
        (
            say(en="They go to cuda:0", zh="放到 cuda:0 上"),
            say(
                en="PyTorch does not guess another place than the file names",
                zh="文件里写的是哪个设备，PyTorch 不会替你换一个",
            ),
        ),
        (
            say(en="They go to the CPU", zh="放到 CPU 上"),
            say(
                en='that is what `map_location="cpu"` is for; without it the file\'s own device is asked for',
                zh='要这样就得写 `map_location="cpu"`；不写，就要用文件里写的设备',
            ),
        ),
        (say(en="An error that names `map_location`", zh="报错，并提到 `map_location`"), RIGHT),
    ],
    solution=lambda: say(
        en="Each tensor goes back to where it was saved from, and there is no cuda:1 here.",
        zh="每个张量都要回到保存时所在的设备，而这里没有 cuda:1。",
    ),
)

choice(
    "05.cards",
    lambda: say(
        en="With `CUDA_VISIBLE_DEVICES=2,3`, which device is the real card 3?",
        zh="设了 `CUDA_VISIBLE_DEVICES=2,3`，真正的 3 号卡是哪个设备？",
    ),
    lambda: [
        (
            "cuda:3",
            say(
                en="the process sees two cards only, and counts them anew",
                zh="进程只看得到两块卡，而且重新编号",
            ),
        ),
        ("cuda:1", RIGHT),
        (
            "cuda:0",
            say(en="cuda:0 is the first in the list, card 2", zh="cuda:0 是列表里的第一块，即 2 号卡"),
        ),
    ],
    solution=lambda: say(
        en="The cards are numbered in the order of the list: card 2 is cuda:0 and card 3 is cuda:1.",
        zh="按列表的顺序重新编号：2 号卡是 cuda:0，3 号卡是 cuda:1。",
    ),
)
