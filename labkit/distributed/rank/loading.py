"""A module's loading takes no time on a rank's clock: the first rank alone may do it for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from ...base.patches import Patch
from .rank import here, timed_here


def patches(loaded: Callable[[], object] = bool) -> Iterator[Patch]:
    """The row that does not count it. ``loaded()`` is called when a rank has loaded a module."""
    bootstrap: Any = sys.modules["_frozen_importlib"]
    load = bootstrap._load_unlocked

    def load_untimed(spec: Any) -> Any:
        rank = timed_here()
        if rank is None or here.loading:
            return load(spec)
        here.loading = True
        try:
            with rank.untimed():
                return load(spec)
        finally:
            here.loading = False
            loaded()

    # A traceback goes from an import straight to the module: Python leaves out the frames between, by the name of their
    # file (Python/import.c, remove_importlib_frames), and would stop at one of another file. So this one has that name.
    load_untimed.__code__ = load_untimed.__code__.replace(co_filename=load.__code__.co_filename)
    yield Patch(bootstrap, "_load_unlocked", load_untimed)
