"""Walk nested structures: their items, the path to each, and a copy with other items.

Containers are what ``torch.nn.parallel`` walks, by ``isinstance``: tuples (also namedtuples and torch's return types),
lists and dicts, with subclasses; and dataclasses, which labkit's gather puts together. torch's pytree and optree go by
exact type, so a subclass of list is a leaf there, and the engine would cut other things than PyTorch.
"""

from __future__ import annotations

import copy
import dataclasses as _dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from .language import say

# The commonest leaves, skipped first.
_SCALARS = frozenset({int, float, bool, str, type(None)})


def is_dataclass(value: object) -> bool:
    """Whether ``value`` is an object of a dataclass (and not the class)."""
    return _dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> list[str]:
    """Return the names of a dataclass object's fields that are set; one with ``init=False`` may not be."""
    return [field.name for field in _dataclasses.fields(value) if hasattr(value, field.name)]


def children(value: object, *, dataclasses: bool = True) -> list[tuple[str, Any]] | None:
    """Return the items of ``value``, each with its step (``[1]``, ``['mask']``, ``.mean``); None for a leaf.

    dataclasses   False: dataclasses are leaves, as for ``torch.nn.parallel.scatter``.
    """
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        return [(f"[{at}]", item) for at, item in enumerate(value)]
    if dataclasses and is_dataclass(value) and not isinstance(value, Tensor):
        return [(f".{name}", getattr(value, name)) for name in _fields(value)]
    return None


def rebuild(value: Any, items: Sequence[Any]) -> Any:
    """Return a container like ``value`` with ``items`` in place of its :func:`children`.

    Subclasses are kept: a namedtuple, one of torch's return types, a tuple or a dict of another class is made as
    ``torch.nn.parallel.gather`` makes it, from its items or pairs. Where the constructor wants other arguments
    (a defaultdict's does), and for lists and dataclasses, whose fields need not be arguments, a copy is refilled.
    """
    kind: Any = type(value)
    if isinstance(value, dict):
        pairs = list(zip(value, items, strict=True))
        fields = _fields(value) if is_dataclass(value) else []  # some libraries' outputs are both
        made = None if fields else _construct(kind, pairs)
        if made is not None and list(made) == list(value):  # a Counter takes pairs, but counts them
            return made
        try:
            other = copy.copy(value)
        except TypeError:  # an OrderedDict is copied by a call of its class
            other = kind.__new__(kind)
            other.__dict__.update(vars(value))
        for key, item in pairs:
            other[key] = item
            if key in fields:
                object.__setattr__(other, key, item)
        return other
    if isinstance(value, tuple):
        if hasattr(kind, "_make"):  # namedtuple
            return kind._make(items)
        made = _construct(kind, items)
        return tuple.__new__(kind, items) if made is None else made
    other = copy.copy(value)
    if isinstance(value, list):
        other[:] = items
        return other
    for name, item in zip(_fields(value), items, strict=True):
        object.__setattr__(other, name, item)  # frozen ones too
    return other


def _construct(kind: Callable[[Any], Any], items: Sequence[Any]) -> Any:
    """Return ``kind(items)``, or None if that fails."""
    try:
        return kind(items)
    except TypeError:
        return None


def input_name(at: int) -> str:
    """Return the name of a forward's positional argument ``at``, for messages."""
    return say(en=f"input {at}", zh=f"输入 {at}")


def named_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a forward's arguments by their names in messages: ``input 0``, ``keyword argument 'mask'``."""
    named = {input_name(at): value for at, value in enumerate(args)}
    called = say(en="keyword argument", zh="关键字参数")
    return named | {f"{called} {name!r}": value for name, value in kwargs.items()}


def output_name() -> str:
    """Return the name of a forward's output, for messages."""
    return say(en="output", zh="输出")


def leaves(value: object, path: str = "", *, dataclasses: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield every leaf of ``value`` with its path: ``output[1]['mask']``."""
    inside = children(value, dataclasses=dataclasses)
    if inside is None:
        yield path, value
    else:
        for step, item in inside:
            yield from leaves(item, path + step, dataclasses=dataclasses)


def tensors(value: object, path: str = "", *, dataclasses: bool = True) -> dict[str, Tensor]:
    """Return the tensors in ``value``, by path."""
    found = leaves(value, path, dataclasses=dataclasses)
    return {way: leaf for way, leaf in found if isinstance(leaf, Tensor)}


def map_tensors(value: Any, change: Callable[[str, Tensor], Any], path: str = "") -> Any:
    """Return ``value`` with each tensor replaced by ``change(path, tensor)``; parts without tensors are kept."""
    if isinstance(value, Tensor):
        return change(path, value)
    inside = children(value)
    if not inside:
        return value
    items = [map_tensors(item, change, path + step) for step, item in inside]
    if all(new is old for new, (_, old) in zip(items, inside, strict=True)):
        return value
    return rebuild(value, items)


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in ``values``, in order: faster than :func:`tensors`, for code that many operations run."""
    found: list[Tensor] = []
    _collect(values, found)
    return found


def _collect(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        kind = value.__class__
        if kind in _SCALARS:
            continue
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)
        elif is_dataclass(value):
            _collect((getattr(value, name) for name in _fields(value)), found)
