"""Variables outside a model that its forwards and hooks may change: globals and attributes of classes.

A deep copy of the model copies closures, but shares globals and classes with the original: ``HISTORY.append``
in forward writes to the user's list, from every replica. Watch these variables while the copies run, and restore them
afterwards. Leave variables of Python and installed packages alone: many fill once, on first use.
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
from .deep_copy import belongs_to_library, is_library, library_objects, names_in

# Follow functions in variables of functions, and containers in containers, this deep.
_DEPTH = 3

# Attributes of nn.Module with functions called in forward or backward.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

_CONTAINERS = (list, dict, set, deque)
_CACHE = type(lru_cache(len))
_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, partial, _CACHE)
_ABSENT = object()


@dataclass(frozen=True)
class Variable:
    """A variable outside the model: name, first value, getter, setter, and whether to report a change of it."""

    name: str
    value: object
    get: Callable[[], object]
    set: Callable[[Any], object]
    reported: bool = True


class OuterVariables:
    """The variables, classes and ``lru_cache`` functions outside a model that its functions reach.

    :meth:`restore` resets each to its value at :meth:`keep`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._variables, self._caches = list[Variable](), list[Any]()
        self._classes: dict[type, None] = {}
        self._visited: dict[int, object] = {}
        self._named: set[tuple[int, str]] = set()
        self._undo: list[Callable[[], object]] = []
        for function in _functions_of(model):
            self._follow(function, _DEPTH)

    def keep(self, others: Iterable[object] = ()) -> None:
        """Remember the contents of the variables, and of ``others``, for :meth:`restore`."""
        self._undo += [partial(one.set, one.value) for one in self._variables]
        self._undo += [partial(_refill_class, kind, _class_data(kind)) for kind in self._classes]
        self._undo += [partial(_clear_cache, cache, cache.cache_info().currsize) for cache in self._caches]
        shared = [value for kind in self._classes for value in _class_data(kind).values()]
        if values := [*(one.value for one in self._variables), *shared, *others]:
            library = library_objects()
            for value in values:
                self._undo += _undo_steps(value, library, _DEPTH)

    def values(self) -> dict[str, list[object]]:
        """Return the current values by name of the variables whose changes are reported."""
        found: dict[str, list[object]] = {}
        for one in self._variables:
            if one.reported:
                found.setdefault(one.name, []).append(one.get())
        for kind in self._classes:
            # Dicts of classes are caches, most likely, except those of autograd Functions.
            every = issubclass(kind, torch.autograd.Function)
            for name, value in _class_data(kind).items():
                if every or not isinstance(value, dict):
                    found.setdefault(f"{kind.__name__}.{name}", []).append(value)
        return found

    def select_function_names(self, names: list[str]) -> list[str]:
        """Return the ``names`` that belong to classes of autograd Functions."""
        own = {kind.__name__ for kind in self._classes if issubclass(kind, torch.autograd.Function)}
        return [name for name in names if name.partition(".")[0] in own]

    def restore(self) -> None:
        """Restore the value of every variable, and the contents of every object in one."""
        with ExitStack() as stack:  # runs all steps even if one fails
            for undo in self._undo:
                stack.callback(undo)

    def _follow(self, function: Any, depth: int) -> None:
        """Collect the variables that ``function``, a function or class, reaches."""
        if id(function) in self._visited or depth <= 0:
            return
        self._visited[id(function)] = function
        if isinstance(function, partial):
            for part in (function.func, *function.args, *function.keywords.values()):
                self._follow(part, depth)
        elif isinstance(function, (MethodType, BuiltinMethodType)):
            owner = function.__self__
            if not isinstance(owner, nn.Module) and _has_contents(owner):
                self._variables.append(Variable(type(owner).__name__, owner, lambda: owner, id))
            if isinstance(function, MethodType):
                self._follow(function.__func__, depth)
        elif isinstance(function, _CACHE):
            self._caches.append(function)
            self._follow(function.__wrapped__, depth)
        elif isinstance(function, type) and not is_library(function):
            self._classes[function] = None
            for value in vars(function).values():
                self._follow(getattr(value, "__func__", getattr(value, "fget", value)), depth)
        elif isinstance(function, FunctionType) and not belongs_to_library(function):
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                with suppress(ValueError):  # not assigned yet
                    inside: object = cell.cell_contents
                    if isinstance(inside, (*_FUNCTIONS, type)):
                        self._follow(inside, depth - 1)
                    elif isinstance(inside, (int, float, str, tuple, Tensor)) or _has_contents(inside):
                        get, put = (partial(do, cell, "cell_contents") for do in (getattr, setattr))
                        self._variables.append(Variable(name, inside, get, put))
            self._collect_globals(function.__globals__, names_in(function.__code__), depth)

    def _collect_globals(self, space: dict[str, Any], names: Iterable[str], depth: int) -> None:
        module = sys.modules.get(str(space.get("__name__")))
        if depth <= 0 or (module is not None and is_library(module)):
            return
        for name in names:
            value = space.get(name, _ABSENT)
            if isinstance(value, ModuleType):
                self._collect_globals(vars(value), names, depth - 1)
            elif isinstance(value, (*_FUNCTIONS, type)):
                self._follow(
                    value if isinstance(value, partial) or not is_library(value) else None, depth - 1
                )
            elif not name.startswith("__") and (id(space), name) not in self._named:
                self._named.add((id(space), name))
                # Don't report dicts: a global dict is a cache, most likely, and replicas may fill it.
                reported = isinstance(value, (list, set, deque, int, float)) and not isinstance(value, bool)
                put = partial(space.pop if value is _ABSENT else space.__setitem__, name)
                self._variables.append(
                    Variable(name, value, partial(space.get, name, _ABSENT), put, reported)
                )


def _functions_of(model: nn.Module) -> Iterator[Any]:
    """Yield hooks, classes and attributes of modules: any function that forward or backward may call."""
    kinds: dict[type, None] = {}
    for module in model.modules():
        for hooks in _HOOKS:
            yield from getattr(module, hooks, {}).values()
        kinds |= dict.fromkeys(type(module).__mro__)
    yield from kinds
    yield from (value for _, value in attributes_of(model))


def _class_data(kind: type) -> dict[str, Any]:
    """Return the attributes of a class other than functions, descriptors and Python's own."""
    own = {name: value for name, value in vars(kind).items() if not name.startswith(("__", "_abc_"))}
    return {name: one for name, one in own.items() if not callable(one) and not hasattr(type(one), "__get__")}


def _has_contents(value: object) -> bool:
    """Return whether ``value`` is a built-in container, or an object with attributes whose class is no library's."""
    kind = type(value)
    if isinstance(value, (*_CONTAINERS, SimpleNamespace)):
        return kind.__module__ in ("builtins", "collections", "types") or not is_library(kind)
    return not is_library(kind) and not isinstance(value, (nn.Module, type)) and bool(items_of(value))


def _undo_steps(
    value: Any, library: set[int], depth: int, known: dict[int, object] | None = None
) -> Iterator[Callable[[], object]]:
    """Yield functions that restore the contents of ``value``: containers, objects, tensors, random generators.

    Skip objects whose ids are in ``library`` or ``known``.
    """
    known = {} if known is None else known
    if id(value) in known or id(value) in library or depth <= 0:
        return
    known[id(value)] = value
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if plain and not (value.is_meta or value.is_inference()):
            yield partial(setattr, value, "data", data := value.data)
            yield partial(data.copy_, data.clone())
            if value.is_leaf:
                yield partial(setattr, value, "grad", value.grad)
                yield from _undo_steps(value.grad, library, depth, known)
    elif isinstance(value, nn.Module):
        yield partial(_refill, vars(value), pairs_in(vars(value)))
        for held in vars(value).values():
            yield from _undo_steps(held, library, _DEPTH, known)
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
    elif _has_contents(value) or isinstance(value, tuple):
        for inside in (value, getattr(value, "__dict__", None)):
            if isinstance(inside, _CONTAINERS):
                yield partial(_refill, inside, pairs_in(inside))
        for name in slots_of(value):
            yield partial(object.__setattr__, value, name, getattr(value, name))
        for _, held in items_of(value):
            yield from _undo_steps(held, library, depth - 1, known)


def _refill(container: Any, pairs: list[tuple[Any, Any]]) -> None:
    """Restore the items of a container if they changed, using only methods of the built-in class."""
    if _ids(pairs_in(container)) == _ids(pairs):
        return
    base: Any = base_of(container)
    # Build the contents, which may fail, before emptying the container.
    contents = dict(pairs) if issubclass(base, dict) else base(item for _, item in pairs)
    base.clear(container)
    if base is OrderedDict:  # OrderedDict.update would call __setitem__ of a subclass
        for key, item in pairs:
            base.__setitem__(container, key, item)
    else:
        (base.extend if base in (list, deque) else base.update)(container, contents)


def _ids(pairs: list[tuple[Any, Any]]) -> list[tuple[int, int]]:
    return [(key if type(key) is int else id(key), id(item)) for key, item in pairs]


def _refill_class(kind: type, inside: dict[str, Any]) -> None:
    for name in _class_data(kind).keys() - inside.keys():
        type.__delattr__(kind, name)
    for name, value in inside.items():
        if vars(kind).get(name) is not value:
            type.__setattr__(kind, name, value)


def _clear_cache(cache: Any, entries: int) -> None:
    """Clear an ``lru_cache`` that grew and holds tensors: the GPUs of these tensors end with the check-up."""
    if cache.cache_info().currsize != entries:
        held = (one for result in gc.get_referents(cache) for _, one in everything_in(result, "", _DEPTH))
        if any(isinstance(one, Tensor) for one in held):
            cache.cache_clear()
