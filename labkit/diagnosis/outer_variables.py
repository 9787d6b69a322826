"""Variables outside a model that its functions reach: hooks and forwards may write to them.

A function is not copied with the model. ``features.append`` in a hook writes to the user's own list, from every
replica at once. So these variables are watched while the copies run, and afterwards are what they were.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import nn

from .attributes import attributes_of, everything_in, items_of, mark, marks_inside

# How far functions in variables of functions, and containers in containers, are followed.
_DEPTH = 3

# Where nn.Module keeps functions that are called at a forward or a backward.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class Variable:
    """A variable outside the model: its name, its value, and how it is read and set."""

    name: str
    value: object
    get: Callable[[], object]
    set: Callable[[Any], None]


class OuterVariables:
    """The variables that a model's functions reach, and their values now: :meth:`changes` says which have changed."""

    def __init__(self, model: nn.Module) -> None:
        seen: set[int] = set()
        self._variables = [
            found for function in _functions_of(model) for found in _variables(function, seen, _DEPTH)
        ]
        self._held: list[object] = []
        self._before = self._marks()
        self._contents = [held for variable in self._variables for held in _contents(variable.value)]

    def changes(self) -> list[str]:
        """Return the names of the variables that have another value, or other contents."""
        pairs = zip(self._variables, self._before, self._marks(), strict=True)
        return list(dict.fromkeys(variable.name for variable, before, now in pairs if before != now))

    def restore(self) -> None:
        """Give every variable its value back, and every container in one its contents."""
        for variable in self._variables:
            if variable.get() is not variable.value:
                variable.set(variable.value)
        for container, inside in self._contents:
            _refill(container, inside)

    def _marks(self) -> list[object]:
        values = [variable.get() for variable in self._variables]
        self._held += values  # so that no address is given to another object
        return [(mark(value), marks_inside(value, self._held)) for value in values]


def _functions_of(model: nn.Module) -> Iterator[Any]:
    """Yield the functions that a forward or a backward calls, except torch's own."""
    kinds: dict[type, None] = {}
    for module in model.modules():
        for hooks in _HOOKS:
            yield from getattr(module, hooks, {}).values()
        kinds |= dict.fromkeys(type(module).__mro__)
    for kind in kinds:
        if not kind.__module__.startswith(("torch.", "builtins")):
            yield from (value for value in vars(kind).values() if isinstance(value, FunctionType))
    yield from (
        value for _, value in attributes_of(model) if callable(value) and not isinstance(value, nn.Module)
    )


def _variables(function: Any, seen: set[int], depth: int) -> Iterator[Variable]:
    if id(function) in seen or not depth:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _variables(part, seen, depth - 1)
    elif isinstance(function, (MethodType, BuiltinMethodType)):
        owner = function.__self__
        if not isinstance(owner, nn.Module) and _keeps(owner):  # it cannot be replaced by another
            yield Variable(type(owner).__name__, owner, lambda: owner, lambda _: None)
        if isinstance(function, MethodType):
            yield from _variables(function.__func__, seen, depth)
    elif isinstance(function, FunctionType) and not function.__module__.startswith("torch."):
        code, around = function.__code__, function.__globals__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield from _cell(name, cell, seen, depth)
        for name in dict.fromkeys(code.co_names):
            value = around.get(name)
            # A dict of a module is a cache, most likely, of which every replica may fill what it needs.
            if isinstance(value, (list, set, deque, int, float)) and not isinstance(value, bool):
                yield Variable(name, value, partial(around.get, name), partial(around.__setitem__, name))


def _cell(name: str, cell: CellType, seen: set[int], depth: int) -> Iterator[Variable]:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return
    if isinstance(value, (FunctionType, MethodType, BuiltinMethodType, partial)):
        yield from _variables(value, seen, depth - 1)
    elif isinstance(value, (int, float, str, tuple)) or _keeps(value):
        yield Variable(
            name, value, partial(getattr, cell, "cell_contents"), partial(setattr, cell, "cell_contents")
        )


def _keeps(value: object) -> bool:
    """Whether ``value`` is a container, or an object with attributes whose class is neither Python's nor torch's."""
    if isinstance(value, (list, dict, set, deque, SimpleNamespace)):
        return True
    own = type(value).__module__.partition(".")[0] in (sys.stdlib_module_names - {"__main__"}) | {"torch"}
    return not own and not isinstance(value, nn.Module) and bool(items_of(value))


def _contents(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield the containers and objects in ``value``, itself first, each with a copy of its direct contents."""
    for _, item in everything_in(value, "", _DEPTH - 1):
        if isinstance(item, (list, dict, set, deque)):
            yield item, item.copy()
        elif hasattr(item, "__dict__") and _keeps(item):
            yield vars(item), vars(item).copy()


def _refill(container: Any, inside: Any) -> None:
    if len(container) == len(inside) and all(
        one is other for one, other in zip(_flat(container), _flat(inside), strict=True)
    ):
        return
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(inside)
    else:
        container.update(inside)


def _flat(container: Any) -> list[object]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)
