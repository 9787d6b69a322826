"""Mark the gradients that modules' backward hooks get, as on the device of the inputs and outputs.

torch.utils.hooks.BackwardHook puts an identity Function around the module's inputs and outputs, and its hooks on the
nodes of that Function, so that no tensor tells the device of the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.hooks import BackwardHook

from labkit.base.tree import tensors_in

from ..ops.gradients import mark_gradient, stream_of
from ..state.current_machine import call_with_machine, machine_in_use, replaces
from ..state.gpu import Gpu, TheMachine
from ..state.placement import gpus_of
from ..state.streams import restore_stream

# The attributes in which a BackwardHook remembers the GPUs of the module's inputs and outputs.
_INPUTS, _OUTPUTS = "_labkit_inputs", "_labkit_outputs"


@replaces(BackwardHook, "__init__")
def _init(_: TheMachine, real: Any, self: Any, module: Any, user_hooks: Any, user_pre_hooks: Any) -> None:
    self._labkit_inputs = self._labkit_outputs = ()
    self._labkit_streams = {}
    user_hooks = [_HookOnGpu(hook, self, _INPUTS, _OUTPUTS) for hook in user_hooks]
    user_pre_hooks = [_HookOnGpu(hook, self, _OUTPUTS) for hook in user_pre_hooks]
    real(self, module, user_hooks, user_pre_hooks)


class _HookOnGpu:
    """A user's hook, called with marked gradients; equal to the hook, which others may look for in ``user_hooks``."""

    def __init__(self, hook: Callable[..., Any], owner: Any, *kinds: str) -> None:
        functools.update_wrapper(self, hook, updated=())
        self._hook, self._owner, self._kinds = hook, owner, kinds

    def __call__(self, module: Any, *groups: Any) -> Any:
        if machine_in_use() is None:  # closed since the forward pass
            return self._hook(module, *groups)
        places = (getattr(self._owner, kind) for kind in self._kinds)
        with restore_stream(self._owner._labkit_streams.get(self._kinds[0])):
            return call_with_machine(self._hook, module, *map(_mark_group, groups, places))

    def __eq__(self, other: object) -> bool:
        return bool(self._hook == getattr(other, "_hook", other))

    def __hash__(self) -> int:
        return hash(self._hook)


def _set_up(kind: str, _: TheMachine, real: Any, self: Any, args: Any) -> Any:
    tensors = args if isinstance(args, tuple) else tensors_in(args)
    gpus = gpus_of(tensors)
    setattr(self, kind, gpus)
    self._labkit_streams[kind] = stream_of(gpus)
    return real(self, args)


replaces(BackwardHook, "setup_input_hook")(functools.partial(_set_up, _INPUTS))
replaces(BackwardHook, "setup_output_hook")(functools.partial(_set_up, _OUTPUTS))


def _mark_group(grads: Any, gpus: Sequence[Gpu | None]) -> Any:
    if not isinstance(grads, tuple) or len(grads) != len(gpus):
        return grads
    return tuple(mark_gradient(grad, gpu) for grad, gpu in zip(grads, gpus, strict=True))
