"""Copies of the model and its inputs, so that the check-up changes no object of the user."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from labkit.base.language import wrong

from .attributes import attributes_of, everything_held, everything_in, move_unregistered, unregistered_tensors
from .deep_copy import deep_copy
from .errors import is_mix, words
from .inputs import ModelInputs
from .outer_variables import OuterVariables

# Try at most so many unregistered tensors alone on the CPU: each trial runs the model.
_MOST_ALONE = 8
# Look for tensors with a history in containers nested this deep.
_DEPTH = 3


class Subject:
    """Copies of the model and its inputs on the CPU, and facts about the originals.

    places      the devices of the model's parameters and buffers.
    inputs_at   the device of the inputs.
    lazy        whether the first forward creates parameters.
    compiled    names of compiled modules (``""``: the model itself); the copy holds the modules before compilation.
    wrapped     names of data-parallel wrappers inside the model; the copy has none.
    outside     variables outside the model that its functions reach, which cannot be copied.
    dim         the dimension along which DataParallel scatters and gathers.
    output      the GPU that gathers the outputs; None for the first.
    staying     names of unregistered tensors that stay on the CPU.
    """

    def __init__(self, model: nn.Module, inputs: ModelInputs, dim: int, output: int | None) -> None:
        self.dim, self.output = dim, output
        if isinstance(model, nn.DataParallel):
            model = model.module
        whole = _plain(model)
        self.compiled = [""] if whole is not model else []
        model = whole
        self.name, self.training = type(model).__name__, model.training
        self.places = sorted({str(tensor.device) for tensor in (*model.parameters(), *model.buffers())})
        self.inputs_at = next((t.device for t in inputs.tensors().values()), torch.device("cpu"))
        self.lazy = any(map(is_lazy, (*model.parameters(), *model.buffers())))
        self.outside = OuterVariables(model)
        loose = unregistered_tensors(model).items()
        self._on_host = [name for name, one in loose if one.device.type == "cpu"]
        self.staying: frozenset[str] = frozenset()
        self.model = _copy_model(model).to("cpu")
        # Objects whose class refuses to be copied are shared with the user's model: restore them after each run.
        own = {id(one) for _, one in everything_held(model)}
        shared = {where: one for where, one in everything_held(self.model) if id(one) in own}
        self.outside.keep(shared.values())
        self._shared = frozenset(shared)
        if isinstance(self.model, torch.jit.ScriptModule):  # takes no hooks, which the check-up needs
            self.model = _ScriptCaller(self.model)
        move_unregistered(self.model, "cpu", self._shared)
        self.wrapped, compiled = _unwrap(self.model)
        self.compiled += compiled
        self.inputs = inputs.move_to("cpu")

    def find_staying_tensors(self, error_of: Callable[[nn.Module], Exception | None], device: str) -> None:
        """Find the unregistered tensors that must stay on the CPU for the model to run on ``device``.

        ``.to()`` does not move unregistered tensors. One may be a table for the CPU, which must stay there, or a
        forgotten tensor, which its owner would move by hand.
        """
        other: frozenset[str] | None = None
        alone = [frozenset([name]) for name in self._on_host[:_MOST_ALONE]] if len(self._on_host) > 1 else []
        for staying in (frozenset(self._on_host), frozenset[str](), *alone) if self._on_host else ():
            self.staying = staying
            error = error_of(self.copied_to(device))
            if error is None:
                return
            if other is None and not is_mix(error):
                other = staying  # the devices agree, and the error shows another fault
        self.staying = other or frozenset()

    def copied_to(self, device: str) -> nn.Module:
        """Return a copy of the model on ``device``."""
        model = deep_copy(self.model).to(device)
        move_unregistered(model, device, self.staying | self._shared)
        return model

    def wrap_in_parallel(self, model: nn.Module, gpus: Sequence[int]) -> nn.Module:
        """Wrap ``model``, one of the copies, in ``DataParallel`` with the checked arguments."""
        return nn.DataParallel(model, list(gpus), self.output, self.dim)


class _ScriptCaller(nn.Module):
    """A plain module around a scripted model, so that the check-up can put hooks on it."""

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script, self.training = script, script.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.script(*args, **kwargs)


def _copy_model(model: nn.Module) -> nn.Module:
    """Return a deep copy; replace tensors with a history, which Python cannot copy, by copies of their values."""
    values = [value for module in model.modules() for value in vars(module).values()]
    held = [leaf for value in values for _, leaf in everything_in(value, "", _DEPTH)]
    kept = {id(one): one.detach().clone() for one in held if isinstance(one, Tensor) and not one.is_leaf}
    try:
        return deep_copy(model, kept)
    except Exception as error:
        culprits = [where for where, value in attributes_of(model) if not _can_be_copied(value)]
        kind, why, odd = type(model).__name__, type(error).__name__, ", ".join(culprits)
        raise wrong(
            en=f"model: copy.deepcopy cannot copy this {kind} ({why}: {words(error)}), and the check-up only runs "
            f"copies: {f'set {odd} to None for the check-up' if odd else 'pass a model that can be copied'}",
            zh=f"model：{kind} 不能用 copy.deepcopy 复制（{why}：{words(error)}），而检查只在副本上运行："
            f"{f'检查时先把 {odd} 设为 None' if odd else '请给一个能复制的模型'}",
        ) from error


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def _unwrap(model: nn.Module) -> tuple[list[str], list[str]]:
    """Replace data-parallel wrappers and compiled modules in ``model`` by the modules inside; return both's names."""
    every = list(model.named_modules())
    wrapped = [name for name, module in every if isinstance(module, nn.DataParallel)]
    compiled = [name for name, module in every if name not in wrapped and _plain(module) is not module]
    for _, module in every:
        for name, child in list(module.named_children()):
            if (inside := _unwrap_module(child)) is not child:
                setattr(module, name, inside)
    return wrapped, compiled


def _unwrap_module(module: nn.Module) -> nn.Module:
    """Return ``module`` without data-parallel wrappers and compilation around it."""
    inside = module.module if isinstance(module, nn.DataParallel) else _plain(module)
    return module if inside is module else _unwrap_module(inside)


def _plain(module: nn.Module) -> nn.Module:
    """Return the module before ``torch.compile``, if ``module`` is compiled; else ``module``."""
    # torch/_dynamo/eval_frame.py, OptimizedModule
    inside: nn.Module | None = getattr(module, "_orig_mod", None)
    return module if inside is None else inside
