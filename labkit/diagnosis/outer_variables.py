"""Variables outside a model that its functions reach: forwards and hooks may write to them.

What a function has around it in a closure is copied with the model; globals, and what a class shares with all its
objects, are not: ``HISTORY.append`` writes to the user's own list, from every replica at once. So these variables
are watched while the copies run, and afterwards are what they were.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .attributes import attributes_of, everything_in, items_of, mark, marks_inside
from .copies import is_near, is_own, names_in

# How far functions in variables of functions, and containers in containers, are followed.
_DEPTH = 3

# Where nn.Module keeps functions that are called at a forward or a backward.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

_CONTAINERS = (list, dict, set, deque)
_CACHE = type(lru_cache(len))
_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, partial, _CACHE)


@dataclass(frozen=True)
class Variable:
    """A variable outside the model: its name, its value, how it is read and set, and whether a change is told."""

    name: str
    value: object
    get: Callable[[], object]
    set: Callable[[Any], None]
    told: bool = True


class OuterVariables:
    """The variables that a model's functions reach, and their values now: :meth:`changes` says which have changed.

    kept   whether copies of the values are kept, which :meth:`restore` puts back.
    """

    def __init__(self, model: nn.Module, kept: bool = False) -> None:
        reached = _Reached()
        for function in _functions_of(model):
            reached.follow(function, _DEPTH)
        self._variables, self._classes = reached.variables, list(reached.classes)
        self._held: list[object] = []
        self._undo: list[Callable[[], object]] = []
        if kept:
            self._undo += [partial(one.set, one.value) for one in self._variables]
            self._undo += [partial(_refill_class, kind, _data(kind)) for kind in self._classes]
            self._undo += [partial(_clear, cache, cache.cache_info().currsize) for cache in reached.caches]
            values = [one.value for one in self._variables]
            shared = [value for kind in self._classes for value in _data(kind).values()]
            self._undo += [undo for value in (*values, *shared) for undo in _contents(value)]
        self.note()

    def note(self) -> None:
        """Take the values now for those that :meth:`changes` compares with."""
        self._before = self._marks()

    def changes(self) -> list[str]:
        """Return the names of the variables that have another value, or other contents."""
        changed = [name for (name, at), now in self._marks().items() if self._before.get((name, at)) != now]
        return list(dict.fromkeys(changed))

    def of_functions(self, names: list[str]) -> list[str]:
        """Return those of ``names`` that a class of an autograd Function has."""
        own = {kind.__name__ for kind in self._classes if issubclass(kind, torch.autograd.Function)}
        return [name for name in names if name.partition(".")[0] in own]

    def restore(self) -> None:
        """Give every variable its value back, and everything in one its contents."""
        for undo in self._undo:
            undo()

    def _marks(self) -> dict[tuple[str, int], object]:
        values = {(one.name, at): one.get() for at, one in enumerate(self._variables) if one.told}
        for at, kind in enumerate(self._classes):
            # A dict of a class is a cache, most likely, as one of a module is; a Function's is none.
            every = issubclass(kind, torch.autograd.Function)
            own = ((name, one) for name, one in _data(kind).items() if every or not isinstance(one, dict))
            values |= {(f"{kind.__name__}.{name}", at): value for name, value in own}
        self._held += values.values()  # so that no address is given to another object
        return {name: (mark(value), marks_inside(value, self._held)) for name, value in values.items()}


def _functions_of(model: nn.Module) -> Iterator[Any]:
    """Yield what may be a function that a forward or a backward calls, and the classes of the modules."""
    kinds: dict[type, None] = {}
    for module in model.modules():
        for hooks in _HOOKS:
            yield from getattr(module, hooks, {}).values()
        kinds |= dict.fromkeys(type(module).__mro__)
    yield from kinds
    yield from (value for _, value in attributes_of(model))


class _Reached:
    """Collects what functions reach: variables, classes with what they share, and caches of functions' results."""

    def __init__(self) -> None:
        self.variables: list[Variable] = []
        self.classes: dict[type, None] = {}
        self.caches: list[Any] = []
        self._seen: dict[int, object] = {}
        self._named: set[tuple[int, str]] = set()

    def follow(self, function: Any, depth: int) -> None:
        """Collect what ``function``, a function or a class, reaches."""
        if id(function) in self._seen or not depth:
            return
        self._seen[id(function)] = function
        if isinstance(function, partial):
            for part in (function.func, *function.args, *function.keywords.values()):
                self.follow(part, depth)
        elif isinstance(function, (MethodType, BuiltinMethodType)):
            owner = function.__self__
            if not isinstance(owner, nn.Module) and _keeps(owner):  # it cannot be replaced by another
                self.variables.append(Variable(type(owner).__name__, owner, lambda: owner, lambda _: None))
            if isinstance(function, MethodType):
                self.follow(function.__func__, depth)
        elif isinstance(function, _CACHE):
            self.caches.append(function)
            self.follow(function.__wrapped__, depth)
        elif isinstance(function, type) and is_own(function):
            self.classes[function] = None
            for value in vars(function).values():
                self.follow(getattr(value, "__func__", getattr(value, "fget", value)), depth)
        elif isinstance(function, FunctionType) and is_own(function):
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                with suppress(ValueError):  # not assigned yet
                    inside: object = cell.cell_contents
                    if isinstance(inside, (*_FUNCTIONS, type)):
                        self.follow(inside, depth - 1)
                    elif isinstance(inside, (int, float, str, tuple, Tensor)) or _keeps(inside):
                        get, put = (partial(do, cell, "cell_contents") for do in (getattr, setattr))
                        self.variables.append(Variable(name, inside, get, put))
            self._globals(function.__globals__, names_in(function.__code__), depth)

    def _globals(self, around: dict[str, Any], names: Iterable[str], depth: int) -> None:
        for name in names:
            value = around.get(name)
            if isinstance(value, ModuleType):
                if depth and is_near(value, around):
                    self._globals(vars(value), names, depth - 1)
            elif isinstance(value, (*_FUNCTIONS, type)):
                self.follow(value if is_near(value, around) else None, depth - 1)
            elif is_own(type(value)) and not is_near(type(value), around):
                continue  # what another package keeps is its own
            elif name in around and not name.startswith("__") and (id(around), name) not in self._named:
                self._named.add((id(around), name))
                # A dict of a module is a cache, most likely, of which every replica may fill what it needs.
                told = isinstance(value, (list, set, deque, int, float)) and not isinstance(value, bool)
                put = partial(around.__setitem__, name)
                self.variables.append(Variable(name, value, partial(around.get, name), put, told))


def _data(kind: type) -> dict[str, Any]:
    """Return what a class shares with its objects beside functions, and what Python itself keeps there."""
    own = {name: value for name, value in vars(kind).items() if not name.startswith(("__", "_abc_"))}
    return {name: one for name, one in own.items() if not callable(one) and not hasattr(one, "__get__")}


def _keeps(value: object) -> bool:
    """Whether ``value`` is a container, or an object with attributes whose class is neither Python's nor torch's."""
    if isinstance(value, (*_CONTAINERS, SimpleNamespace)):
        return True
    return is_own(type(value)) and not isinstance(value, (nn.Module, type)) and bool(items_of(value))


def _contents(value: object) -> Iterator[Callable[[], object]]:
    """Yield what gives the contents back that all in ``value`` has now: containers, objects, tensors, generators."""
    for _, item in everything_in(value, "", _DEPTH - 1):
        if isinstance(item, _CONTAINERS):
            yield partial(_refill, item, item.copy())
        elif isinstance(item, Tensor):
            plain = type(item) in (Tensor, nn.Parameter) and item.layout is torch.strided
            if plain and not (item.is_meta or item.is_inference()):
                yield partial(item.data.copy_, item.detach().clone())
        elif isinstance(item, nn.Module):
            for module in item.modules():
                yield partial(_refill, vars(module), vars(module).copy())
                yield from (undo for buffer in module._buffers.values() for undo in _contents(buffer))
        elif isinstance(item, torch.Generator):
            yield partial(item.set_state, item.get_state())
        elif isinstance(item, random.Random) and not isinstance(item, random.SystemRandom):
            yield partial(item.setstate, item.getstate())
        elif type(item).__module__.startswith("numpy.random"):
            bits = getattr(item, "bit_generator", None) or getattr(item, "_bit_generator", None)
            if bits is not None:
                yield partial(setattr, bits, "state", bits.state)
        elif hasattr(item, "__dict__") and _keeps(item):
            yield partial(_refill, vars(item), vars(item).copy())


def _refill(container: Any, inside: Any) -> None:
    if list(map(id, _flat(container))) == list(map(id, _flat(inside))):
        return
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(inside)
    else:
        container.update(inside)


def _flat(container: Any) -> list[object]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _refill_class(kind: type, inside: dict[str, Any]) -> None:
    for name in _data(kind).keys() - inside.keys():
        delattr(kind, name)
    for name, value in inside.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)


def _clear(cache: Any, entries: int) -> None:
    """Forget results of a function that were kept for the copies, on GPUs that are none of the user's."""
    if cache.cache_info().currsize != entries:
        cache.cache_clear()
