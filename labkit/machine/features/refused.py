"""Parts of torch's Python that a simulated machine does not have: graphs, memory pools, compilation, Triton, export."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from ...base.language import say
from ...base.patches import Patch
from .. import hooks
from ..state.gpu import TheMachine
from ..torch_api.absent import Absent, refusing


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


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Classes and functions of Python that are refused. torch_api/cuda.py refuses the functions of torch._C."""
    cuda = torch.cuda
    # On a CUDA build their bases in torch._C are classes of C++; only the classes of Python can be replaced.
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
