"""Refuse parts of torch that the machine lacks by name, instead of crashing or answering wrongly."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from labkit.base.language import say

from ..state.errors import NotSimulated


class Absent(NotSimulated, AttributeError, NotImplementedError):
    """Error for a part of torch that the simulated machine lacks. With ``asked``, count the refusal."""

    def __init__(self, text: str, *, asked: bool = True) -> None:
        super().__init__(text)
        if asked:
            REFUSED[text] += 1


# Refusals by the error's text, for `labkit run --summary`.
REFUSED: Counter[str] = Counter()


def refusing(name: str) -> Callable[..., NoReturn]:
    """Return a replacement of ``torch._C.name`` that raises :class:`Absent`."""
    return functools.partial(_refuse, name)


def _refuse(name: str, *_: object, asked: bool = True, **__: object) -> NoReturn:
    raise Absent(
        say(
            en=f"labkit's simulated machine has no torch._C.{name}: this part of torch.cuda needs a real GPU "
            "(python -m simgpu prints what is simulated)",
            zh=f"labkit 的模拟机器没有 torch._C.{name}：torch.cuda 的这一部分需要真 GPU"
            "（python -m simgpu 会列出模拟了什么）",
        ),
        asked=asked,
    )


def absent(name: str) -> NoReturn:
    """Refuse a missing name of ``torch._C``, as its ``__getattr__``."""
    if name.startswith(("_cuda_", "_nccl_", "_cudnn_", "_cublas")):
        _refuse(name, asked=False)  # hasattr() comes here too
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
