"""Attributes of modules other than parameters and buffers, and how a forward pass changes them.

A replica is a shallow copy that lives for one call. A forward that assigns an attribute does so on this copy, and the
value is lost. A list or dict is the same object in every replica, and all threads write to it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, jit, nn

T = TypeVar("T")

# Attributes of nn.Module itself.
_MODULE_ATTRIBUTES = frozenset(nn.Module().__dict__)
# Follow containers nested this deep.
_DEPTH = 3
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_CONTAINERS = (OrderedDict, dict, list, tuple, set, frozenset, deque)


def unregistered_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return by path the tensors in plain attributes, containers and objects, which ``.to()`` does not move."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return {where: one for where, one in _first_held(model, Tensor) if id(one) not in registered}


def unregistered_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return by path the modules with weights or buffers in plain lists, dicts and objects, unknown to the model."""
    known = {id(module) for module in model.modules()}
    found = {where: one for where, one in _first_held(model, nn.Module) if id(one) not in known}
    return {where: one for where, one in found.items() if [*one.parameters(), *one.buffers()]}


def move_unregistered(
    model: nn.Module, device: torch.device | str, staying: frozenset[str] = frozenset()
) -> None:
    """Move unregistered tensors and modules, except ``staying``, as their owner would do by hand."""
    for where, module in unregistered_modules(model).items():
        if where not in staying:
            module.to(device)
    for where, tensor in unregistered_tensors(model).items():
        if where in staying:
            continue
        # Move the tensor in place, as Module._apply does, so that every reference to it sees the change. The gradient
        # would stay on the old device.
        tensor.grad = None
        tensor.data = tensor.data.to(device)


class ModelState:
    """The tensors and simple values in a model's attributes and buffers, and in ``others``, when this was made."""

    def __init__(self, model: nn.Module, others: Mapping[str, object]) -> None:
        # Keep the values: ids stay unique.
        self._own = {**dict(attributes_of(model)), **dict(model.named_buffers())}
        # One level more: other variables come in lists, as several may have one name.
        self._found = {
            name: dict(_leaves(value, "", _DEPTH + 1)) for name, value in (self._own | dict(others)).items()
        }

    def reassigned(self, later: ModelState) -> list[str]:
        """Return the names (``rnn.last_hidden``) of attributes and buffers that are other objects ``later``."""
        before = {name: mark(value) for name, value in self._own.items()}
        return [name for name, value in later._own.items() if mark(value) != before.get(name)]

    def changed(self, later: ModelState) -> list[str]:
        """Return the names whose values differ ``later``."""
        pairs = ((name, self._found.get(name, {}), found) for name, found in later._found.items())
        return [name for name, before, found in pairs if not _have_equal_leaves(before, found)]

    def holds_tensors(self, name: str) -> bool:
        return any(isinstance(one, Tensor) for one in self._found[name].values())


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    items = items_of(value) if depth else []
    if isinstance(value, Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, (set, frozenset)):
        yield path, frozenset(mark(item) for _, item in items)
    elif items:
        for step, item in items:
            yield from _leaves(item, path + step, depth - 1)
    elif isinstance(value, _SIMPLE):
        yield path, value
    else:
        yield path, type(value)


def _have_equal_leaves(one: dict[str, object], other: dict[str, object]) -> bool:
    def same(value: object, there: object) -> bool:
        if isinstance(value, Tensor) and isinstance(there, Tensor):
            alike = value.shape == there.shape and value.device == there.device
            return alike and torch.equal(value.nan_to_num(), there.nan_to_num())  # NaN equals NaN
        return type(value) is type(there) and value == there

    return one.keys() == other.keys() and all(same(value, other[path]) for path, value in one.items())


def attributes_of(model: nn.Module) -> list[tuple[str, object]]:
    """Return (path, value) for the attributes of all modules, except nn.Module's own and computed weights."""
    found: list[tuple[str, object]] = []
    for path, module in model.named_modules():
        if isinstance(module, jit.ScriptModule):
            continue  # a scripted forward cannot reach Python attributes
        for name, value in module.__dict__.items():
            # weight_norm and spectral_norm or prune compute their weights from these parameters.
            computed = {f"{name}_g", f"{name}_orig"} & module._parameters.keys()
            if name not in _MODULE_ATTRIBUTES and not computed and not name.startswith("_forward_"):
                found.append((f"{path}.{name}".lstrip("."), value))
    return found


def _first_held(model: nn.Module, kind: type[T]) -> Iterable[tuple[str, T]]:
    """Return each object of class ``kind`` in attributes once, with its first path: ``heads[0]``, ``cache.keys``."""
    first: dict[int, tuple[str, T]] = {}
    for path, held in everything_held(model):
        if isinstance(held, kind):
            first.setdefault(id(held), (path, held))
    return first.values()


def everything_held(model: nn.Module) -> list[tuple[str, object]]:
    """Return (path, object) for every object in the attributes of all modules, once per path."""
    return [one for where, value in attributes_of(model) for one in everything_in(value, where, _DEPTH)]


def everything_in(value: object, path: str, depth: int) -> list[tuple[str, object]]:
    """Return (path, object) for ``value`` and all objects in it, level by level; enter each object once."""
    found: list[tuple[str, object]] = []
    known: set[int] = set()
    level = [(path, value)]
    for _ in range(depth + 1):
        found += level
        objects = {id(item): (where, item) for where, item in level if id(item) not in known}
        known |= objects.keys()
        level = [(where + step, inner) for where, item in objects.values() for step, inner in items_of(item)]
    return found


def items_of(value: object) -> list[tuple[str, object]]:
    """Return (step of the path, item) for the items of a container or the attributes of a plain object."""
    if base_of(value):
        return [(f"[{key!r}]", item) for key, item in pairs_in(value)]
    return [(f".{name}", item) for name, item in _attributes(value).items()]


def base_of(value: object) -> type | None:
    """Return the built-in container class of ``value``, which may be of a subclass; None for any other object."""
    return next((base for base in _CONTAINERS if isinstance(value, base)), None)


def pairs_in(value: Any) -> list[tuple[Any, Any]]:
    """Return (key or index, item) for the items of a container; an empty list for any other object.

    Call the built-in class's methods: a subclass's own may fail, create objects, or import packages.
    """
    base: Any = base_of(value)
    pairs = (
        base.items(value) if base in (OrderedDict, dict) else enumerate(base.__iter__(value) if base else ())
    )
    return list(pairs)


def _attributes(value: object) -> dict[str, object]:
    """Return the attributes of an instance of an ordinary class; an empty dict for any other object."""
    if (
        isinstance(value, (*_SIMPLE, nn.Module, Tensor, type, ModuleType, Enum, logging.Logger))
        or hasattr(type(value), "__get__")  # functions and descriptors
    ):
        return {}
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots_of(value)}}


def slots_of(value: object) -> list[str]:
    """Return the names of ``__slots__`` of Python classes for which ``value`` has a value."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__ != "builtins"]
    named = [kind.__dict__.get("__slots__", ()) for kind in kinds]
    names = [name for slots in named for name in ((slots,) if isinstance(slots, str) else slots)]
    return [name for name in names if not name.startswith("__") and hasattr(value, name)]


def mark(value: object) -> object:
    """Return a value to compare: type and text of a simple ``value``, the id of any other object."""
    return (type(value), repr(value)) if isinstance(value, _SIMPLE) else id(value)
