"""What a process owns, swapped when another rank gets the baton. (Stand-in, until the full one is merged.)"""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from .rank import Rank


class ProcessState:
    def __init__(self, rank: Rank | None) -> None:
        self.rank = rank
        self._torch = self._random = None
        self._environ: Any = None
        self._main: Any = None
        self._world: Any = None

    def leave(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._random = random.getstate()
        self._environ = os.environ._data
        self._main = sys.modules["__main__"]


    def enter(self) -> None:
        if self._torch is None:
            assert self.rank is not None
            self._environ = {**os.environ._data, **{os.environ.encodekey(k): os.environ.encodevalue(v) for k, v in self.rank.environ.items()}}
            self._main = self.rank.main
            torch.default_generator.manual_seed(self.rank.seed)
            random.seed(self.rank.seed)

        else:
            torch.default_generator.set_state(self._torch)
            random.setstate(self._random)
        os.environ._data = self._environ
        sys.modules["__main__"] = self._main

