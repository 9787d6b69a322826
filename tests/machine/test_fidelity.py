"""The table of what is simulated is the one in the documentation, and true."""

import re
from pathlib import Path

import pytest
import torch

from labkit_ranks import fidelity as ranks
from simgpu import fidelity
from simgpu.torch_api.cuda import functions_of

DOCS = Path(__file__).parents[2] / "docs" / "simulated.md"


def test_the_documentation_is_what_the_code_says():
    written, made = DOCS.read_text("utf-8"), fidelity.table() + ranks.table()
    assert written == made, "python -m labkit_ranks > docs/simulated.md"


def test_what_torch_asks_for_and_nothing_answers_raises(gpus):
    text = "".join(path.read_text("utf-8") for path in Path(torch.cuda.__file__).parent.glob("*.py"))
    missing = set(re.findall(r"_C\.(_cuda_\w+|_nccl_\w+)", text)) - functions_of(gpus).keys()
    assert len(missing) > 20
    for name in missing:
        if isinstance(getattr(torch._C, name, None), type):
            continue  # torch puts placeholder classes in some places
        with pytest.raises(NotImplementedError, match=f"no torch._C.{name}"):
            getattr(torch._C, name)()


# The answers on a new machine of two GPUs: name -> (arguments, answer).
GIB = 1024**3
ANSWERS = {
    "_accelerator_emptyCache": ((), None), "_accelerator_emptyHostCache": ((), None),
    "_accelerator_exchangeDevice": ((1,), 0),
    "_accelerator_getAccelerator": ((), torch.device("cuda")), "_accelerator_getDeviceIndex": ((), 0),
    "_accelerator_getMemoryInfo": ((1,), (16 * GIB, 16 * GIB)),
    "_accelerator_isAllocatorInitialized": ((), True), "_accelerator_maybeExchangeDevice": ((-1,), -1),
    "_accelerator_resetAccumulatedStats": ((0,), None), "_accelerator_resetPeakStats": ((0,), None),
    "_accelerator_setDeviceIndex": ((1,), None), "_accelerator_synchronizeDevice": ((1,), None),
    "_cuda_canDeviceAccessPeer": ((1, 1), False), "_cuda_emptyCache": ((), None),
    "_cuda_exchangeDevice": ((1,), 0), "_cuda_getAllocatorBackend": ((), "native"),
    "_cuda_getArchFlags": ((), "sm_90"), "_cuda_getCompiledVersion": ((), 13000),
    "_cuda_getCurrentRawStream": ((1,), 0), "_cuda_getCurrentStream": ((1,), (0, 1, 1)),
    "_cuda_getDefaultStream": ((1,), (0, 1, 1)), "_cuda_getDevice": ((), 0),
    "_cuda_clearCublasWorkspaces": ((), None), "_cuda_getDeviceCount": ((), 2),
    "_cuda_hasPrimaryContext": ((1,), False), "_host_emptyCache": ((), None),
    "_cuda_getMemoryFraction": ((1,), 1.0), "_cuda_init": ((), None), "_cuda_ipc_collect": ((), None),
    "_cuda_isCurrentStreamCapturing": ((), False),
    "_cuda_maybeExchangeDevice": ((-1,), -1), "_cuda_resetAccumulatedMemoryStats": ((0,), None),
    "_cuda_resetPeakMemoryStats": ((0,), None), "_cuda_setDevice": ((1,), None),
    "_cuda_setMemoryFraction": ((0.5, 1), None), "_cuda_setStream": ((40, 1, 1), None),
    "_cuda_get_cudnn_benchmark_limit": ((), 10), "_cuda_set_cudnn_benchmark_limit": ((5,), None),
    "_cuda_sleep": ((10**6,), None), "_cuda_synchronize": ((), None),
    "_get_accelerator": ((), torch.device("cuda")),
}  # fmt: skip
# These answer with objects; other tests hold them.
OBJECTS = {
    "_accelerator_getDeviceCapability", "_accelerator_getDeviceStats", "_accelerator_getStream",
    "_accelerator_setStream", "_broadcast", "_broadcast_coalesced", "_broadcast_out", "_cuda_memoryStats", "_gather",
    "_gather_out", "_group_tensors_by_device_and_dtype", "_scatter", "_scatter_out",
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_answered_answers(gpus, name):
    arguments, answer = ANSWERS[name]
    assert getattr(torch._C, name)(*arguments) == answer


def test_everything_that_is_answered_is_asked_for_by_torch(gpus):
    assert functions_of(gpus).keys() == ANSWERS.keys() | OBJECTS
    folder = Path(torch.__file__).parent
    # The programs of torch that ask, and its list of what C++ has.
    rooms = [
        folder / "_dynamo/trace_rules.py", *folder.glob("cuda/*.py"), *folder.glob("accelerator/*.py"),
        folder / "_C/__init__.pyi",
    ]  # fmt: skip
    rooms += [folder / "nn/parallel/comm.py", folder / "utils/_foreach_utils.py"]
    text = "".join(path.read_text("utf-8") for path in rooms)
    assert {name for name in functions_of(gpus) if not re.search(rf"\b{name}\b", text)} == set()
