"""Warnings name the line of the user's program that led to them, and not the machine's line that called torch.

C++ warns at the frame of Python that called it, torch's Python often at its caller: both can be the machine's. Such a
warning is told again for the frame above, by whose module and line filters decide whether it is seen, and how often.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from ...base import ours
from ..state.gpu import TheMachine
from ..state.in_use import replaces

# Files of torch whose frames stand between the machine and its caller.
_BETWEEN = ours.torch_files(
    "_compile.py", "_dynamo/eval_frame.py", "_ops.py", "overrides.py", "utils/_python_dispatch.py"
)


@replaces(warnings, "_showwarnmsg")
def _show(machine: TheMachine, show: Callable[..., None], told: warnings.WarningMessage) -> None:
    """Python calls this for a warning that the filters have let pass."""
    if not ours.is_hidden_file(told.filename):
        show(told)
        return
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename != told.filename:
        frame = frame.f_back
    frame.f_globals.pop("__warningregistry__", None)  # or the next would be taken for this one
    while frame.f_back is not None and (
        ours.is_hidden_file(frame.f_code.co_filename) or frame.f_code.co_filename in _BETWEEN
    ):
        # Of torch's Python, the function that handed its call to the modes comes again below them.
        handed_on = frame.f_code.co_name == "handle_torch_function"
        frame = frame.f_back.f_back if handed_on else frame.f_back
    seen = frame.f_globals
    warnings.warn_explicit(
        told.message, told.category, frame.f_code.co_filename, frame.f_lineno, seen.get("__name__"),
        seen.setdefault("__warningregistry__", {}), seen, told.source,
    )  # fmt: skip
