"""Deep copies including functions, which ``copy.deepcopy`` shares between the original and the copy.

A shared hook would write to the user's own objects through its closure, such as ``m.features.append``. Each function in
a copy made here is a new one, whose variables hold copies, including the copy of the model itself.
"""

from __future__ import annotations

import copy
import re
import sys
from contextlib import suppress
from functools import partial
from threading import Lock, RLock
from types import BuiltinMethodType, CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from labkit.base import ours

from .attributes import base_of, everything_held, pairs_in

Value = TypeVar("Value")

# Python cannot copy locks and modules; copies share them.
_SHARED = (type(Lock()), type(RLock()), ModuleType)

# Modules whose variables do not belong to the user's model.
_LIBRARIES = (sys.stdlib_module_names - {"__main__"}) | {"torch", "numpy", *ours.PACKAGES}


def deep_copy(value: Value, known: dict[int, Any] | None = None) -> Value:
    """Return a deep copy of ``value``; ``known`` maps ids of objects to their replacements, as deepcopy's memo does."""
    memo = {} if known is None else known
    if isinstance(value, nn.Module):
        memo.update((id(one), one) for _, one in everything_held(value) if isinstance(one, _SHARED))
    with torch.no_grad():  # clones of TorchScript's parameters would have a history
        copied = copy.deepcopy(value, memo)
    if isinstance(value, nn.Module) and isinstance(copied, nn.Module):
        for one, other in zip(value.modules(), copied.modules(), strict=False):
            if isinstance(one, torch.jit.ScriptModule):
                for own, theirs in zip(one.parameters(), other.parameters(), strict=True):
                    theirs.requires_grad_(own.requires_grad)
    result: Value = _Functions(memo).rebind(copied)
    return result


def names_in(code: CodeType) -> dict[str, None]:
    """Return the names of globals and attributes in ``code`` and in the functions defined in it."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        found |= names_in(constant) if isinstance(constant, CodeType) else {}
    return found


def is_library(thing: Any) -> bool:
    """Return whether a module, function or class belongs to Python, torch, labkit or an installed package."""
    name = str((thing.__name__ if isinstance(thing, ModuleType) else thing.__module__) or "builtins")
    path = str(getattr(sys.modules.get(name), "__file__", ""))
    return name.partition(".")[0] in _LIBRARIES or bool(re.search(r"[\\/](site|dist)-packages[\\/]", path))


def library_objects() -> set[int]:
    """Return the ids of all variables of libraries' modules."""
    modules = [module for module in [*sys.modules.values()] if isinstance(module, ModuleType)]
    return {id(one) for module in modules if is_library(module) for one in [*vars(module).values()]}


def belongs_to_library(function: FunctionType) -> bool:
    """Return whether a library's module or class defines ``function``; False for one it made for the user."""
    found: Any = sys.modules.get(function.__module__ or "")
    for step in function.__qualname__.split("."):
        found = getattr(found, step, None)
    return found is function and is_library(function)


class _Functions:
    """Replace functions by copies, inside the objects that ``memo`` lists as copies."""

    def __init__(self, memo: dict[int, Any]) -> None:
        self._memo = memo
        self._copies = set(map(id, memo.values()))
        self._cells: dict[int, CellType] = {}
        self._spaces: dict[int, dict[str, Any]] = {}
        self._done: dict[
            int, Any
        ] = {}  # replacements of functions and visited containers, by id of the original

    def rebind(self, value: Any) -> Any:
        """Return the replacement of ``value``: a copied function, or ``value`` itself with functions in it replaced."""
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            function, owner = value.__func__, value.__self__
            # OuterVariables restores attributes of classes; copy only functions held by an object.
            shared = getattr(type(owner), getattr(function, "__name__", ""), None) is function
            return value if shared else MethodType(self.rebind(function), owner)
        if isinstance(value, BuiltinMethodType):
            owner = value.__self__
            same = owner is None or isinstance(owner, (type, ModuleType)) or id(owner) in self._copies
            return value if same else getattr(self._copy_or_keep(owner), value.__name__)
        if isinstance(value, partial):
            arguments = [self.rebind(item) for item in value.args]
            named = {name: self.rebind(item) for name, item in value.keywords.items()}
            return type(value)(self.rebind(value.func), *arguments, **named)
        if isinstance(value, tuple):
            items = [self.rebind(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else getattr(type(value), "_make", type(value))(items)
        if id(value) in self._copies and id(value) not in self._done:
            self._done[id(value)] = value
            for inside in (value, getattr(value, "__dict__", None)):
                if isinstance(inside, (list, dict)):
                    for key, item in pairs_in(inside):
                        if (other := self.rebind(item)) is not item:
                            base: Any = base_of(inside)
                            base.__setitem__(inside, key, other)
        return value

    def _function(self, function: FunctionType) -> FunctionType:
        if belongs_to_library(function):
            return function
        if id(function) not in self._done:
            self._done[id(function)] = function  # for functions that call themselves
            around, code = function.__globals__, function.__code__
            others: dict[str, Any] = {}
            for name in names_in(code):
                value = other = around.get(name)
                if isinstance(value, FunctionType) and not is_library(value):
                    other = self._function(value)
                elif id(value) in self._memo:
                    other = self._memo[id(value)]
                others |= {} if other is value else {name: other}
            # `super()` adds the free variable __class__, which holds no state of the model.
            outside = set(code.co_freevars) - {"__class__"}
            if not (outside or others or function.__defaults__ or function.__kwdefaults__):
                return function
            if others:  # one copy of the globals for all functions of a module, since they may write there
                around = self._spaces.setdefault(id(around), dict(around))
                around.update(others)
            fresh = [cell for cell in function.__closure__ or () if id(cell) not in self._cells]
            self._cells |= {id(cell): CellType() for cell in fresh}
            cells = tuple(self._cells[id(cell)] for cell in function.__closure__ or ())
            copied = FunctionType(code, around, function.__name__, None, cells)
            self._done[id(function)] = self._done[id(copied)] = copied
            for cell in fresh:
                with suppress(ValueError):  # not assigned yet
                    self._cells[id(cell)].cell_contents = self._copy_or_keep(cell.cell_contents)
            copied.__defaults__ = self._copy_or_keep(function.__defaults__)
            copied.__kwdefaults__ = self._copy_or_keep(function.__kwdefaults__)
            copied.__dict__.update(vars(function))
            copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
        done: FunctionType = self._done[id(function)]
        return done

    def _copy_or_keep(self, value: Any) -> Any:
        """Return a copy of ``value``, or ``value`` if Python cannot copy it. Raises TypeError for a generator."""
        trial = dict(self._memo)
        try:
            copied = copy.deepcopy(value, trial)
        except Exception:
            if isinstance(value, GeneratorType):  # its items could not be put back after a run
                raise
            return value
        self._memo.update(trial)
        self._copies.update(map(id, trial.values()))
        return self.rebind(copied)
