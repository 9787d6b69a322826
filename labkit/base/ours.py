"""Whose code a frame, a file or a module is: labkit's, torch's, or else the user's.

It goes by the package, so that a room can be moved or renamed without anyone being asked about it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
FOLDER = str(Path(__file__).parents[1]) + os.sep
# The engine is ordinary PyTorch that a script calls as it calls torch.nn.parallel. It is no part of the simulation:
# tracebacks show its frames, as they show torch's.
SHOWN = f"{FOLDER}engine{os.sep}"


def is_our_module(name: object) -> bool:
    """Whether the module called ``name`` (a frame's ``__name__``, which can be missing) is labkit's."""
    return f"{name}.".startswith(f"{PACKAGE}.")


def is_torch_module(name: object) -> bool:
    """Whether the module called ``name`` is torch's."""
    return f"{name}.".startswith("torch.")


def is_our_file(path: str) -> bool:
    """Whether the file at ``path`` is labkit's."""
    return path.startswith(FOLDER)


def is_hidden_file(path: str) -> bool:
    """Whether a traceback leaves out the frames of the file at ``path``, which are the simulation's."""
    return path.startswith(FOLDER) and not path.startswith(SHOWN)


def torch_files(*names: str) -> tuple[str, ...]:
    """Where these files of torch's package lie (``"_dynamo/eval_frame.py"``). It does not import torch."""
    spec = importlib.util.find_spec("torch")
    folder = Path(str(spec and spec.origin)).parent
    return tuple(str(folder / name) for name in names)
