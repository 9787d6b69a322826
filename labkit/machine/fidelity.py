"""The table of the documentation: the parts of CUDA that are faithful here, approximated, and absent.

``python -m labkit.machine`` prints it; ``docs/simulated.md`` is that print, and what ``labkit.distributed`` has to say
of ranks (:mod:`labkit.distributed.fidelity`). The functions of ``torch._C``
are listed from the code that answers them and from torch.cuda's own sources, what is changed from the patches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..base.patches import Patch
from ..turns.locks import waits
from .machine import Machine
from .torch_api.cuda import functions_of
from .torch_api.table import STAYS
from .torch_api.table import table as patches

FAITHFUL, APPROXIMATED, ABSENT = "faithful", "approximated", "absent"

# (what, how, in a sentence)
PARTS = (
    ("the device of every tensor", FAITHFUL, "views, `.data`, `detach`, saved tensors, parameters, gradients, deep copies, loaded files"),
    ("values and gradients", FAITHFUL, "computed by the CPU's kernels (or the backing GPU's); last digits may differ from CUDA's, in half precision more, where the CPU's kernels round in between (`grid_sample`)"),
    ("what CUDA's kernels refuse and compute", FAITHFUL, "dtypes by PyTorch's operator database, in CUDA's words (a refusal of both is the CPU's, with a note); what the CPU's kernels lack in half precision is computed in float32 and rounded, so `grad_fn` is that of the rounding; what C++ calls within backward keeps the CPU's refusal (sparse gradients in half precision, sums of complex halves); `embedding_bag` wants its first offset to be 0"),
    ("assertions on the device", APPROXIMATED, "an index out of range is CUDA's `device-side assert` with a note on operator and index; told at once, and the machine goes on, where on a GPU every later call of the process fails"),
    ("`use_deterministic_algorithms`", FAITHFUL, "operators without a fixed order on CUDA object in its words, in forward and backward, with `warn_only` too; uninitialized memory is filled (no rule for cuBLAS: PyTorch has none since 2.12)"),
    ("`torch.cuda.set_sync_debug_mode`", APPROXIMATED, "tells of copies that wait, of numbers, masks and results whose size is read on the host; as CUDA's own, not of everything (linear algebra that copies, sparse tensors)"),
    ("kernels under `nn.SyncBatchNorm`", FAITHFUL, "statistics in float32 for half precision, memory formats kept"),
    ("operations that mix devices", FAITHFUL, "refused with CUDA's two messages, by torch's own operator table; 0-dim CPU tensors and CPU indices pass where CUDA lets them"),
    ("`nn.parallel`, `torch.cuda.comm`", FAITHFUL, "PyTorch's own Python code over the seven collectives that a CPU build lacks"),
    ("Python below the operators", FAITHFUL, "`__torch_function__` and `__torch_dispatch__` of subclasses and modes, wrapper subclasses, operators of `torch.library` with their kernels for CPU and CUDA: devices, memory and refusals as on the real machine"),
    ("`DTensor`, FSDP2", APPROXIMATED, "devices and memory of the wrapper and of its local tensors, in the forward and the backward pass; random operators give each shard other numbers and its copies the same, and leave all ranks' generators alike, as by CUDA's offsets; the numbers of shards are others than on CUDA, those of a replicated tensor one GPU's"),
    ("`torch.func`, batched gradients", FAITHFUL, "what `vmap`, `grad` and `is_grads_batched` wrap is where its values are"),
    ("optimizers, `GradScaler`, `clip_grad_norm_`", FAITHFUL, "grouped by simulated device; foreach and fused use the CPU's kernels, of which the fused want the state in the dtype of the parameters"),
    ("`torch.save`, `torch.load`, pickling", FAITHFUL, "locations and `map_location` as on the real machine"),
    ("current device, threads, `torch.accelerator`", FAITHFUL, "each thread has its own current device; threads started while the machine is up see it"),
    ("threads that were running before", ABSENT, "a thread started before `simulate()` does not see the machine"),
    ("memory allocated", APPROXIMATED, "exact for tensors that Python sees, for gradients (also those that nobody reads) and for the buckets of DistributedDataParallel, in blocks of 512 bytes; buffers inside an operation and what only autograd holds (what it saves inside a composed operation, gradients on their way to others) are not counted"),
    ("peak memory", APPROXIMATED, "as memory allocated, exact to 16 KiB; within a backward pass it is looked at wherever Python is called, and at the end"),
    ("reserved memory, cache, fragmentation", APPROXIMATED, "reserved is what is allocated, each storage a segment of its own at an invented address; there is no cache, so no address comes back, and the allocator's settings (`PYTORCH_CUDA_ALLOC_CONF`, growing segments, rounding) change nothing"),
    ("out of memory", APPROXIMATED, "CUDA's error at the limit, counted as above, recoverable, and looked at before the computer is asked where a call says how much it makes; where a GPU has room and the computer has none, an error of labkit's says so, but one operation's result larger than the computer's memory may end the process"),
    ("`autocast(\"cuda\")`", APPROXIMATED, "CUDA's lists at torch's Python functions, the CPU's inside composite ones; no cache of cast weights"),
    ("random numbers", APPROXIMATED, "a generator for each GPU, seeded as CUDA's are, but the CPU's numbers"),
    ("order of replicas", APPROXIMATED, "in device order unless `order=\"threads\"`; real GPUs run them in any order; one that waits for another by a lock, queue or barrier of Python hands its turn on, by a pipe or other C code it does not; they race where the locks of Python cannot be watched (another Python than CPython)"),
    ("streams and events", APPROXIMATED, "everything runs when it is called, so a query is always done; times are virtual and repeat; backward is on the stream of its forward, a hook of a tensor that no Function of Python made on the stream on which it was registered"),
    ("device properties", APPROXIMATED, "those of one invented GPU of compute capability 9.0, with the memory asked for"),
    ("pinned memory", APPROXIMATED, "remembered, not pinned"),
    ("initialisation", APPROXIMATED, "CUDA counts as initialised from the start (in a rank, from its first use); what `CUDA_VISIBLE_DEVICES` shows is read when torch is imported (`simulate()` gives what it was asked for), and a script that sets it later changes nothing"),
    ("child processes", APPROXIMATED, "every Python that is started by a process with a machine (and by one of `labkit run`, however deep) sees the same GPUs when it imports torch: its environment says so, `LABKIT_MACHINE` and a folder in `PYTHONPATH`; each counts its own memory, so that two may fill one GPU; one that is started with `-E`, `-I` or `-S`, or by a shell that takes these variables away, sees none; a worker that outlives the machine keeps its own"),
    ("forks", APPROXIMATED, "a fork after a GPU was chosen (`set_device`) or something was put on one has lost the GPUs, with CUDA's two errors; a query such as `current_device()` does not count as a use"),
    ("tensors sent to other processes", APPROXIMATED, "queues, pipes, `DataLoader` workers and arguments of processes share the memory as CUDA's IPC does, and only the sender counts it; the sender need not keep it alive, but its process must live until the tensor has come (one that ends at once leaves the receiver a bare EOFError); with a real GPU as backing it is refused"),
    ("TorchScript", APPROXIMATED, "what a scripted call returns is where its inputs are; devices that mix inside are not noticed; a saved script forgets its GPU, `map_location` says it"),
    ("threads of backward", APPROXIMATED, "backward runs on the thread that calls it, whatever the GPU; the real engine has a thread for each GPU, so that its GPUs' errors and prints come in any order"),
    ("fast paths of `nn.MultiheadAttention` and `nn.TransformerEncoder`", ABSENT, "not taken, as under any function mode: in eval mode with a padding mask, the padded rows of an encoder's output hold values where CUDA gives zeros"),
    ("warnings of PyTorch's C++ code", APPROXIMATED, "name a line of labkit's, or of another function mode, instead of the caller's"),
    ("profilers, NVTX", APPROXIMATED, "they run and see the CPU's operations; nothing is timed on a GPU"),
    ("cuDNN", ABSENT, "`cudnn.is_acceptable` is False, so RNN weights are not flattened"),
    ("speed", ABSENT, "the GPUs share one CPU"),
    ("`torch.compile`, `torch.export`", ABSENT, "refuse with an error; with `TORCHDYNAMO_DISABLE=1` in the environment `torch.compile` gives back what it is given, as it does everywhere"),
    ("memory for other libraries", ABSENT, "`__cuda_array_interface__` refuses: use `.cpu()`; DLPack works between torch and torch, and says CUDA to others"),
    ("sparse tensors", FAITHFUL, "COO, CSR and their kin: the tensor, its indices and its values are on one device, also after `copy_` and `torch.load`"),
    ("`torch.nested`", FAITHFUL, "both layouts: the tensor and its values are on one device"),
    ("`FakeTensorMode`", APPROXIMATED, "fake tensors stand for tensors on simulated GPUs; gradients of them are refused (a build without CUDA has no guard for autograd)"),
    ("NCCL", APPROXIMATED, "a process group `nccl` checks, meets and computes as said below under ranks; between processes its bytes travel by gloo"),
    ("CUDA graphs, custom kernels, memory pools", ABSENT, "refuse with an error that names the missing function; so do external streams, the history of memory, statistics of pinned memory and TunableOp"),
    ("`torch.cuda._sanitizer`, callbacks of the runtime", ABSENT, "refuse with an error: nothing would be heard of what is allocated"),
    ("operators that PyTorch has for CUDA alone", ABSENT, "products of packed 4-bit weights and the like: PyTorch's own error, which speaks of the CPU"),
    ("one real GPU as backing", APPROXIMATED, "written, not yet run on a GPU"),
)  # fmt: skip


def provided() -> list[str]:
    """The functions of ``torch._C`` that the machine answers."""
    return sorted(functions_of(Machine(1)))


def missing() -> list[str]:
    """The CUDA functions of ``torch._C`` that torch.cuda's sources mention and the machine does not answer."""
    folder = Path(torch.cuda.__file__).parent
    text = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    return sorted(set(re.findall(r"_C\.(_cuda_\w+|_nccl_\w+)", text)) - set(provided()))


def table() -> str:
    """The table as Markdown."""
    lines = [
        "# What is simulated, and what is not",
        "",
        "Made by `python -m labkit.distributed`; of the machine alone, by `python -m labkit.machine`.",
        "",
        "| | | |",
        "| --- | --- | --- |",
    ]
    for how in (FAITHFUL, APPROXIMATED, ABSENT):
        lines += [f"| **{how}** | {what} | {note} |" for what, found, note in PARTS if found == how]
    lines += ["", "## Functions of `torch._C` that are answered", "", listed(provided())]
    lines += [
        "",
        "## Functions of `torch._C` that torch.cuda uses and that raise an error",
        "",
        listed(missing()),
    ]
    lines += ["", "## What is changed while a machine is in use, besides `torch._C`", ""]
    lines += [f"- `{owner}`: {listed(names)}" for owner, names in changed(patches(Machine(1))).items()]
    lines += ["", "Only during a data-parallel call, for replicas that wait for each other:", ""]
    lines += [f"- `{owner}`: {listed(names)}" for owner, names in changed(waits()).items()]
    lines += ["", "All of it is taken back. What stays for the process:", ""]
    lines += [f"- {what}: {why}" for what, why in STAYS]
    return "\n".join(lines) + "\n"


def owner_name(owner: Any) -> str:
    """The name of a module, a class, or the class of a single object."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", None) or owner_name(type(owner))


def changed(rows: Iterable[Patch]) -> dict[str, list[str]]:
    """The modules and classes outside ``torch._C`` that ``rows`` change, each with the names."""
    found: dict[str, list[str]] = {}
    for owner, name, _ in rows:
        if name == "__torch_dispatch__":  # of whichever modules are loaded
            found["every class of tensors or modes that has it"] = [name]
            continue
        where = owner_name(owner)
        if where.startswith("torch.distributed.tensor."):  # if it is loaded: table.STAYS says it
            continue
        found.setdefault(where, []).append(name)
    return {owner: sorted(names) for owner, names in sorted(found.items()) if owner != "torch._C"}


def listed(names: list[str]) -> str:
    """Names as Markdown."""
    return ", ".join(f"`{name}`" for name in names)
