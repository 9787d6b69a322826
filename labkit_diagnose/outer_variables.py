"""Variables outside a model that its functions reach: forwards and hooks may write to them.

What a function has around it in a closure is copied with the model; globals, and what a class shares with all its
objects, are not: ``HISTORY.append`` writes to the user's own list, from every replica at once. So these variables
are watched while the copies run, and afterwards are what they were. What belongs to Python or to an installed package
is neither watched nor written to: it may fill itself when it is first used, and would not do so again.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .attributes import attributes_of, base_of, everything_in, items_of, pairs_in, slots_of
from .deep_copy import belongs_to_library, is_library, names_in

# How far functions in variables of functions, and containers in containers, are followed.
_DEPTH = 3

# Where nn.Module keeps functions that are called at a forward or a backward.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

_CONTAINERS = (list, dict, set, deque)
_CACHE = type(lru_cache(len))
_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, partial, _CACHE)
_ABSENT = object()


@dataclass(frozen=True)
class Variable:
    """A variable outside the model: its name, its value, how it is read and set, and whether a change is told."""

    name: str
    value: object
    get: Callable[[], object]
    set: Callable[[Any], object]
    told: bool = True


class OuterVariables:
    """The variables that a model's functions reach; :meth:`restore` gives them the values back that they have now."""

    def __init__(self, model: nn.Module) -> None:
        reached = _Reached()
        for function in _functions_of(model):
            reached.follow(function, _DEPTH)
        self._reached, self._undo = reached, list[Callable[[], object]]()

    def keep(self, others: Iterable[object] = ()) -> None:
        """Let :meth:`restore` give the variables, and ``others``, the contents back that they have now."""
        variables, kinds = self._reached.variables, self._reached.classes
        self._undo += [partial(one.set, one.value) for one in variables]
        self._undo += [partial(_refill_class, kind, _data(kind)) for kind in kinds]
        self._undo += [partial(_clear, cache, cache.cache_info().currsize) for cache in self._reached.caches]
        modules = [module for module in [*sys.modules.values()] if isinstance(module, ModuleType)]
        theirs = {id(one) for module in modules if is_library(module) for one in [*vars(module).values()]}
        shared = [value for kind in kinds for value in _data(kind).values()]
        for value in (*(one.value for one in variables), *shared, *others):
            self._undo += _contents(value, theirs, _DEPTH)

    def values(self) -> dict[str, list[object]]:
        """Return what the variables of each name have now, but for those whose changes are nothing to tell."""
        found: dict[str, list[object]] = {}
        for one in self._reached.variables:
            if one.told:
                found.setdefault(one.name, []).append(one.get())
        for kind in self._reached.classes:
            # A dict of a class is a cache, most likely, as one of a module is; a Function's is none.
            every = issubclass(kind, torch.autograd.Function)
            for name, value in _data(kind).items():
                if every or not isinstance(value, dict):
                    found.setdefault(f"{kind.__name__}.{name}", []).append(value)
        return found

    def select_function_names(self, names: list[str]) -> list[str]:
        """Return those of ``names`` that a class of an autograd Function has."""
        own = {kind.__name__ for kind in self._reached.classes if issubclass(kind, torch.autograd.Function)}
        return [name for name in names if name.partition(".")[0] in own]

    def restore(self) -> None:
        """Give every variable its value back, and everything in one its contents."""
        with ExitStack() as stack:  # where one fails, the others are called all the same
            for undo in self._undo:
                stack.callback(undo)


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
        if id(function) in self._seen or depth <= 0:
            return
        self._seen[id(function)] = function
        if isinstance(function, partial):
            for part in (function.func, *function.args, *function.keywords.values()):
                self.follow(part, depth)
        elif isinstance(function, (MethodType, BuiltinMethodType)):
            owner = function.__self__
            if not isinstance(owner, nn.Module) and _keeps(owner):  # it cannot be replaced by another
                self.variables.append(Variable(type(owner).__name__, owner, lambda: owner, id))
            if isinstance(function, MethodType):
                self.follow(function.__func__, depth)
        elif isinstance(function, _CACHE):
            self.caches.append(function)
            self.follow(function.__wrapped__, depth)
        elif isinstance(function, type) and not is_library(function):
            self.classes[function] = None
            for value in vars(function).values():
                self.follow(getattr(value, "__func__", getattr(value, "fget", value)), depth)
        elif isinstance(function, FunctionType) and not belongs_to_library(function):
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
        module = sys.modules.get(str(around.get("__name__")))
        if depth <= 0 or (module is not None and is_library(module)):
            return
        for name in names:
            value = around.get(name, _ABSENT)
            if isinstance(value, ModuleType):
                self._globals(vars(value), names, depth - 1)
            elif isinstance(value, (*_FUNCTIONS, type)):
                self.follow(value if isinstance(value, partial) or not is_library(value) else None, depth - 1)
            elif not name.startswith("__") and (id(around), name) not in self._named:
                self._named.add((id(around), name))
                # A dict of a module is a cache, most likely, of which every replica may fill what it needs.
                told = isinstance(value, (list, set, deque, int, float)) and not isinstance(value, bool)
                put = partial(around.pop if value is _ABSENT else around.__setitem__, name)
                self.variables.append(Variable(name, value, partial(around.get, name, _ABSENT), put, told))


def _data(kind: type) -> dict[str, Any]:
    """Return what a class shares with its objects beside functions, and what Python itself keeps there."""
    own = {name: value for name, value in vars(kind).items() if not name.startswith(("__", "_abc_"))}
    return {name: one for name, one in own.items() if not callable(one) and not hasattr(type(one), "__get__")}


def _keeps(value: object) -> bool:
    """Whether ``value`` is a container, or an object with attributes, and not of a library's class."""
    kind = type(value)
    if isinstance(value, (*_CONTAINERS, SimpleNamespace)):
        return kind.__module__ in ("builtins", "collections", "types") or not is_library(kind)
    return not is_library(kind) and not isinstance(value, (nn.Module, type)) and bool(items_of(value))


def _contents(
    value: Any, theirs: set[int], depth: int, known: dict[int, object] | None = None
) -> Iterator[Callable[[], object]]:
    """Yield what gives the contents back that all in ``value`` has now: containers, objects, tensors, generators."""
    known = {} if known is None else known
    if id(value) in known or id(value) in theirs or depth <= 0:
        return
    known[id(value)] = value
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if plain and not (value.is_meta or value.is_inference()):
            yield partial(setattr, value, "data", data := value.data)
            yield partial(data.copy_, data.clone())
            if value.is_leaf:
                yield partial(setattr, value, "grad", value.grad)
                yield from _contents(value.grad, theirs, depth, known)
    elif isinstance(value, nn.Module):
        yield partial(_refill, vars(value), pairs_in(vars(value)))
        for held in vars(value).values():
            yield from _contents(held, theirs, _DEPTH, known)
    elif isinstance(value, torch.Generator):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        yield partial(value.setstate, value.getstate())
    elif type(value).__module__ == "numpy" and hasattr(value, "__setitem__"):
        yield partial(value.__setitem__, ..., value.copy())
    elif type(value).__module__.startswith("numpy.random"):
        bits = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)
        if bits is not None:
            yield partial(setattr, bits, "state", bits.state)
    elif _keeps(value) or isinstance(value, tuple):
        for inside in (value, getattr(value, "__dict__", None)):
            if isinstance(inside, _CONTAINERS):
                yield partial(_refill, inside, pairs_in(inside))
        for name in slots_of(value):
            yield partial(object.__setattr__, value, name, getattr(value, name))
        for _, held in items_of(value):
            yield from _contents(held, theirs, depth - 1, known)


def _refill(container: Any, pairs: list[tuple[Any, Any]]) -> None:
    """Give a container its contents back, if it has others, by the methods of Python's own type alone."""
    if _ids(pairs_in(container)) == _ids(pairs):
        return
    base: Any = base_of(container)
    mapping = issubclass(base, dict)
    contents = (
        dict(pairs) if mapping else base(item for _, item in pairs)
    )  # it may fail: before the other is emptied
    base.clear(container)
    if base is OrderedDict:  # its update calls __setitem__ of the class
        for key, item in pairs:
            base.__setitem__(container, key, item)
    else:
        (base.extend if base in (list, deque) else base.update)(container, contents)


def _ids(pairs: list[tuple[Any, Any]]) -> list[tuple[int, int]]:
    return [(key if type(key) is int else id(key), id(item)) for key, item in pairs]


def _refill_class(kind: type, inside: dict[str, Any]) -> None:
    for name in _data(kind).keys() - inside.keys():
        type.__delattr__(kind, name)
    for name, value in inside.items():
        if vars(kind).get(name) is not value:
            type.__setattr__(kind, name, value)


def _clear(cache: Any, entries: int) -> None:
    """Forget results of a function that were kept for the copies, with tensors on GPUs that are none of the user's."""
    if cache.cache_info().currsize != entries:
        held = (one for result in gc.get_referents(cache) for _, one in everything_in(result, "", _DEPTH))
        if any(isinstance(one, Tensor) for one in held):
            cache.cache_clear()
