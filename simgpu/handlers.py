"""Handlers for the functions of torch that need more than the short path of :mod:`.ops.mode`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch

from labkit.base.files import rows_beside

_LISTS = dict(rows_beside(__file__))
# handler(mode, func, args, kwargs)
Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


class ByDtype(dict[torch.dtype | None, Handler]):
    """Handlers of a function by the dtype of its first tensor; other dtypes take the short path."""


# function -> its handler; None: call the function itself, because it makes no tensor and mixes no devices.
# Getters of C classes are fresh objects at every access but equal ones, so a dict finds them.
HANDLERS: dict[object, Handler | ByDtype | None] = {}


def functions_named(names: str) -> list[Any]:
    """Return torch's functions called ``names`` (``"cat Tensor.add Tensor.grad.__get__"``), skipping missing names."""
    found = (_find_function(name) for name in names.split())
    return [function for function in found if function is not None]


def functions_in_row(what: str) -> list[Any]:
    """Return the functions in the row ``what`` of ``handlers.txt``, skipping missing names."""
    return functions_named(_LISTS[what])


def _find_function(name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), torch)
    except AttributeError:
        return None  # another version of torch


def handles(*functions: object) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of ``functions``."""

    def register(handler: Handler) -> Handler:
        wrapped = [function for function in functions if isinstance(HANDLERS.get(function), partial)]
        assert not wrapped, "it has one around it"
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def wraps_handlers(*functions: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wrap the handlers of ``functions`` by the decorated function, which gets the wrapped handler first."""

    def register(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        for function in dict.fromkeys(functions):
            HANDLERS[function] = partial(wrapper, HANDLERS.get(function) or _ordinarily)
        return wrapper

    return register


def _ordinarily(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.general(func, args, kwargs)
