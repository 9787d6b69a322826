"""Tell whose code a frame, a file or a module is: labkit's, torch's or the user's.

The package decides, so modules can move within a package.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

# Our packages: the only list. A test fails when one is missing.
PACKAGES = (
    "labkit", "simgpu", "labkit_diagnose", "labkit_ranks", "labkit_content", "labkit_course", "labkit_classroom",
    "labkit_cli",
)  # fmt: skip
HOME = Path(__file__).parents[2]  # the folder of all packages: a checkout, or site-packages
FOLDERS = tuple(str(HOME / name) + os.sep for name in PACKAGES)
# A learner reads and repairs the broken models and scripts of labkit_content: their frames and lines are the user's.
_HIDDEN = tuple(folder for folder in FOLDERS if not folder.endswith(f"labkit_content{os.sep}"))
# The engine is ordinary PyTorch and no part of the simulation: tracebacks show its frames, as they show torch's.
SHOWN = f"{FOLDERS[0]}engine{os.sep}"
# Modules that call functions of torch and of labkit: as threads, as context managers, and where torch says deprecated.
_CALLERS = ("threading", "contextlib", "typing_extensions", "warnings")


def is_our_module(name: object) -> bool:
    """Whether the module called ``name`` (a frame's ``__name__``, which can be missing) is labkit's."""
    return str(name).partition(".")[0] in PACKAGES


def is_torch_module(name: object) -> bool:
    """Whether the module called ``name`` is torch's."""
    return f"{name}.".startswith("torch.")


def is_our_file(path: str) -> bool:
    """Whether the file at ``path`` is labkit's."""
    return path.startswith(_HIDDEN)


def is_hidden_file(path: str) -> bool:
    """Whether tracebacks leave out frames of the file at ``path``: those of the simulation."""
    return path.startswith(_HIDDEN) and not path.startswith(SHOWN)


def frames_of_threads() -> dict[int, FrameType]:
    """Return each thread's current frame, by the thread's ident.

    Garbage collection is off meanwhile: up to 3.11.8, Python holds a lock here that a starting thread waits for while
    holding the interpreter's, so a thread that a collection lets run would hang
    (github.com/python/cpython/issues/106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def user_line_here() -> str:
    """Return the user's line that led here, ``"train.py:41"``; "" without one.

    A thread started by torch or labkit, such as one of DataParallel's, has no line of the user: return the main
    thread's.
    """
    frame, _ = user_frame(sys._getframe(1))
    main = threading.main_thread()
    # The main thread's own frames were searched above.
    if frame is None and threading.current_thread() is not main:
        frame, _ = user_frame(frames_of_threads().get(main.ident or 0))
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def user_frame(frame: FrameType | None) -> tuple[FrameType | None, list[CodeType]]:
    """Return the user's frame that led to ``frame``, None without one, and torch's code in between."""
    codes = []
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if is_torch_module(name):
            codes.append(frame.f_code)
        elif not is_our_module(name) and name not in _CALLERS:
            break
        frame = frame.f_back
    return frame, codes


def torch_files(*names: str) -> tuple[str, ...]:
    """Return the paths of files in torch's package (``"_dynamo/eval_frame.py"``), without importing torch."""
    spec = importlib.util.find_spec("torch")
    folder = Path(str(spec and spec.origin)).parent
    return tuple(str(folder / name) for name in names)
