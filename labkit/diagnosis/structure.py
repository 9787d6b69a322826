"""Nested inputs and outputs: the tensors in them with the way to each, and the same structure with others."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def leaves(value, path: str) -> Iterator[tuple[str, object]]:
    """Everything in ``value`` that is no container, with the way to it: ``output[1]['mask']``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for at, item in enumerate(value):
            yield from leaves(item, f"{path}[{at}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, value


def tensors(value, path: str) -> dict[str, Tensor]:
    """The tensors in ``value`` by the way to each."""
    return {way: leaf for way, leaf in leaves(value, path) if isinstance(leaf, Tensor)}


def mapped(value, path: str, change: Callable[[str, Tensor], Tensor]):
    """``value`` with each tensor replaced by ``change(path, tensor)``."""
    if isinstance(value, Tensor):
        return change(path, value)
    if isinstance(value, dict):
        items = {key: mapped(item, f"{path}[{key!r}]", change) for key, item in value.items()}
        if type(value) is dict:
            return items
        other = copy.copy(value)  # a dict of another class may want other arguments when it is made
        other.update(items)
        return other
    if isinstance(value, (tuple, list)):
        items = [mapped(item, f"{path}[{at}]", change) for at, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@dataclasses.dataclass(frozen=True)
class Call:
    """The inputs of one call of the model."""

    inputs: tuple
    kwargs: dict

    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the inputs: ``input 0``, ``input 1['mask']``, ``keyword argument 'mask'``."""
        found: dict[str, Tensor] = {}
        for name, value in self._named():
            found.update(tensors(value, name))
        return found

    def mapped(self, change: Callable[[str, Tensor], Tensor]) -> Call:
        """The same call with other tensors."""
        inputs = tuple(mapped(value, f"input {at}", change) for at, value in enumerate(self.inputs))
        kwargs = {
            key: mapped(value, f"keyword argument {key!r}", change) for key, value in self.kwargs.items()
        }
        return Call(inputs, kwargs)

    def of(self, module):
        """What ``module`` makes of a copy of these inputs: it may change them in place, or take keys out."""
        fresh = self.mapped(lambda path, tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))
        return module(*fresh.inputs, **fresh.kwargs)

    def odd(self) -> list[tuple[str, object]]:
        """Inputs that look like tuples and cannot be made again from cut tensors."""
        return [(name, value) for name, value in self._named() if isinstance(value, PackedSequence)]

    def objects(self) -> list[str]:
        """Inputs of a class of their own that hold tensors: DataParallel neither cuts nor moves those."""
        return [
            path
            for name, value in self._named()
            for path, leaf in leaves(value, name)
            if any(isinstance(item, Tensor) for item in getattr(leaf, "__dict__", {}).values())
            and not isinstance(leaf, (Tensor, type))
        ]

    def uncut(self, batch: int) -> list[str]:
        """Inputs with something for each row that are no tensors: every replica gets all of them."""
        found = self.objects()
        for name, value in self._named():
            if isinstance(value, (list, tuple)) and len(value) == batch and not tensors(value, name):
                found.append(name)
            else:
                found += [
                    path
                    for path, leaf in leaves(value, name)
                    if not isinstance(leaf, Tensor) and tuple(getattr(leaf, "shape", ()))[:1] == (batch,)
                ]
        return found

    def _named(self):
        yield from ((f"input {at}", value) for at, value in enumerate(self.inputs))
        yield from ((f"keyword argument {key!r}", value) for key, value in self.kwargs.items())
