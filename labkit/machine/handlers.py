"""The functions of torch that need more than the short path of :mod:`.ops.mode`, each with what answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

# handler(mode, func, args, kwargs)
Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


class ByDtype(dict[torch.dtype | None, Handler]):
    """The handlers of a function for some dtypes of its first tensor; with all others it is an ordinary call."""


# function -> its handler; None: it is called as it is, since nothing is made and nothing can mix.
# Getters of C classes are fresh objects at every access but equal ones, so a dict finds them.
HANDLERS: dict[object, Handler | ByDtype | None] = {}
# Names that stand in labkit's tables and not in the torch in use: a test holds this empty, name by name.
GONE: list[str] = []


def named(names: str) -> list[Any]:
    """The functions that ``names`` are in torch (``"cat Tensor.add Tensor.grad.__get__"``), those that are there."""
    found = []
    for name in names.split():
        try:
            found.append(reduce(getattr, name.split("."), torch))
        except AttributeError:
            GONE.append(name)
    return found


def handles(*functions: object) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of ``functions``."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register
