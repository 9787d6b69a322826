"""Nested structures, walked in one way: what is inside, the way to each, and the same structure with others.

Containers are what ``torch.nn.parallel`` walks, by ``isinstance``: tuples (namedtuples and torch's own return types
among them), lists and dicts, subclasses included; and, as labkit's gather puts them together, dataclasses.
torch's pytree and optree go by exact type instead, so that a subclass of list is a leaf there: with them the
engine would cut other things than PyTorch does.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor


def is_dataclass(value: object) -> bool:
    """Whether ``value`` is an object of a dataclass (and not the class)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def children(value: object) -> list[tuple[str, Any]] | None:
    """What is directly in ``value``, each with its step (``[1]``, ``['mask']``, ``.mean``); None for a leaf."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        return [(f"[{at}]", item) for at, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, Tensor):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]  # type: ignore[arg-type]
    return None


def rebuilt(value: Any, items: Sequence[Any]) -> Any:
    """A container like ``value`` with ``items`` in the place of its :func:`children`.

    Subclasses are kept: a namedtuple or one of torch's return types is made from its fields, a dict or a list of
    another class is copied and refilled (its constructor may want other arguments), and so is a dataclass, whose
    fields need not be arguments.
    """
    kind = type(value)
    if isinstance(value, dict):
        pairs = dict(zip(value, items, strict=True))
        if kind is dict:
            return pairs
        other = copy.copy(value)
        other.update(pairs)
        return other
    if isinstance(value, tuple):
        if kind is tuple:
            return tuple(items)
        # A namedtuple takes its fields one by one, torch's return types (structseq) take one sequence.
        return kind._make(items) if hasattr(kind, "_make") else kind(items)
    if isinstance(value, list):
        if kind is list:
            return list(items)
        other = copy.copy(value)
        other[:] = items
        return other
    other = copy.copy(value)
    for field, item in zip(dataclasses.fields(value), items, strict=True):
        object.__setattr__(other, field.name, item)  # frozen ones too
    return other


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in ``value`` that is no container, with the way to it: ``output[1]['mask']``."""
    inside = children(value)
    if inside is None:
        yield path, value
    else:
        for step, item in inside:
            yield from leaves(item, path + step)


def tensors(value: object, path: str = "") -> dict[str, Tensor]:
    """The tensors in ``value``, by the way to each."""
    return {way: leaf for way, leaf in leaves(value, path) if isinstance(leaf, Tensor)}


def mapped(value: Any, change: Callable[[str, Tensor], Any], path: str = "") -> Any:
    """``value`` with each tensor replaced by ``change(path, tensor)``; what has no tensor inside is kept as it is."""
    if isinstance(value, Tensor):
        return change(path, value)
    inside = children(value)
    if not inside:
        return value
    items = [mapped(item, change, path + step) for step, item in inside]
    if all(new is old for new, (_, old) in zip(items, inside, strict=True)):
        return value
    return rebuilt(value, items)
