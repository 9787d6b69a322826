"""A module's attributes besides its parameters and buffers, and those that a forward pass changes.

A replica is a shallow copy that lives for one call. An attribute written in forward is written on that
copy, and lost; a list or a dict is the same object in every replica, written by all their threads.
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

# What nn.Module itself keeps.
_OWN = frozenset(nn.Module().__dict__)
# How far containers in containers are followed.
_DEPTH = 3
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_CONTAINERS = (OrderedDict, dict, list, tuple, set, frozenset, deque)


def unregistered_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in plain attributes, containers and objects of modules: ``.to()`` does not move them."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return {where: one for where, one in _first_held(model, Tensor) if id(one) not in registered}


def unregistered_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with weights or buffers in plain lists, dicts and objects: the model does not know of them."""
    known = {id(module) for module in model.modules()}
    found = {where: one for where, one in _first_held(model, nn.Module) if id(one) not in known}
    return {where: one for where, one in found.items() if [*one.parameters(), *one.buffers()]}


def move_unregistered(
    model: nn.Module, device: torch.device | str, staying: frozenset[str] = frozenset()
) -> None:
    """Move the unregistered tensors and modules, except ``staying``, as their owner would have to by hand."""
    for where, module in unregistered_modules(model).items():
        if where not in staying:
            module.to(device)
    for where, tensor in unregistered_tensors(model).items():
        if where in staying:
            continue
        # The tensor itself is moved, as torch/nn/modules/module.py, Module._apply does: whoever holds it, holds it.
        tensor.grad = None
        tensor.data = tensor.data.to(device)


class AttributeChanges:
    """Notes the state of a module when it is made; :meth:`changes` compares it with the state then."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: list[object] = []  # so that no address is given to another object
        self._before = {where: (mark(value), inside) for where, value, inside in self._state()}

    def changes(self) -> tuple[list[str], list[str]]:
        """Return the names (``rnn.last_hidden``) of attributes with a new value, and of those changed in place."""
        lost, shared = [], []
        for where, value, inside in self._state():
            before, contents = self._before.get(where, (None, None))
            if mark(value) != before:
                lost.append(where)
            elif inside != contents:
                shared.append(where)
        return lost, shared

    def _state(self) -> Iterator[tuple[str, object, object]]:
        for where, value in attributes_of(self._model):
            self._held.append(value)
            yield where, value, marks_inside(value, self._held)
        for path, module in self._model.named_modules():
            for name, value in module.named_buffers(recurse=False):
                # A buffer that is changed in place is kept, from the first replica; only a new tensor is lost.
                self._held.append(value)
                yield f"{path}.{name}".lstrip("."), value, None


class Contents:
    """A copy of the tensors and simple values that attributes of a model, and other variables, hold."""

    def __init__(self, model: nn.Module, names: Iterable[str], others: Mapping[str, object]) -> None:
        held = {**dict(attributes_of(model)), **dict(model.named_buffers())}
        values = {name: held.get(name) for name in names} | dict(others)
        self._found = {name: dict(_leaves(value, "", _DEPTH + 1)) for name, value in values.items()}

    def differing(self, other: Contents) -> list[str]:
        """Return the names of what holds other values in ``other``."""
        return [
            name
            for name, found in other._found.items()
            if not _have_equal_leaves(self._found.get(name, {}), found)
        ]

    def with_tensors(self) -> list[str]:
        """Return the names of what holds tensors."""
        found = self._found.items()
        return [name for name, held in found if any(isinstance(one, Tensor) for one in held.values())]


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
            return alike and torch.equal(value.nan_to_num(), there.nan_to_num())
        return type(value) is type(there) and value == there

    return one.keys() == other.keys() and all(same(value, other[path]) for path, value in one.items())


def attributes_of(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the attributes of all modules, with the way to each, except nn.Module's own and computed weights."""
    for path, module in model.named_modules():
        if isinstance(module, jit.ScriptModule):
            continue  # what stands there is TorchScript's; a scripted forward cannot reach other Python objects
        for name, value in module.__dict__.items():
            computed = {f"{name}_g", f"{name}_orig"} & module._parameters.keys()
            if name not in _OWN and not computed and not name.startswith("_forward_"):
                yield f"{path}.{name}".lstrip("."), value


def _first_held(model: nn.Module, kind: type[T]) -> Iterable[tuple[str, T]]:
    """Return each ``kind`` in attributes of modules once, by the first way to it: ``heads[0]``, ``cache.keys``."""
    first: dict[int, tuple[str, T]] = {}
    for way, held in everything_held(model):
        if isinstance(held, kind):
            first.setdefault(id(held), (way, held))
    return first.values()


def everything_held(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield what the attributes of all modules hold, with the way to each, an object as often as it is held."""
    for where, value in attributes_of(model):
        yield from everything_in(value, where, _DEPTH)


def everything_in(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yield ``value`` and all that it holds, level by level, with the way to each; each object is looked into once."""
    known: set[int] = set()
    level = [(path, value)]
    for _ in range(depth + 1):
        yield from level
        objects = {id(item): (way, item) for way, item in level if id(item) not in known}
        known |= objects.keys()
        level = [(way + step, inner) for way, item in objects.values() for step, inner in items_of(item)]


def items_of(value: object) -> list[tuple[str, object]]:
    """Return the items of a container or a plain object, with the last step of the way to each."""
    if base_of(value):
        return [(f"[{key!r}]", item) for key, item in pairs_in(value)]
    return [(f".{name}", item) for name, item in _attributes(value).items()]


def base_of(value: object) -> type | None:
    """Return which of Python's own containers ``value`` is, itself or a subclass; None for another object."""
    return next((base for base in _CONTAINERS if isinstance(value, base)), None)


def pairs_in(value: Any) -> list[tuple[Any, Any]]:
    """Return what a container holds, each with its key or number, or no pairs for another object.

    The methods of Python's own types are called, for those of a subclass may fail, make objects, or import packages.
    """
    base: Any = base_of(value)
    pairs = (
        base.items(value) if base in (OrderedDict, dict) else enumerate(base.__iter__(value) if base else ())
    )
    return list(pairs)


def _attributes(value: object) -> dict[str, object]:
    """Return the attributes of an object of a user's class, which keeps its state in them; none of another object."""
    if (
        isinstance(value, (*_SIMPLE, nn.Module, Tensor, type, ModuleType, Enum, logging.Logger))
        or hasattr(type(value), "__get__")  # functions and descriptors
    ):
        return {}
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots_of(value)}}


def slots_of(value: object) -> list[str]:
    """Return the names of the ``__slots__`` that ``value`` has filled, of classes written in Python."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__ != "builtins"]
    named = [kind.__dict__.get("__slots__", ()) for kind in kinds]
    names = [name for slots in named for name in ((slots,) if isinstance(slots, str) else slots)]
    return [name for name in names if not name.startswith("__") and hasattr(value, name)]


def marks_inside(value: object, held: list[object], depth: int = _DEPTH) -> object:
    """Return a mark that changes when something inside ``value`` changes while ``value`` stays the same object.

    ``held`` keeps what is marked, so that no address is given to another object.
    """
    if isinstance(value, Tensor):
        return None if isinstance(value, nn.Parameter) or value.is_inference() else value._version
    if isinstance(value, (set, frozenset)):
        elements = [element for _, element in pairs_in(value)]
        held += elements
        return frozenset(map(mark, elements))
    items = items_of(value) if depth else []
    held += (item for _, item in items)
    return [(step, mark(item), marks_inside(item, held, depth - 1)) for step, item in items]


def mark(value: object) -> object:
    """Return what stands for ``value`` in comparisons: its type and text if it is simple, else its identity."""
    return (type(value), repr(value)) if isinstance(value, _SIMPLE) else id(value)
