"""The number of visits of a rank to each line that makes collectives."""

from __future__ import annotations

from collections import Counter
from types import CodeType

import torch

from .call import CollectiveCall, format_place


class LineVisits:
    """Counts a rank's visits to each line, by kind of collective.

    A backward pass may make many collectives on one line (DDP one for each bucket, FSDP one for each module); they
    count as one visit. Autograd's number of the pass separates it from the next.
    """

    def __init__(self) -> None:
        self._times: Counter[tuple[CodeType | None, int, str]] = Counter()
        self._backward = -1  # autograd's number of the pass that is running; -1 outside of any
        self._in_backward: set[tuple[CodeType | None, int, str]] = set()

    def add(self, call: CollectiveCall) -> None:
        """Count the visit in which the rank makes ``call``, unless an earlier call has counted it."""
        line, backward = (call.code, call.line, call.kind), torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward, self._in_backward = backward, set()
        if backward == -1 or line not in self._in_backward:
            self._times[line] += 1
            self._in_backward.add(line)

    def clear(self) -> None:
        self._times.clear()

    def kinds(self) -> set[str]:
        """Return the kinds of collectives that the rank has made."""
        return {kind for _, _, kind in self._times}

    def by_place(self) -> dict[tuple[str, str], int]:
        """Return the visits of each line in the user's code: (``"train.py:12"``, kind) -> times."""
        return {
            (format_place(code, line), kind): times
            for (code, line, kind), times in self._times.items()
            if code
        }
