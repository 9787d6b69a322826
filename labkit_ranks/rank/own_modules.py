"""Which modules each rank has for itself, and which ones all ranks share.

Each rank has its own copy of the script's modules: everything imported by the run that is neither installed nor
Python's. It also has its own copy of installed packages that keep the state of a process in module globals: a few known
by name, and any that reads its rank during its import. Everything else is imported once and shared.
"""

from __future__ import annotations

import dis
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from labkit.base import ours

from .visible_gpus import WatchedEnvironment

# Installed packages that keep groups, meshes or the state of a process in module globals or classes.
PER_PROCESS = frozenset("megatron nanotron torchtitan fairscale deepspeed hydra omegaconf".split())

# Packages that read the rank, too, but stay shared: other modules import names from them. process_variables.py lists
# their state.
_SHARED = {"torch", "accelerate", "lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"}
# Variables that torchrun sets to a different value in each rank.
_NUMBERS = frozenset({b"RANK", b"LOCAL_RANK", b"GROUP_RANK", b"ROLE_RANK"})
_asking: set[str] = set()


@cache
def _shared_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    # Also the folder of torch: of several environments on the path, sysconfig knows one.
    folders |= {str(Path(str(sys.modules["torch"].__file__)).parents[1])} if "torch" in sys.modules else set()
    folders |= set(map(os.path.realpath, folders))
    return (*(folder + os.sep for folder in folders), *ours.FOLDERS)


def is_shared_file(path: str) -> bool:
    """Whether code from the file ``path`` is installed, Python's or labkit's, and so shared by all ranks."""
    if path.startswith(("<", *_shared_folders())):
        return True
    # Packages of another environment, put on the path by hand.
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return True
    return any(path.startswith(folder + os.sep) and _has_packages(folder) for folder in sys.path if folder)


@cache
def _has_packages(folder: str) -> bool:
    """Whether packages were installed into ``folder``, as by ``pip install --target``."""
    with suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


def is_installed_code(path: str) -> bool:
    """Whether the file ``path`` of a frame belongs to an installed package or Python, not to a script or cell."""
    return path.startswith("<frozen") or not path.startswith("<") and is_shared_file(path)


class RankEnvironment(WatchedEnvironment):
    """A rank's environment. It notices modules that look up the rank's number during their import.

    Only a look-up of that name counts. Code that reads all variables (``dict(os.environ)``, ``.items()``) looks them
    up one after the other, from the first.
    """

    _reading: Iterator[Any] | None = None  # the names that a reader of all variables would look up next

    def __iter__(self) -> Iterator[Any]:
        names = list(super().__iter__())
        self._reading = iter(names)
        return iter(names)

    def __getitem__(self, name: Any) -> Any:
        if self._reading is not None and next(self._reading, None) != name:
            self._reading = None
        if name in _NUMBERS and self._reading is None:
            _note_importing_package(sys._getframe(1))
        return super().__getitem__(name)


def importing_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the module or script that ``frame`` runs for; None in a thread's function."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame


def _note_importing_package(frame: FrameType | None) -> None:
    if (frame := importing_frame(frame)) is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file, known = frame.f_code.co_filename, package in sys.stdlib_module_names or package in _SHARED
        if not known and f"{os.sep}{package}" in file and is_shared_file(file):
            _asking.add(package)


def is_per_process(name: str) -> bool:
    """Whether the installed module ``name`` keeps the state of a process in its globals."""
    package = name.partition(".")[0]
    return package in PER_PROCESS or package in _asking


def is_own(name: str, module: ModuleType | None) -> bool:
    """Whether each rank has its own copy of ``module``, imported as ``name``."""
    if name.partition(".")[0] in PER_PROCESS:
        return True
    if module is None:  # None: the name cannot be imported
        return False
    path = getattr(module, "__file__", None)
    if isinstance(path, str) and path.endswith(tuple(EXTENSION_SUFFIXES)):
        return False  # a C extension exists once in a process
    if is_per_process(name):
        return True
    if path is None:
        # A folder without an __init__ only has a path. A built-in module has none, nor one made in memory.
        path = next(iter(getattr(module, "__path__", None) or ()), None)
    return isinstance(path, str) and not is_shared_file(os.path.abspath(path) + os.sep)


def assigned_globals(module: ModuleType) -> set[str]:
    """Return the names of globals that functions of ``module`` assign."""
    found: set[str] = set()
    own = [one for one in vars(module).values() if getattr(one, "__module__", None) == module.__name__]
    todo: list[Any] = [*own, *(one for kind in own if isinstance(kind, type) for one in vars(kind).values())]
    while todo:
        one = todo.pop()
        if isinstance(one, (staticmethod, classmethod)):
            one = one.__func__
        if isinstance(one, FunctionType):
            one = getattr(getattr(one, "__wrapped__", one), "__code__", None)
        if isinstance(one, CodeType):
            todo += one.co_consts
            if dis.opmap["STORE_GLOBAL"] in one.co_code[::2]:
                found |= {step.argval for step in dis.get_instructions(one) if step.opname == "STORE_GLOBAL"}
    return found & vars(module).keys()
