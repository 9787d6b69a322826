"""Everything that a simulated machine changes: the table of all patches, and what stays for the process."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.patches import Patch
from .. import hooks
from ..ops import gradients, mode, moves, storages
from ..state import random, streams, threads
from ..state.gpu import TheMachine
from . import cuda

SUBJECTS = (storages, streams, random, cuda, gradients, mode, moves, threads)

# Closing a machine does not take these back; each with the reason why that is harmless.
STAYS = (
    (
        "`mallopt(M_ARENA_MAX, 1)`",
        "new threads take memory that old ones warmed up; glibc's allocator only, once",
    ),
    (
        "in `torch.distributed.tensor`: `DTensor.__new__`, `OpDispatcher.redistribute_local_args`, "
        "`OpDispatcher._custom_op_handlers`, "
        "`OffsetBasedRNGTracker.__new__`, `run_dtensor_rng_op`, where it is imported while a machine is in use",
        "wrapped likewise; imported earlier, they are taken back",
    ),
    (
        "`__torch_dispatch__` of classes made while a machine is in use",
        "wrapped, so that it sees the machine; without one it is called as it is",
    ),
    ("`os.register_at_fork`", "Python cannot take a callback back; without a machine ours does nothing"),
)


# The attributes that the machine puts on objects of torch and of Python.
ATTRIBUTES = {
    "_labkit_mark": "a storage: where it lives (state/marks.py)",
    "_labkit_pinned": "a storage: whether it is in pinned memory (state/marks.py)",
    "_labkit_gpu": "a generator: the GPU for which it was made (state/random.py)",
    "_labkit_offsets": "a generator: its states by the offsets that were told (state/random.py)",
    "_labkit_turn": "a thread: its turn among the replicas (state/threads.py)",
    "_labkit_inputs": "a node of the graph, a module's hook: the GPU of each input (ops/gradients.py)",
    "_labkit_outputs": "a node of the graph, a module's hook: the GPU of each output (ops/gradients.py)",
    "_labkit_stream": "a node of the graph: the stream of its forward (ops/gradients.py)",
    "_labkit_streams": "a module's hook: the streams of its inputs and outputs (features/module_hooks.py)",
    "_labkit_modes": "a context manager: the modes that came with it (features/autocast.py, dispatch/noting.py)",
    "_labkit_wrapped": "a __torch_dispatch__: it sees the machine already (features/dispatch/classes.py)",
    "_labkit_libraries": "torch.library: the registrations that stand over others (features/dispatch/libraries.py)",
    "_labkit_held": "a Reducer: the bytes of its buckets (features/reducers.py)",
    "_labkit_map": "a Reducer: the bytes of its map of used parameters (features/reducers.py)",
}

# The values of the process that change while the program runs, by module; whatever is registered is not among them.
VALUES = {
    "machine": "_opened, _changing: the machines that are open, and the lock around their changes",
    "real_gpus": "_open: the limit to the computer's first GPUs",
    "state.in_use": "_active: the machine that torch sees",
    "state.leaves": "_running: the threads in a backward pass",
    "state.work": "work: where this thread's call is at work",
    "ops.gradients": "_moving: tensors that moved, whose gradients have not yet",
    "torch_api.absent": "REFUSED: how often what was refused",
    "features.pinned": "_registered: memory that was pinned where it is",
    "features.dispatch.libraries": "_routed: the host's kernels within routers",
    "features.watching.syncs": "_levels: the answer to calls that wait, by machine",
    "features.watching.telling": "_here: whether this thread's call is watched",
}


def table(machine: TheMachine) -> Iterator[Patch]:
    """Every change in torch and Python while ``machine`` is in use; each row is made from what stands there now.

    While replicas take turns :func:`labkit.turns.locks.waits` is in too.
    """
    for rows in (*(subject.patches for subject in SUBJECTS), *hooks.patches):
        yield from rows(machine)


def prepare_process(machine: TheMachine) -> None:
    """Do what :data:`STAYS`, once for the process."""
    if machine.order != "threads":
        threads.share_one_arena()
    for opened in hooks.opened:
        opened(machine)
