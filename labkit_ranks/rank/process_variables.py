"""The variables of Python and torch that a process has for itself, and ranks in one process must not share.

Each row says where a value is and how it begins in a new process. :mod:`.process_state` swaps the values whenever
another rank gets the turn. :func:`torch_settings` lists the settings that C++ keeps, with functions to read and set
them.
"""

from __future__ import annotations

import builtins
import copy
import importlib
import logging
import multiprocessing.context
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

_bootstrap: Any = importlib._bootstrap


class ClassVariables:
    """The attributes of a class as a dict: ``vars`` of a class is read-only."""

    def __init__(self, owner: type) -> None:
        self.owner = owner

    def __getitem__(self, name: str) -> Any:
        return getattr(self.owner, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.owner, name, value)


class OwnedVariable(NamedTuple):
    """A variable that each process has for itself: ``owner[name]``.

    fresh   returns the value in a new process, given the value outside of the ranks.
    """

    owner: dict[str, Any] | ClassVariables
    name: str
    fresh: Callable[[Any], Any]


def keep_value(value: Any) -> Any:
    return value


def make_empty(value: Any) -> Any:
    return type(value)()


def copy_entries(value: dict[Any, Any]) -> dict[Any, Any]:
    """Copy a dict entry by entry, and keep its class."""
    made = type(value)({})
    dict.update(made, value)
    return made


def make_none(value: Any) -> None:
    return None


def rank_number(value: Any) -> int:
    """Return the rank's number. The rank's own environment is in place by now."""
    return int(os.environ.get("RANK", value))


# Variables of Python: owner, names, and the value in a new process.
_PYTHON: tuple[tuple[dict[str, Any], str, Callable[[Any], Any]], ...] = (
    (vars(sys), "stdin stdout stderr displayhook excepthook breakpointhook", keep_value),
    (vars(sys), "argv path", list),
    # Scripts replace print to silence all ranks but the first.
    (vars(builtins), "print open input", keep_value),
    (vars(warnings), "filters", list),
    (vars(warnings), "showwarning _showwarnmsg_impl defaultaction", keep_value),
    (vars(logging.root), "handlers filters level disabled", copy.copy),
    (vars(logging), "_loggerClass _logRecordFactory lastResort raiseExceptions", keep_value),
    (vars(logging.root.manager), "_disable", keep_value),
    (vars(logging.root.manager), "loggerDict", dict),
    (vars(multiprocessing.context._default_context), "_actual_context", make_none),
    (vars(threading), "excepthook", keep_value),
    (vars(random._inst), "gauss_next", make_none),
    # Two ranks may import a module of the script at the same time, each its own copy.
    (vars(_bootstrap), "_module_locks", make_empty),
)
PYTHON = tuple(OwnedVariable(owner, name, fresh) for owner, names, fresh in _PYTHON for name in names.split())


_TENSOR = "torch.distributed.tensor"
_CONTEXT = f"{_TENSOR}.experimental._context_parallel"
# Variables of torch and other packages, by their value in a new process: module (":" and the object in it) -> names. A
# rank's process groups are kept in its threads (threads/thread_patches.py, PerRankWorld).
OWNED: dict[Callable[[Any], Any], dict[str, str]] = {
    make_none: {
        "torch.distributed.distributed_c10d": "_backend _default_pg_init_method",
        "torch.distributed.checkpoint._async_process_executor": "_CHECKPOINT_PROCESS",
        "torch.distributed.fsdp._fsdp_extensions": "_extensions",
        "torch.nn.parallel.distributed:DistributedDataParallel": "_active_ddp_module",
        f"{_TENSOR}._random": "_rng_tracker",
        f"{_CONTEXT}._attention": "_compiled_create_block_mask",
    },
    make_empty: {
        "torch.distributed.fsdp._debug_utils:SimpleProfiler": "profiling",
        f"{_TENSOR}._redistribute": "_warned_flatten_issues",
        f"{_CONTEXT}._attention": "_replaced_functions",
        f"{_CONTEXT}._sharding_rules": "_original_strategies _cp_strategy_contexts",
        # Cached results name a device: cuda:0 is wrong for cuda:1. (DTensor asks fake tensors for shapes.)
        "torch._subclasses.fake_tensor:FakeTensorMode": "cache",
        "matplotlib._pylab_helpers:Gcf": "figs",
        "tqdm.std:tqdm": "_instances",
        # Transformers imports names of accelerate: copies for each rank would not do.
        "accelerate.state:PartialState": "_shared_state",
        "accelerate.state:AcceleratorState": "_shared_state",
        "accelerate.state:GradientState": "_shared_state",
    },
    copy.copy: {
        "torch.distributed.fsdp._debug_utils:SimpleProfiler": "results",
        "torch.nn.modules.module": (
            "_global_backward_pre_hooks _global_backward_hooks _global_is_full_backward_hook _global_forward_pre_hooks "
            "_global_forward_hooks _global_forward_hooks_always_called _global_forward_hooks_with_kwargs "
            "_global_buffer_registration_hooks _global_module_registration_hooks _global_parameter_registration_hooks"
        ),
        "torch.optim.optimizer": "_global_optimizer_pre_hooks _global_optimizer_post_hooks",
        "torch.nn.utils.parametrize": "_cache",
        "torch._tensor_str": "PRINT_OPTS",
        "torch._library.custom_ops": "OPDEF_TO_LIB OPDEFS",
    },
    # loss_parallel and context_parallel add entries while they are active.
    copy_entries: {
        f"{_TENSOR}._api:DTensor._op_dispatcher": "_custom_op_handlers",
        f"{_TENSOR}._api:DTensor._op_dispatcher.sharding_propagator": "op_strategy_funcs op_to_schema_info",
    },
    keep_value: {
        f"{_TENSOR}._redistribute": (
            "_FORCE_MIN_COST_REDISTRIBUTION_PLAN _DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION"
        ),
        f"{_CONTEXT}._attention": "_dispatch_mode",
        # Three modules import the same object, so swap its attributes.
        f"{_CONTEXT}._attention:_cp_options": "convert_to_f32 enable_load_balance rotate_method",
        # Context parallelism replaces this function.
        "torch.nn.functional": "scaled_dot_product_attention",
        "torch.nn.utils.parametrize": "_cache_enabled",
        "torch.utils._device": "CURRENT_DEVICE",
        "torch.utils._python_dispatch": (
            "_is_in_torch_dispatch_mode _is_in_non_infra_torch_dispatch_mode "
            "_is_in_any_mode_without_ignore_compile_internals"
        ),
        "torch.utils.checkpoint": "_checkpoint_debug_enabled _enable_checkpoint_early_stop",
        "torch.autograd.profiler": "_is_profiler_enabled",
        "torch.backends.mha": "_is_fastpath_enabled",
        "torch.hub": "_hub_dir",
        "torch.multiprocessing": "_sharing_strategy",
        "torch.__future__": "_overwrite_module_params_on_conversion _swap_module_params_on_conversion",
        "tempfile": "tempdir",
    },
    # Lightning imports its name: a copy for each rank would not do.
    rank_number: {"lightning_utilities.core.rank_zero:rank_zero_only": "rank"},
}


class TorchSetting(NamedTuple):
    """Functions to read and set a setting of C++, which keeps one for the whole process."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


def torch_settings() -> Iterator[TorchSetting]:
    """Yield the settings of torch that each process makes for itself."""
    c: Any = torch._C

    def deterministic() -> tuple[bool, bool]:
        return c._get_deterministic_algorithms(), c._get_deterministic_algorithms_warn_only()

    def anomaly() -> tuple[bool, bool]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    yield TorchSetting(torch.get_default_dtype, c._set_default_dtype)
    yield TorchSetting(deterministic, lambda v: c._set_deterministic_algorithms(v[0], warn_only=v[1]))
    yield TorchSetting(anomaly, lambda value: torch.set_anomaly_enabled(*value))
    for name in (
        "deterministic_fill_uninitialized_memory cudnn_enabled cudnn_benchmark cudnn_deterministic mkldnn_enabled "
        "mkldnn_deterministic warnAlways dtensor_allow_implicit_replication"
    ).split():
        yield TorchSetting(getattr(c, f"_get_{name}"), getattr(c, f"_set_{name}"))
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        yield TorchSetting(getattr(c, f"_get_{name}_sdp_enabled"), getattr(c, f"_set_sdp_use_{name}"))
    if torch.distributed.is_available():
        groups: Any = torch.distributed
        yield TorchSetting(groups.get_debug_level, groups.set_debug_level)
