"""The model that is checked and its inputs: copied, so that nothing of the user's is changed."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..base.tree import leaves
from ..engine import DataParallel
from .errors import words
from .inputs import ModelInputs
from .state import attributes_of, move_unregistered


class Subject:
    """The model and its inputs, copied to the host, and what was known of them before.

    places      the devices of its parameters and buffers.
    inputs_at   the device of the inputs.
    lazy        whether it has parameters that the first forward makes.
    compiled    whether it was compiled: the copy is of the module inside.
    wrapped     the data-parallel wrappers inside it, which the copy is without.
    """

    def __init__(self, model: nn.Module, inputs: ModelInputs) -> None:
        if isinstance(model, (nn.DataParallel, DataParallel)):
            model = model.module
        inside = getattr(model, "_orig_mod", None)  # torch/_dynamo/eval_frame.py, OptimizedModule
        self.compiled = inside is not None
        model = model if inside is None else inside
        self.name, self.training = type(model).__name__, model.training
        self.places = sorted({str(tensor.device) for tensor in (*model.parameters(), *model.buffers())})
        self.inputs_at = next((t.device for t in inputs.tensors().values()), torch.device("cpu"))
        self.lazy = any(map(is_lazy, (*model.parameters(), *model.buffers())))
        self.model = _copied(model).to("cpu")
        move_unregistered(self.model, "cpu")
        self.wrapped = _unwrap(self.model)
        self.inputs = inputs.moved("cpu")


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy. Tensors kept from an earlier forward cannot be copied by Python: their values are."""
    kept = {}
    for module in model.modules():
        for value in module.__dict__.values():
            for _, leaf in leaves(value) if isinstance(value, (list, tuple, dict, Tensor)) else ():
                if isinstance(leaf, Tensor) and not leaf.is_leaf:
                    kept[id(leaf)] = leaf.detach().clone()
    try:
        return copy.deepcopy(model, kept)
    except Exception as error:
        culprits = [where for where, value in attributes_of(model) if not _can_be_copied(value)]
        raise ValueError(
            f"model: {type(model).__name__} cannot be copied by copy.deepcopy "
            f"({type(error).__name__}: {words(error)}), and the check-up runs copies only: "
            + (f"set {', '.join(culprits)} to None for it" if culprits else "give a model that can be copied")
        ) from error


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def _unwrap(model: nn.Module) -> list[str]:
    """Take data-parallel wrappers inside ``model`` out of it; their names."""
    names = [
        name for name, module in model.named_modules() if isinstance(module, (nn.DataParallel, DataParallel))
    ]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            while isinstance(child, (nn.DataParallel, DataParallel)):
                child = child.module
                setattr(module, name, child)
    return names
