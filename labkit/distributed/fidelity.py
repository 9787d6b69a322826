"""A part of the documentation's table: which parts of torch.distributed are simulated, how, and which refuse.

It stands in ``docs/simulated.md`` below what is said of the machine; ``python -m labkit.distributed`` prints both.
"""

from __future__ import annotations

from ..machine.fidelity import ABSENT, APPROXIMATED, FAITHFUL, changed, listed
from .threads.torch_patches import patches
from .threads.world import World

# (what, how, in a sentence)
PARTS = (
    ("process groups `nccl`, `gloo`, `cpu:gloo,cuda:nccl`", FAITHFUL, "every collective and message of `torch.distributed`, sync, async, coalesced, of objects, functional and with autograd; subgroups, `split_group`, stores, every way to initialise"),
    ("what is built on them", FAITHFUL, "PyTorch's own code, unchanged: `DistributedDataParallel` and its Reducer, `join`, comm hooks, `ZeroRedundancyOptimizer`, FSDP1, FSDP2, `DeviceMesh`, `DTensor`, tensor and sequence parallelism, pipeline schedules, `SyncBatchNorm`, distributed checkpoints, samplers"),
    ("values", APPROXIMATED, "sums are taken in the order of the ranks, in the tensors' own type; NCCL's rings and trees take them in another order, so last bits may differ; ranks in one process and in several agree bit for bit, each computing with one thread where `OMP_NUM_THREADS` is not set, as under torchrun (`mp.spawn` sets nothing)"),
    ("what is refused", FAITHFUL, "tensors on the wrong device, of a type, layout or size that NCCL does not take, two ranks on one GPU, reductions that NCCL lacks, groups that exclude the caller, use after destroy: in PyTorch's and NCCL's own words"),
    ("calls that do not fit together", APPROXIMATED, "another collective, other sizes, types, roots: an error at once that names both ranks and lines, where NCCL hangs, crashes or mixes bytes; an all_to_all in place and lists of the wrong length are refused in words, where NCCL reads or writes wrong memory"),
    ("deadlocks", APPROXIMATED, "told the moment every rank waits, with each rank's call and line, where NCCL's watchdog takes ten minutes"),
    ("`timeout=`", APPROXIMATED, "by the ranks' own clocks, which run side by side however long their turns take; the error is raised in the rank that waited, in the words of NCCL's watchdog, which would end the process"),
    ("a `send` before its `recv`", APPROXIMATED, "up to 4 MiB (the buffer of NCCL's connections) it goes on, a larger one waits; NCCL takes no notice of tags, gloo does"),
    ("collectives beside computation", APPROXIMATED, "a collective happens when its last member calls it or, where C++ waits for it (DDP's buckets), then and there; the clocks of ranks that were asynchronous go on meanwhile"),
    ("how a rank is ended", APPROXIMATED, "when one fails, the others are ended where they wait, or at their next line: their `finally:` blocks run, side by side; torchrun ends processes by SIGTERM, so that none runs. Ctrl-C raises KeyboardInterrupt in each rank under `labkit torchrun`; in a notebook it ends all"),
    ("waiting for a lock, a queue, an event", APPROXIMATED, "seen where a rank's main thread does so and no other thread of it could end that; a pipe, a socket, a lock of `multiprocessing` is not seen, and the others stand until their timeout"),
    ("time", APPROXIMATED, "each rank's clock counts what it computes on this computer, without imports; what a collective would take on a network is not in it"),
    ("ranks in one process", APPROXIMATED, "threads of which one runs at a time, until it waits for another; each has its own `__main__`, modules of the script, environment, arguments, folder, random states, warnings, loggers and settings of torch; installed packages are shared, with what they keep in their globals (one that reads `RANK` or `LOCAL_RANK` while it is imported is each rank's own), and so are the process's number, open files and C libraries"),
    ("repeats", FAITHFUL, "the same script takes the same turns and draws the same numbers; a rank that seeds nothing has seeds of its own, the same in every run"),
    ("ranks as processes (`--processes`, `mp.spawn`, `accelerate launch`, torchrun itself under `labkit run`)", FAITHFUL, "real processes, real bytes by gloo on this computer, sums in the order of the ranks: the same bits as ranks in one process; deadlocks are told within about a second; needs an operating system that can fork for `--processes`; a process whose messages are on their way at its end stays until they are received, or until all have ended"),
    ("torchrun's arguments", APPROXIMATED, "all are taken; in one process `--rdzv-*`, `--monitor-interval`, `--start-method`, `--numa-binding`, `--signals-to-handle` and `--shutdown-timeout` change nothing and are named when given, `--no-python`, `--virtual-local-rank` and `--logs-specs` need `--processes`, `--nnodes 1:4` starts the upper number, a `--node-rank` other than 0 is refused"),
    ("several nodes (`--nnodes`)", APPROXIMATED, "each has its own GPUs, `cuda:0` to `cuda:k`, and ranks and environment as torchrun numbers them; names, links and speeds of a network are not simulated"),
    ("memory of ranks", APPROXIMATED, "to the block of 512 bytes: gradients that C++ makes, DDP's buckets and its map of used parameters, FSDP's shards and gathered weights, optimizer shards; what C++ holds for a moment within backward, NCCL's own buffers and CUDA's contexts are not counted, and a rank that asks for another rank's GPU is told what lives there, where a process is told of its own share alone"),
    ("`torch.profiler` in ranks", APPROXIMATED, "it is one for the process that they share: the first rank that begins a profile has it, another one's is empty meanwhile, with a warning"),
    ("`torch.compile` in ranks", APPROXIMATED, "what is compiled runs as it is, with a warning: PyTorch's own wrapper around a module, the same values but for rounding; graph breaks, `fullgraph=True`, modes and backends are not looked at"),
    ("what DDP writes down of itself", APPROXIMATED, "`_get_ddp_logging_data()`: C++ sees where the values are, so a module on several GPUs is not called one"),
    ("traces of ranks", APPROXIMATED, "of ranks as processes each clock begins with its process and stands while that waits; a message that its sender does not wait for is told to its receiver alone as it happens, and joined afterwards; those of scripts that start their processes themselves are not recorded"),
    ("lists that are handed to a group's own methods", APPROXIMATED, "`group.allreduce([a, b])` and its kin with lists that no function of `torch.distributed` makes (several tensors, none, of several types or sizes) are taken, or refused in other words than gloo's and NCCL's"),
    ("`_dist2`, `batch_p2p_ops`, `all_gather_into_tensor_out`", ABSENT, "`torch.distributed._dist2.new_group` refuses with a TypeError of C++; two functional collectives, of messages in a batch and into a given tensor, say that there is no backend for the CPU: C++ calls them past the group"),
    ("`LocalTensorMode` within a rank", ABSENT, "its collectives refuse with a TypeError of C++, which wants a group of C++'s; outside ranks, over PyTorch's own group `fake`, it works"),
    ("`torch.distributed.rpc`, MPI, UCC, symmetric memory, NCCL's own knobs", ABSENT, "windows, flight recorder, `ncclCommAbort` within a collective, estimates of time: not there, or without effect"),
)  # fmt: skip


def table() -> str:
    """The part as Markdown."""
    lines = ["", "## Ranks: what of torch.distributed is simulated", "", "| | | |", "| --- | --- | --- |"]
    for how in (FAITHFUL, APPROXIMATED, ABSENT):
        lines += [f"| **{how}** | {what} | {note} |" for what, found, note in PARTS if found == how]
    lines += ["", "What is changed besides while ranks are there, and taken back with them:", ""]
    with World(1):
        lines += [f"- `{owner}`: {listed(names)}" for owner, names in changed(patches(bool)).items()]
    return "\n".join(lines) + "\n"
