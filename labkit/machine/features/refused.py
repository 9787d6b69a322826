"""Parts of torch's Python that a simulated machine does not have: graphs, memory pools, Triton, export."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NoReturn

import torch

from ...base.patches import Patch
from ...base.texts import texts_beside
from .. import hooks
from ..state.gpu import TheMachine
from ..torch_api.absent import Absent, refusing

_TEXTS = texts_beside(__file__)


def _refuse(what: str, *_: object, **__: object) -> NoReturn:
    raise Absent(str(_TEXTS[what,]))


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
    for owner in (torch.library, torch._library.triton):
        yield Patch(owner, "wrap_triton", partial(_refuse, "triton"))
    # Their fake tensors ask C++ for CUDA, which ends the process where there is none.
    for name in ("export", "draft_export"):
        yield Patch(torch.export, name, partial(_refuse, "export"))
