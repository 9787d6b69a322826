"""Tracebacks as the real machine would give them: without the frames of the simulation.

For processes that see a machine by their environment (``labkit run`` and its children), whose tracebacks are the
script's own; in a notebook, where ``simulate()`` was called by name, nothing is hidden.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from types import TracebackType

_ROOT = Path(__file__).parents[1]
_OURS = (
    *(f"{_ROOT / room}{os.sep}" for room in ("machine", "trace", "launch", "cli", "distributed")),
    str(_ROOT / "base" / "turns.py"),
)
# What failed in a replica, or in a worker, stands as text in the message of the error that is raised for it.
_AS_TEXT = re.compile(
    rf'^ *File "{re.escape(str(_ROOT))}[\\/](?:machine|trace|launch|cli|distributed)[\\/].*\n(?:    .*\n)*',
    re.MULTILINE,
)


def hide_ours() -> None:
    """From now on uncaught errors of this process are shown without our frames."""
    show, show_in_thread = sys.excepthook, threading.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        without_ours(error)
        show(kind, error, error.__traceback__)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None:  # it could not be kept
            show_in_thread(args)
            return
        without_ours(args.exc_value)
        facts = args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread
        show_in_thread(threading.ExceptHookArgs(facts))

    # Both, since scripts ask whether the one is still the other.
    sys.excepthook = sys.__excepthook__ = excepthook
    threading.excepthook = in_thread


def without_ours(error: BaseException | None) -> None:
    """Take our frames out of the traceback of ``error`` and of those that it came from."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _kept(one.__traceback__)
        if one.args and isinstance(one.args[0], str):
            one.args = (_AS_TEXT.sub("", one.args[0]), *one.args[1:])
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _kept(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = None
    for frame in reversed(frames):
        if not frame.tb_frame.f_code.co_filename.startswith(_OURS):
            frame.tb_next = kept
            kept = frame
    return kept
