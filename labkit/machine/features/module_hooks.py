"""Backward hooks of modules get gradients on the device of the tensors that they belong to.

torch.utils.hooks.BackwardHook puts an identity Function around the module's inputs and outputs, and its hooks on the
nodes of that Function: they are called with gradients that no tensor of Python's stands for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.hooks import BackwardHook

from ...base.patches import Patch
from ...base.tree import tensors_in
from .. import hooks
from ..ops.gradients import stream_of, surface
from ..state.gpu import Gpu, TheMachine
from ..state.in_use import machine_in_use, seeing
from ..state.placement import gpu_of
from ..state.streams import back_on

# The attributes in which a BackwardHook remembers the GPUs of the module's inputs and outputs.
_INPUTS, _OUTPUTS = "_labkit_inputs", "_labkit_outputs"


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The methods that set the hooks up, and the hooks themselves."""
    set_up_input, set_up_output = BackwardHook.setup_input_hook, BackwardHook.setup_output_hook
    start = BackwardHook.__init__

    def surfacing(hook: Callable[..., Any], owner: Any, *kinds: str) -> Callable[..., Any]:
        @functools.wraps(hook, updated=())
        def on_gpu(module: Any, *groups: Any) -> Any:
            if machine_in_use() is None:  # closed since the forward pass
                return hook(module, *groups)
            places = (getattr(owner, kind) for kind in kinds)
            with back_on(owner._labkit_streams.get(kinds[0])):
                return seeing(hook, module, *map(_surface_group, groups, places))

        return on_gpu

    def init(self: Any, module: Any, user_hooks: Any, user_pre_hooks: Any) -> None:
        self._labkit_inputs = self._labkit_outputs = ()
        self._labkit_streams = {}
        user_hooks = [surfacing(hook, self, _INPUTS, _OUTPUTS) for hook in user_hooks]
        user_pre_hooks = [surfacing(hook, self, _OUTPUTS) for hook in user_pre_hooks]
        start(self, module, user_hooks, user_pre_hooks)

    def setup_input_hook(self: Any, args: Any) -> Any:
        self._labkit_inputs = tuple(gpu_of(a) if isinstance(a, Tensor) else None for a in args)
        self._labkit_streams[_INPUTS] = stream_of(self._labkit_inputs)
        return set_up_input(self, args)

    def setup_output_hook(self: Any, args: Any) -> Any:
        outputs = args if isinstance(args, tuple) else tensors_in(args)
        self._labkit_outputs = tuple(gpu_of(a) if isinstance(a, Tensor) else None for a in outputs)
        self._labkit_streams[_OUTPUTS] = stream_of(self._labkit_outputs)
        return set_up_output(self, args)

    yield Patch(BackwardHook, "__init__", init)
    yield Patch(BackwardHook, "setup_input_hook", setup_input_hook)
    yield Patch(BackwardHook, "setup_output_hook", setup_output_hook)


def _surface_group(grads: Any, gpus: tuple[Gpu | None, ...]) -> Any:
    if not isinstance(grads, tuple) or len(grads) != len(gpus):
        return grads
    return tuple(surface(grad, gpu) for grad, gpu in zip(grads, gpus, strict=True))
