"""Inputs of a call of the model, and outputs as torch's gather sees them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
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

# Look for tensors in objects nested this deep: a cache of keys and values is an object with a list of layers.
_DEPTH = 6
# Ignore iterables with more items: no model returns such outputs.
_MOST = 10_000


@dataclass(frozen=True)
class ModelInputs:
    """Positional and keyword inputs; tensors are named ``input 0``, ``input 1['x']``, ``keyword argument 'mask'``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by path, including those in objects of any class."""
        found = self.scattered_tensors()
        for held in self._in_objects.values():
            found |= held
        return found

    def scattered_tensors(self) -> dict[str, Tensor]:
        """Return by path the tensors that DataParallel cuts; scatter ignores dataclasses and other objects."""
        return {path: leaf for path, leaf in self._leaves() if isinstance(leaf, Tensor)}

    def replace_tensors(self, change: Callable[[str, Tensor], Tensor]) -> ModelInputs:
        """Return the inputs with ``change(path, tensor)`` for each tensor.

        Raises ValueError for an object that holds tensors and cannot be copied.
        """
        values = [_with_new_tensors(value, change, name) for name, value in self._named_inputs.items()]
        count = len(self.args)
        return ModelInputs(tuple(values[:count]), dict(zip(self.kwargs, values[count:], strict=True)))

    def move_to(self, device: torch.device | str) -> ModelInputs:
        """Return the inputs with tensors on ``device``, detached."""
        return self.replace_tensors(
            lambda path, tensor: tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        )

    def call(self, module: Callable[..., Any]) -> Any:
        """Call ``module`` with a copy of the inputs, which it may change in place."""
        originals = self.tensors().values()
        copies = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in originals}
        try:
            args, kwargs = copy.deepcopy((self.args, self.kwargs), dict(copies))
        except Exception:  # an input other than the tensors cannot be copied
            fresh = self.replace_tensors(lambda path, tensor: copies[id(tensor)])
            args, kwargs = fresh.args, fresh.kwargs
        return module(*args, **kwargs)

    def packed_sequences(self) -> list[str]:
        """Return the names of PackedSequence inputs: tuples that cannot be rebuilt from cut tensors."""
        return [name for name, value in self._named_inputs.items() if isinstance(value, PackedSequence)]

    def objects(self) -> list[str]:
        """Return the paths of objects with tensors inside, which DataParallel neither cuts nor moves."""
        return list(self._in_objects)

    @cached_property
    def _in_objects(self) -> dict[str, dict[str, Tensor]]:
        """The tensors in each object: path of the object -> path of the tensor -> tensor."""
        others = ((path, leaf) for path, leaf in self._leaves() if not isinstance(leaf, Tensor))
        return {path: held for path, leaf in others if (held := _tensors_inside(leaf, path))}

    def uncut(self, batch: int) -> list[str]:
        """Return the paths of inputs that are not cut: objects, and other non-tensors with one item per row."""
        found = self.objects()
        for name, value in self._named_inputs.items():
            if isinstance(value, (list, tuple)) and len(value) == batch and not tensors(value):
                found.append(name)
            else:
                others = ((path, leaf) for path, leaf in leaves(value, name) if not isinstance(leaf, Tensor))
                found += [path for path, one in others if tuple(getattr(one, "shape", ()))[:1] == (batch,)]
        return found

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) wherever DataParallel looks for tensors."""
        for name, value in self._named_inputs.items():
            yield from leaves(value, name, dataclasses=False)

    @cached_property
    def _named_inputs(self) -> dict[str, Any]:
        return named_inputs(self.args, self.kwargs)


def _tensors_inside(value: object, path: str) -> dict[str, Tensor]:
    """Return the tensors in ``value``, which may be any object, by path."""
    return {where: item for where, item in everything_in(value, path, _DEPTH) if isinstance(item, Tensor)}


def _with_new_tensors(value: Any, change: Callable[[str, Tensor], Tensor], path: str) -> Any:
    """Return ``value`` with changed tensors: containers rebuilt as in ``labkit/base/tree.py``, objects copied."""
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
    # deepcopy takes an object's replacement from its memo.
    others: dict[int, Any] = {id(tensor): change(where, tensor) for where, tensor in held.items()}
    try:
        return copy.deepcopy(value, others)
    except Exception as error:
        raise wrong(
            en=f"{path}: this {type(value).__name__} holds tensors, and copy.deepcopy cannot copy it "
            f"({type(error).__name__}: {words(error)}). The check-up only runs copies: pass the tensors themselves",
            zh=f"{path}：这个 {type(value).__name__} 里有张量，却不能用 copy.deepcopy 复制"
            f"（{type(error).__name__}：{words(error)}），而检查只在副本上运行：请直接传它的张量",
        ) from error


def open_containers(value: Any) -> Any:
    """Return ``value`` with a tuple in place of each object that gather would rebuild from its items.

    torch/nn/parallel/scatter_gather.py calls ``type(output)`` with the gathered items. That works for every class whose
    constructor takes what iteration gives, such as caches of keys and values.
    """
    inside = children(value)
    if inside is None:
        items = _items(value)
        return tuple(map(open_containers, items)) if tensors(items) else value
    items = [open_containers(item) for _, item in inside]
    same = all(new is old for new, (_, old) in zip(items, inside, strict=True))
    return value if same else rebuild(value, items)


def _items(value: Any) -> list[Any]:
    """Return the items of an object that ``type(value)(items)`` rebuilds; an empty list for any other object."""
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
    # Compare shapes, not tensors: some caches concatenate the given tensors to empty ones.
    return [(path, leaf.shape if isinstance(leaf, Tensor) else type(leaf)) for path, leaf in leaves(items)]
