"""Show tracebacks as on a real machine, without the simulation's frames.

This applies to processes that inherit a machine (``labkit run`` and its children) and to ranks. A notebook that calls
``simulate()`` sees all frames, and so does everyone with ``LABKIT_TRACEBACK=full`` in the environment.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from torch import overrides

from labkit.base import ours
from labkit.base.patches import Patch, Patches

FULL = "LABKIT_TRACEBACK"
# Where torch's Python calls a function mode.
_ASKING = overrides.handle_torch_function.__code__
# Files of torch that wrap a dispatch mode's method (torch/_compile.py, disable_dynamo).
_WRAPPING = ours.torch_files("_compile.py", "_dynamo/eval_frame.py")
# torch quotes the traceback of a replica or worker in the message of the error that it raises.
_AS_TEXT = re.compile(r'^ *File "(.*)", line .*\n(?:    .*\n)*', re.MULTILINE)


def hide_labkit_frames() -> None:
    """Show uncaught errors of this process without labkit's frames from now on."""
    show, show_in_thread = sys.excepthook, threading.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        strip_labkit_frames(error)
        show(kind, error, error.__traceback__)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None:  # Python has dropped the error
            show_in_thread(args)
            return
        strip_labkit_frames(args.exc_value)
        facts = args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread
        show_in_thread(threading.ExceptHookArgs(facts))

    # Both, because scripts compare the two.
    sys.excepthook = sys.__excepthook__ = excepthook
    threading.excepthook = in_thread
    Patches(patch_printed_tracebacks).put_in()


def patch_printed_tracebacks(here: Callable[[], object] = lambda: True) -> Iterator[Patch]:
    """Hide labkit's frames from a script that prints an error itself (``print_exc``, ``logging.exception``).

    here   whether this thread is the script's.
    """

    def begin(real: Any, text: Any, kind: Any, value: Any, trace: Any, *args: Any, **kwargs: Any) -> None:
        if here() and not _shows_all_frames():
            trace = _strip_frames(trace)  # causes come here by themselves
        real(text, kind, value, trace, *args, **kwargs)

    yield Patch.wrap(traceback.TracebackException, "__init__", begin)


def _shows_all_frames() -> bool:
    return os.environ.get(FULL) == "full"


def strip_labkit_frames(error: BaseException | None) -> None:
    """Remove labkit's frames from the traceback of ``error`` and of its causes."""
    if _shows_all_frames():
        return
    visited: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in visited:
            continue
        visited.add(id(one))
        one.__traceback__ = _strip_frames(one.__traceback__)
        if one.args and isinstance(words := one.args[0], str):
            text = _AS_TEXT.sub(lambda frame: "" if ours.is_hidden_file(frame[1]) else frame[0], words)
            if text != words:  # keep the class: a KeyError shows torch's KeyErrorMessage without escapes
                one.args = (type(words)(text), *one.args[1:])
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _strip_frames(trace: TracebackType | None) -> TracebackType | None:
    return _link_frames(_drop_repeated_frames(_frames(trace)))


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _link_frames(frames: list[TracebackType]) -> TracebackType | None:
    below = None
    for frame in reversed(frames):
        frame.tb_next = below
        below = frame
    return below


def fold_frames(error: BaseException, installed: Callable[[str], bool], *, whole: bool = False) -> int:
    """Remove frames of ``installed`` files from the traceback of ``error``; return how many.

    The last frame, which raised the error, stays unless ``whole``.
    """
    frames = _frames(error.__traceback__)
    remaining = [one for one in frames if not installed(one.tb_frame.f_code.co_filename)]
    if _shows_all_frames() or not remaining:
        return 0
    if not whole and remaining[-1] is not frames[-1]:
        remaining.append(frames[-1])
    error.__traceback__ = _link_frames(remaining)
    return len(frames) - len(remaining)


def _drop_repeated_frames(frames: list[TracebackType]) -> list[TracebackType]:
    """Drop labkit's frames and their repetitions: torch calls a function again after asking a mode."""
    remaining: list[TracebackType] = []
    mode_at = 0  # number of frames before torch asked the mode
    for frame in frames:
        code = frame.tb_frame.f_code
        if ours.is_hidden_file(code.co_filename):
            while remaining and remaining[-1].tb_frame.f_code.co_filename in _WRAPPING:
                remaining.pop()
            if remaining and remaining[-1].tb_frame.f_code is _ASKING:
                remaining.pop()
                mode_at = len(remaining)
            continue
        if mode_at and code is remaining[mode_at - 1].tb_frame.f_code:  # the same function, called again
            wrapping = remaining[mode_at:]
            if _codes(remaining[max(mode_at - 1 - len(wrapping), 0) : mode_at - 1]) == _codes(wrapping):
                del remaining[mode_at - 1 :]
            mode_at = 0
        remaining.append(frame)
    return remaining


def _codes(frames: list[TracebackType]) -> list[object]:
    return [frame.tb_frame.f_code for frame in frames]
