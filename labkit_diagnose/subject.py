"""The model that is checked and its inputs: copied, so that nothing of the user's is changed."""

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

# Of what a model holds unregistered, no more are tried each by itself.
_MOST_ALONE = 8

# How far tensors with a history are looked for in what modules hold.
_DEPTH = 3


class Subject:
    """Copies of the model and its inputs on the host, and facts about the originals.

    places      the devices of its parameters and buffers.
    inputs_at   the device of the inputs.
    lazy        whether it has parameters that the first forward makes.
    compiled    the modules in it that are compiled (``""`` is the model itself): the copy has those inside.
    wrapped     the data-parallel wrappers inside it, which the copy is without.
    outside     what its functions reach outside of it, which no copy can be made of.
    dim         the dimension along which DataParallel is to cut and glue.
    output      the GPU on which it is to gather; None for the first.
    staying     what it holds unregistered, by name, that stays on the CPU.
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
        # What its class does not let be copied is the user's own, in the copy too.
        own = {id(one) for _, one in everything_held(model)}
        shared = {where: one for where, one in everything_held(self.model) if id(one) in own}
        self.outside.keep(shared.values())
        self._shared = frozenset(shared)
        if isinstance(self.model, torch.jit.ScriptModule):  # it takes no hooks, which the check-up needs
            self.model = _Caller(self.model)
        move_unregistered(self.model, "cpu", self._shared)
        self.wrapped, compiled = _unwrap(self.model)
        self.compiled += compiled
        self.inputs = inputs.move_to("cpu")

    def find_staying_tensors(self, error_of: Callable[[nn.Module], Exception | None], device: str) -> None:
        """Find out which unregistered tensors must stay on the CPU for ``error_of`` to find no error on ``device``.

        What its owner has not registered, ``.to()`` does not move. It may be a table for the CPU, which must stay, or
        a tensor that was forgotten, which its owner would have to move by hand.
        """
        other: frozenset[str] | None = None
        alone = [frozenset([name]) for name in self._on_host[:_MOST_ALONE]] if len(self._on_host) > 1 else []
        for staying in (frozenset(self._on_host), frozenset[str](), *alone) if self._on_host else ():
            self.staying = staying
            error = error_of(self.copied_to(device))
            if error is None:
                return
            if other is None and not is_mix(error):
                other = staying  # it fails for another reason, which is the one to tell
        self.staying = other or frozenset()

    def copied_to(self, device: str) -> nn.Module:
        """Return a copy of the model on ``device``."""
        model = deep_copy(self.model).to(device)
        move_unregistered(model, device, self.staying | self._shared)
        return model

    def wrap_in_parallel(self, model: nn.Module, gpus: Sequence[int]) -> nn.Module:
        """Wrap ``model``, one of the copies, in the ``DataParallel`` that is checked."""
        return nn.DataParallel(model, list(gpus), self.output, self.dim)


class _Caller(nn.Module):
    """A module that calls ``script``, for what the check-up does with the whole model."""

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script, self.training = script, script.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.script(*args, **kwargs)


def _copy_model(model: nn.Module) -> nn.Module:
    """Return a deep copy. Python cannot copy tensors with a history; of those, the values are copied."""
    values = [value for module in model.modules() for value in vars(module).values()]
    held = [leaf for value in values for _, leaf in everything_in(value, "", _DEPTH)]
    kept = {id(one): one.detach().clone() for one in held if isinstance(one, Tensor) and not one.is_leaf}
    try:
        return deep_copy(model, kept)
    except Exception as error:
        culprits = [where for where, value in attributes_of(model) if not _can_be_copied(value)]
        kind, why, odd = type(model).__name__, type(error).__name__, ", ".join(culprits)
        raise wrong(
            en=f"model: {kind} cannot be copied by copy.deepcopy ({why}: {words(error)}), and the check-up runs "
            f"copies only: {f'set {odd} to None for it' if odd else 'give a model that can be copied'}",
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
    """Take data-parallel wrappers and compiled modules inside ``model`` out of it; return the names of both."""
    every = list(model.named_modules())
    wrapped = [name for name, module in every if isinstance(module, nn.DataParallel)]
    compiled = [name for name, module in every if name not in wrapped and _plain(module) is not module]
    for _, module in every:
        for name, child in list(module.named_children()):
            if (inside := _inside(child)) is not child:
                setattr(module, name, inside)
    return wrapped, compiled


def _inside(module: nn.Module) -> nn.Module:
    """Return what stands in data-parallel wrappers and compiled modules; another module itself."""
    inside = module.module if isinstance(module, nn.DataParallel) else _plain(module)
    return module if inside is module else _inside(inside)


def _plain(module: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` was given, if ``module`` is its result; else ``module``."""
    # torch/_dynamo/eval_frame.py, OptimizedModule
    inside: nn.Module | None = getattr(module, "_orig_mod", None)
    return module if inside is None else inside
