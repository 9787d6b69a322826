"""The inputs of one call of the model: what DataParallel would cut of them, and copies of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..base.tree import children, is_dataclass, leaves, mapped, tensors


@dataclass(frozen=True)
class ModelInputs:
    """Positional and keyword inputs; their tensors are ``input 0``, ``input 1['x']``, ``keyword argument 'mask'``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the inputs, those in dataclasses too, by the way to each."""
        return {path: found for name, value in self._named() for path, found in tensors(value, name).items()}

    def scattered(self) -> dict[str, Tensor]:
        """The tensors that DataParallel cuts: scatter does not look into dataclasses."""
        whole = tuple(f"{path}." for path in self.objects())
        return {path: tensor for path, tensor in self.tensors().items() if not path.startswith(whole)}

    def mapped(self, change: Callable[[str, Tensor], Tensor]) -> ModelInputs:
        """The same inputs with other tensors."""
        values = [mapped(value, change, name) for name, value in self._named()]
        count = len(self.args)
        return ModelInputs(tuple(values[:count]), dict(zip(self.kwargs, values[count:], strict=True)))

    def moved(self, device: torch.device | str) -> ModelInputs:
        """The same inputs with their tensors on ``device``, without their history."""
        return self.mapped(
            lambda path, tensor: tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        )

    def of(self, module: nn.Module) -> Any:
        """What ``module`` makes of a copy of these inputs: it may change them in place, or take keys out."""
        copies = {
            id(tensor): tensor.detach().clone().requires_grad_(tensor.requires_grad)
            for tensor in self.tensors().values()
        }
        try:
            args, kwargs = copy.deepcopy((self.args, self.kwargs), dict(copies))
        except Exception:  # something beside the tensors cannot be copied
            fresh = self.mapped(lambda path, tensor: copies[id(tensor)])
            args, kwargs = fresh.args, fresh.kwargs
        return module(*args, **kwargs)

    def packed(self) -> list[str]:
        """Inputs that look like tuples and cannot be made again from cut tensors."""
        return [name for name, value in self._named() if isinstance(value, PackedSequence)]

    def objects(self) -> list[str]:
        """Inputs of a class of their own that hold tensors: DataParallel neither cuts nor moves those."""
        return [path for name, value in self._named() for path in _objects(value, name)]

    def uncut(self, batch: int) -> list[str]:
        """Inputs with something for each row that are no tensors: every replica gets all of them."""
        found = self.objects()
        for name, value in self._named():
            if isinstance(value, (list, tuple)) and len(value) == batch and not tensors(value):
                found.append(name)
            else:
                found += [
                    path
                    for path, leaf in leaves(value, name)
                    if not isinstance(leaf, Tensor) and tuple(getattr(leaf, "shape", ()))[:1] == (batch,)
                ]
        return found

    def _named(self) -> Iterator[tuple[str, Any]]:
        yield from ((f"input {at}", value) for at, value in enumerate(self.args))
        yield from ((f"keyword argument {key!r}", value) for key, value in self.kwargs.items())


def _objects(value: Any, path: str) -> Iterator[str]:
    # As torch/nn/parallel/scatter_gather.py, scatter_map: tuples, lists and dicts are walked, nothing else.
    if isinstance(value, (tuple, list, dict)):
        for step, item in children(value) or ():
            yield from _objects(item, path + step)
    elif not isinstance(value, (Tensor, type)):
        held = leaves(value) if is_dataclass(value) else enumerate(getattr(value, "__dict__", {}).values())
        if any(isinstance(item, Tensor) for _, item in held):
            yield path
