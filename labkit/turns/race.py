"""Without a machine nobody takes turns: functions race in threads, as replicas do on real GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def run_together(
    names: Sequence[str],
    functions: Sequence[Callable[[], Any]],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Any]:
    """The results of ``functions``, each called in a thread of its own, within ``context()``.

    They race, as on real GPUs. A simulated machine answers this call with a :class:`.baton.Baton`. The first that
    raises is raised here, when all have ended.
    """
    results: list[Any] = [None] * len(functions)
    failures: dict[int, BaseException] = {}

    def call(at: int) -> None:
        try:
            with context():
                results[at] = functions[at]()
        except BaseException as error:
            failures[at] = error

    threads = [threading.Thread(target=call, args=(at,), name=name) for at, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        try:
            raise failures[min(failures)]
        finally:
            failures.clear()  # their tracebacks hold this frame
    return results
