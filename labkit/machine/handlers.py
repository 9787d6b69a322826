"""The functions of torch that need more than the short path of :mod:`.ops.mode`, each with what answers it."""

from __future__ import annotations

from collections.abc import Callable

# function -> handler(mode, func, args, kwargs). Getters of C classes are fresh objects at every access
# but equal ones, so a dict finds them.
HANDLERS: dict[object, Callable] = {}


def handles(*functions: object) -> Callable:
    """Register the decorated function as the handler of ``functions`` (None entries are left out)."""

    def register(handler: Callable) -> Callable:
        HANDLERS.update((function, handler) for function in functions if function is not None)
        return handler

    return register
