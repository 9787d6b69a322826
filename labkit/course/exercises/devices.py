"""Exercises of lesson 05: which device_ids, where the output is, and keys without ``module.``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ...base.language import say
from ..exercise import ANY_OTHER, RIGHT, Hints, Kind, exercise
from ..kinds import A_DEVICE, a_function, gpu_number, numbers, returned, wrong_return


def _gpu_numbers(answer: object) -> tuple[int, ...]:
    return numbers(map(gpu_number, answer) if isinstance(answer, (list, tuple)) else answer)


@exercise(
    "05.ids",
    Kind(
        _gpu_numbers,
        lambda: say(en="a list of GPU numbers, such as `[0, 1]`", zh="一个 GPU 编号的列表，例如 `[0, 1]`"),
    ),
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
            en="that works, but on cuda:1 alone; both GPUs shall have work",
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
