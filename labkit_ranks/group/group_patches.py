"""Patches of ``torch.distributed`` that put simulated process groups in."""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from labkit.base.patches import Patch
from simgpu import gpu_of
from simgpu.dispatch import MachineMode

from ..calls.checks.nccl import NCCL_VERSION
from ..rank import flight_recorder
from ..rank.rank import current_rank
from . import process_group
from .process_group import SimulatedProcessGroup
from .slot import Transport


def patches(of_processes: Callable[[SimulatedProcessGroup], Transport]) -> Iterator[Patch]:
    """Yield the patches of groups.

    of_processes   makes the transport of a group whose ranks are processes.
    """
    process_group.make_process_transport = of_processes
    yield Patch.wrap(distributed_c10d, "_new_process_group_helper", _make_group)
    yield Patch.wrap(distributed_c10d, "has_torch_function", _has_torch_function)
    for owner in (distributed_c10d, dist):
        yield Patch(owner, "_NCCL_AVAILABLE", True)
        yield Patch(owner, "ProcessGroupNCCL", NcclGroup)
        yield Patch(owner, "is_nccl_available", lambda: True)
        yield Patch(owner, "ProcessGroupGloo", GlooGroup)
    yield Patch(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    yield Patch.wrap(distributed_c10d, "_set_pg_timeout", _set_timeout)
    # TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 would choose torchcomms, if installed, to move tensors.
    yield Patch(distributed_c10d, "_TORCHCOMM_AVAILABLE", False)
    yield Patch(c10d, "ProcessGroupNCCL", NcclGroup)
    major, minor, patch = NCCL_VERSION  # packed as in torch/csrc/cuda/python_nccl.cpp
    yield Patch(torch._C, "_nccl_version", lambda: major << 32 | minor << 16 | patch)
    yield Patch(torch._C, "_nccl_version_suffix", lambda: b"")
    yield Patch(c10d, "_hash_tensors", _hash_tensors)
    yield from flight_recorder.patches(current_rank, c10d)
    yield Patch(DistributedDataParallel, "_register_builtin_comm_hook", _register_builtin)
    yield Patch.wrap(DistributedDataParallel, "forward", _count_forward)
    yield Patch.wrap(Join, "notify_join_context", _keep_join_work)
    for name in ("_verify_params_across_processes", "_broadcast_coalesced"):
        yield Patch.wrap(dist, name, _note_model_gpu)


class NcclOptions(SimpleNamespace):
    """Replaces ``ProcessGroupNCCL.Options``."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__(
            is_high_priority_stream=is_high_priority_stream, _timeout=timedelta(minutes=10), backend="nccl",
            global_ranks_in_group=[], group_name="", group_desc="", split_from=None, split_color=None,
            config=SimpleNamespace(),
        )  # fmt: skip

    def __deepcopy__(self, memo: Any) -> NcclOptions:
        # split_group copies the parent's options: the copy keeps the same ``split_from``.
        copied = NcclOptions()
        copied.__dict__.update(self.__dict__, global_ranks_in_group=list(self.global_ranks_in_group))
        return copied


class NcclGroup(SimulatedProcessGroup):
    """Replaces ``torch.distributed.ProcessGroupNCCL``."""

    Options = NcclOptions

    def __init__(
        self, store: Any, rank: int, size: int, options: Any = None, timeout: timedelta | None = None
    ) -> None:
        if isinstance(options, timedelta):
            options, timeout = None, options
        options = NcclOptions() if options is None else options
        if timeout is not None:
            options._timeout = timeout
        super().__init__(
            store, rank, size, backends=_backends_of_new_group("nccl"), ranks=options.global_ranks_in_group,
            timeout=options._timeout,
        )  # fmt: skip
        self.options = options
        self._name = options.group_name


class GlooOptions(SimpleNamespace):
    """Replaces ``ProcessGroupGloo._Options``."""

    def __init__(self) -> None:
        super().__init__(
            _timeout=timedelta(minutes=30), _devices=[], _threads=2, backend="gloo",
            global_ranks_in_group=[], group_name="",
        )  # fmt: skip


class GlooGroup(SimulatedProcessGroup):
    """Replaces ``torch.distributed.ProcessGroupGloo``."""

    Options = _Options = GlooOptions

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta | GlooOptions = timedelta(minutes=30)
    ) -> None:
        timeout = timeout._timeout if isinstance(timeout, GlooOptions) else timeout
        backends = _backends_of_new_group("gloo")
        super().__init__(store, rank, size, backends=backends, ranks=_making.ranks, timeout=timeout)

    @staticmethod
    def create_device(hostname: str = "", interface: str = "", lazy_init: bool | None = None) -> object:
        """Return a placeholder for a network device: ranks in one process need none."""
        return object()

    create_default_device = create_device


def _register_builtin(ddp: Any, kind: Any) -> None:
    """Register Python's hook of the same name: C++'s two hooks need the results of C++ groups."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    half = kind == dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
    hook = default_hooks.fp16_compress_hook if half else default_hooks.allreduce_hook
    ddp.logger._set_comm_hook_name(str(kind))
    dist._register_comm_hook(ddp.reducer, ddp.process_group, hook)  # type: ignore[attr-defined]


class _Making(threading.local):
    """The backends and ranks of the group in creation."""

    backends: dict[str, str] | None = None
    ranks: list[int] = []  # noqa: RUF012 (replaced, never changed)


_making = _Making()


def _backends_of_new_group(alone: str) -> dict[str, str]:
    if _making.backends is not None:
        return _making.backends
    return {"cuda": "nccl"} if alone == "nccl" else {"cpu": "gloo", "cuda": "gloo"}


def _make_group(real: Any, *args: Any, **kwargs: Any) -> Any:
    _, _, ranks, backend, _, name, *_ = args
    make = inspect.unwrap(real)  # without the machine's refusal of nccl
    config = distributed_c10d.BackendConfig(backend).get_device_backend_map()
    kinds: dict[str, str] = {kind: str(name) for kind, name in config.items() if kind in ("cpu", "cuda")}
    if str(backend) == "nccl":
        kinds = {"cuda": "nccl"}
    if ranks and isinstance(parent := dist.group.WORLD, SimulatedProcessGroup):
        parent.announce_new_group(name, ranks, kinds.values())
    before = _making.backends, _making.ranks
    _making.backends, _making.ranks = kinds, list(ranks)
    try:
        group, its_store = make(*args, **kwargs)
    finally:
        _making.backends, _making.ranks = before
    device = kwargs.get("device_id")
    if device is not None and isinstance(group, SimulatedProcessGroup):
        group.bound_device_id = device
    return group, its_store


def _has_torch_function(real: Callable[[Any], bool], arguments: Any) -> bool:
    """Skip the machine's function mode for a collective of plain tensors: the group checks its arguments itself."""
    alone = _len_torch_function_stack() == 1 and type(_get_function_stack_at(0)) is MachineMode
    return not (alone and _PLAIN.issuperset(map(type, arguments))) and real(arguments)


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, list, type(None)))


def _set_timeout(real: Callable[..., None], timeout: timedelta, group: Any = None) -> None:
    found = distributed_c10d._get_default_group() if group is None else group
    if isinstance(found, SimulatedProcessGroup):  # neither NCCL nor gloo of C++
        found._set_default_timeout(timeout)
    else:
        real(timeout, group)


def _count_forward(forward: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if model.training and torch.is_grad_enabled() and (rank := current_rank()) is not None:
        rank.passes += 1
    return forward(model, *args, **kwargs)


_works = WeakKeyDictionary[Any, Any]()


def _keep_join_work(notify: Callable[[Any], Any], joinable: Any) -> Any:
    """Keep the Work that DDP passes to C++ alive until C++ asks for the result in backward."""
    _works[joinable] = work = notify(joinable)
    return work


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    """Return a number for the bytes of ``tensors``, which TORCH_DISTRIBUTED_DEBUG=DETAIL writes down."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(found.digest())


def _note_model_gpu(ask: Callable[..., Any], group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Note the GPU of the given tensors, on which C++ makes its own. It may not be the current GPU."""
    if isinstance(group, SimulatedProcessGroup) and tensors:
        group.home = gpu_of(tensors[0])
    return ask(group, tensors, *args, **kwargs)
