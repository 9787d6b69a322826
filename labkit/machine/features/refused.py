"""What the simulated machine does not have says so, by name, instead of ending the process or answering wrongly."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...base.language import say
from ...base.patches import Patch
from ..state.not_simulated import NotSimulated

if TYPE_CHECKING:
    from ..machine import Machine


class Absent(NotSimulated, AttributeError, NotImplementedError):
    """Something of torch that the simulated machine does not have. What was asked for and refused is counted."""

    def __init__(self, text: str, *, asked: bool = True) -> None:
        super().__init__(text)
        if asked:
            REFUSED[text] += 1


# How often what was refused, by what the error says: `labkit run --summary` tells.
REFUSED: Counter[str] = Counter()


def refusing(name: str) -> Callable[..., NoReturn]:
    """A function that stands for ``torch._C.name`` and raises :class:`Absent`."""
    return functools.partial(_refuse, name)


def _refuse(name: str, *_: object, asked: bool = True, **__: object) -> NoReturn:
    raise Absent(
        say(
            en=f"labkit's simulated machine has no torch._C.{name}: this part of torch.cuda needs a real GPU "
            "(python -m labkit.machine prints what is simulated)",
            zh=f"labkit 的模拟机器没有 torch._C.{name}：torch.cuda 的这一部分需要真 GPU"
            "（python -m labkit.machine 会列出模拟了什么）",
        ),
        asked=asked,
    )


def absent(name: str) -> NoReturn:
    """What ``torch._C`` says of a name that it does not have."""
    if name.startswith(("_cuda_", "_nccl_", "_cudnn_", "_cublas")):
        _refuse(name, asked=False)  # whoever looks whether it is there
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def _no_export(*args: object, **kwargs: object) -> NoReturn:
    raise Absent(
        say(
            en="torch.export does not see labkit's simulated GPUs: export the model on the CPU after the machine "
            "was closed (its .close())",
            zh="torch.export 看不到 labkit 的模拟 GPU：先关闭机器（.close()），再在 CPU 上导出模型",
        )
    )


def _without_compile() -> Callable[..., Any]:
    compiled = torch.compile

    @functools.wraps(compiled)
    def refused(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
            return compiled(
                *args, **kwargs
            )  # which gives back what it was given (torch/_dynamo/eval_frame.py)
        raise Absent(
            say(
                en="torch.compile does not see labkit's simulated GPUs: run the model eagerly, which "
                "TORCHDYNAMO_DISABLE=1 in the environment does for a script as it is, or close the machine (its "
                ".close()) to compile for the CPU",
                zh="torch.compile 看不到 labkit 的模拟 GPU：请直接运行模型（eager；设置环境变量 "
                "TORCHDYNAMO_DISABLE=1 就不必改脚本），或者关闭机器（.close()）后为 CPU 编译",
            )
        )

    return refused


def _no_triton(*args: object, **kwargs: object) -> NoReturn:
    raise Absent(
        say(
            en="Triton kernels run on a real GPU: on labkit's simulated machine give the operator a kernel in PyTorch "
            "(torch.library.custom_op, or register_kernel('cuda'))",
            zh="Triton 计算核要在真 GPU 上运行：在 labkit 的模拟机器上，请给这个算子写一个 PyTorch 版本的计算核"
            "（torch.library.custom_op，或 register_kernel('cuda')）",
        )
    )


def patches(machine: Machine) -> Iterator[Patch]:
    """What is refused in Python; the functions of torch._C that are not answered stand with those that are."""
    cuda = torch.cuda
    # Their bases in torch._C are C++ classes on a CUDA build: Python's own classes are what can be stopped.
    yield Patch(cuda.CUDAGraph, "__new__", refusing("_CUDAGraph"))
    yield Patch(cuda.MemPool, "__new__", refusing("_MemPool"))
    yield Patch(cuda.ExternalStream, "__new__", refusing("_CudaStreamBase"))
    yield Patch(cuda.graphs, "_graph_pool_handle", refusing("_graph_pool_handle"))
    # torch._inductor imports this class where CUDA is there, and torch._dynamo.reset() imports torch._inductor.
    name = "_cuda_CUDAAllocator_AllocatorState"
    if not hasattr(torch._C, name):
        yield Patch(torch._C, name, type(name, (), {"__new__": refusing(name)}))
    # torch.cuda._sanitizer and _gpu_trace ask for callbacks that would never come.
    yield Patch(torch._C, "_activate_gpu_trace", refusing("_activate_gpu_trace"))
    yield Patch(torch, "compile", _without_compile())
    for owner in (torch.library, torch._library.triton):
        yield Patch(owner, "wrap_triton", _no_triton)
    # Their fake tensors ask C++ for CUDA, which ends the process where there is none.
    yield Patch(torch.export, "export", _no_export)
    yield Patch(torch.export, "draft_export", _no_export)
