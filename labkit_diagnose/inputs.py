"""The inputs of one call of the model, with copies of the tensors that DataParallel would cut; and its outputs, as
torch's gather takes them apart: more than tuples, lists and dicts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from labkit.base.language import wrong
from labkit.base.tree import children, leaves, named_inputs, rebuild, tensors

from .attributes import everything_in
from .errors import words

# How far objects are followed that hold tensors: a cache of keys and values is an object with a list of layers.
_DEPTH = 6
# What gives more items than this is no output of a model.
_MOST = 10_000


@dataclass(frozen=True)
class ModelInputs:
    """Positional and keyword inputs; their tensors are ``input 0``, ``input 1['x']``, ``keyword argument 'mask'``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors among the inputs, also those in objects of any class, by the way to each."""
        found = self.scattered_tensors()
        for held in self._in_objects.values():
            found |= held
        return found

    def scattered_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that DataParallel cuts: scatter does not look into dataclasses and other objects."""
        return {path: leaf for path, leaf in self._leaves() if isinstance(leaf, Tensor)}

    def replace_tensors(self, change: Callable[[str, Tensor], Tensor]) -> ModelInputs:
        """Return the inputs with other tensors. Raises ValueError for an object with tensors that cannot be copied."""
        values = [_with_new_tensors(value, change, name) for name, value in self._named_inputs()]
        count = len(self.args)
        return ModelInputs(tuple(values[:count]), dict(zip(self.kwargs, values[count:], strict=True)))

    def move_to(self, device: torch.device | str) -> ModelInputs:
        """Return the same inputs with their tensors on ``device``, without their history."""
        return self.replace_tensors(
            lambda path, tensor: tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        )

    def call(self, module: Callable[..., Any]) -> Any:
        """Call ``module`` with a copy of these inputs, which it may change in place, or take keys out of."""
        there = self.tensors().values()
        copies = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in there}
        try:
            args, kwargs = copy.deepcopy((self.args, self.kwargs), dict(copies))
        except Exception:  # something beside the tensors cannot be copied
            fresh = self.replace_tensors(lambda path, tensor: copies[id(tensor)])
            args, kwargs = fresh.args, fresh.kwargs
        return module(*args, **kwargs)

    def packed_sequences(self) -> list[str]:
        """Return the inputs that look like tuples and cannot be made again from cut tensors."""
        return [name for name, value in self._named_inputs() if isinstance(value, PackedSequence)]

    def objects(self) -> list[str]:
        """Return the inputs of other classes that hold tensors: DataParallel neither cuts nor moves those."""
        return list(self._in_objects)

    @cached_property
    def _in_objects(self) -> dict[str, dict[str, Tensor]]:
        """The tensors in objects, by the way to each, by the way to the object."""
        others = ((path, leaf) for path, leaf in self._leaves() if not isinstance(leaf, Tensor))
        return {path: held for path, leaf in others if (held := _tensors_inside(leaf, path))}

    def uncut(self, batch: int) -> list[str]:
        """Return the inputs that have an item for each row and are no tensors: every replica gets all of them."""
        found = self.objects()
        for name, value in self._named_inputs():
            if isinstance(value, (list, tuple)) and len(value) == batch and not tensors(value):
                found.append(name)
            else:
                others = ((path, leaf) for path, leaf in leaves(value, name) if not isinstance(leaf, Tensor))
                found += [path for path, one in others if tuple(getattr(one, "shape", ()))[:1] == (batch,)]
        return found

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        """The values of the inputs where DataParallel looks for tensors, with the way to each."""
        for name, value in self._named_inputs():
            yield from leaves(value, name, dataclasses=False)

    def _named_inputs(self) -> Iterable[tuple[str, Any]]:
        return named_inputs(self.args, self.kwargs).items()


def _tensors_inside(value: object, path: str) -> dict[str, Tensor]:
    """Return the tensors in ``value``, which may be an object, by the way to each."""
    return {way: item for way, item in everything_in(value, path, _DEPTH) if isinstance(item, Tensor)}


def _with_new_tensors(value: Any, change: Callable[[str, Tensor], Tensor], path: str) -> Any:
    """Return ``value`` with other tensors. Containers are made again, as in ``base/tree.py``; objects are copied."""
    if isinstance(value, Tensor):
        return change(path, value)
    inside = children(value, dataclasses=False)
    if inside is not None:
        items = [_with_new_tensors(item, change, path + step) for step, item in inside]
        same = all(new is old for new, (_, old) in zip(items, inside, strict=True))
        return value if same else rebuild(value, items)
    held = _tensors_inside(value, path)
    if not held:
        return value
    # A deep copy asks its memo first what stands for an object.
    others: dict[int, Any] = {id(tensor): change(way, tensor) for way, tensor in held.items()}
    try:
        return copy.deepcopy(value, others)
    except Exception as error:
        raise wrong(
            en=f"{path}: this {type(value).__name__} holds tensors and cannot be copied by copy.deepcopy "
            f"({type(error).__name__}: {words(error)}), and the check-up runs copies only: pass its tensors",
            zh=f"{path}：这个 {type(value).__name__} 里有张量，却不能用 copy.deepcopy 复制"
            f"（{type(error).__name__}：{words(error)}），而检查只在副本上运行：请直接传它的张量",
        ) from error


def open_containers(value: Any) -> Any:
    """Return ``value`` with tuples for all objects in it that gather takes apart and puts together again.

    torch/nn/parallel/scatter_gather.py makes ``type(output)`` of the items that are gathered: that is right of each
    class that is made of what it gives, such as caches of keys and values.
    """
    inside = children(value)
    if inside is None:
        items = _items(value)
        return tuple(map(open_containers, items)) if tensors(items) else value
    items = [open_containers(item) for _, item in inside]
    same = all(new is old for new, (_, old) in zip(items, inside, strict=True))
    return value if same else rebuild(value, items)


def _items(value: Any) -> list[Any]:
    """Return the items of an object that is made of them; none of another."""
    kind = type(value)
    if isinstance(value, (Tensor, str, bytes, set, frozenset)) or not hasattr(kind, "__iter__"):
        return []
    try:
        items = [] if (each := iter(value)) is value else list(islice(each, _MOST))
        again = list(islice(kind(iter(items)), _MOST))
    except Exception:
        return []
    return items if _shapes(again) == _shapes(items) else []


def _shapes(items: list[Any]) -> list[tuple[str, object]]:
    # The tensors may be others: some caches put what they are given behind what they have, which is nothing yet.
    return [(way, leaf.shape if isinstance(leaf, Tensor) else type(leaf)) for way, leaf in leaves(items)]
