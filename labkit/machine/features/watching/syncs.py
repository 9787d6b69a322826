"""``torch.cuda.set_sync_debug_mode``: a warning or an error when the host waits for a GPU."""

from __future__ import annotations

import sys
import warnings
from weakref import WeakKeyDictionary

from ....base import ours
from ... import hooks
from ...state.gpu import TheMachine

# Files of torch whose frames stand between the machine and its caller.
_BETWEEN = ours.torch_files(
    "_compile.py", "_dynamo/eval_frame.py", "_ops.py", "overrides.py", "utils/_python_dispatch.py"
)


# Machine -> what it does about calls that wait; one that is not here does nothing.
_levels: WeakKeyDictionary[TheMachine, int] = WeakKeyDictionary()


def level(machine: TheMachine) -> int:
    """The answer to calls that wait: 0 nothing, 1 a warning, 2 an error."""
    return _levels.get(machine, 0)


def set_level(machine: TheMachine, value: int) -> None:
    """From now on ``machine`` answers calls that wait so."""
    _levels[machine] = value
    if tell not in hooks.waited:  # from the first wish on, since a move asks each time
        hooks.waited.add(tell)


def tell(machine: TheMachine) -> None:
    """This call waits for a GPU (``c10/cuda/CUDAFunctions.cpp``, ``warn_or_error_on_sync``)."""
    if level(machine) == 2:
        raise RuntimeError("called a synchronizing CUDA operation")
    if level(machine) == 1:
        warn("called a synchronizing CUDA operation")


def warn(text: str) -> None:
    """Warn as C++ does, at the line of Python that called it; lines of the machine do not count."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_between(path: str) -> bool:
    return ours.is_our_file(path) or path in _BETWEEN
