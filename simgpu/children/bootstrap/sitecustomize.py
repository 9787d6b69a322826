"""Python itself runs this first in every process that is to see a simulated machine (see ``..children``).

Until torch is imported it costs such a process a look at each import; a process that never imports torch never loads
labkit. When torch has been imported, the machine is opened. The ``sitecustomize`` that this one hides has its turn.

Whatever Python is started finds this file: it keeps to what older ones understand, imports nothing of labkit by name
(labkit need not be on that Python's path), and keeps no process from running.
"""

import os
import sys
from importlib.machinery import PathFinder
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
MACHINE, PATH = "LABKIT_MACHINE", "PYTHONPATH"
# These name the functions that are called when torch is there: ENTER by every process ("simgpu:inherit …"), RUN
# by this one and by none of its children ("module:function TEXT", for `labkit run`).
ENTER, RUN = "LABKIT_ENTER", "LABKIT_RUN"
ONCE = os.environ.pop(RUN, None)


def begin() -> None:
    """Wait for torch, if there is a machine to be seen."""
    if MACHINE in os.environ and not any(map(waits, sys.meta_path)):
        sys.meta_path.insert(0, Finder())


def follow(told: str, path: str, enter: str) -> None:
    """See the machine that ``told`` describes, from now on: the environment of a fork server is of another time."""
    known = os.environ.get(MACHINE)
    os.environ[MACHINE], os.environ[PATH], os.environ[ENTER] = told, path, enter
    if "torch" not in sys.modules:
        begin()
    elif known != told:
        open_machine()


def open_machine() -> None:
    """Open the machine that the environment tells of, by the labkit that told it."""
    import importlib

    try:
        if "labkit" not in sys.modules:
            load("labkit")
            for name in importlib.import_module("labkit.base.ours").PACKAGES:
                load(name, lazily=True)
        for entry in os.environ.get(ENTER, "").split():
            call(entry)
        if ONCE is not None:
            entry, _, text = ONCE.partition(" ")
            call(entry, text)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"labkit: this process ({sys.executable}) sees no simulated GPU: {why}\n")


def load(name: str, lazily: bool = False) -> None:
    """Put the package `name` that stands beside this one into sys.modules; run it at its first use if `lazily`."""
    import importlib.util

    package = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), name)
    path = os.path.join(package, "__init__.py")
    if name in sys.modules or not os.path.exists(path):
        return
    spec: Any = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[package])
    if lazily:
        spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def call(entry: str, *args: str) -> None:
    """Call an entry point, ``"module:function"``; a room of labkit that is not installed has none."""
    import importlib

    name, _, function = entry.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return
    getattr(module, function)(*args)


class Finder:
    """Finds torch as the others do; its loader then opens the machine."""

    # By this it is known: this file may run twice, and its classes are not the same then.
    waits_for_torch = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if not waits(finder) and hasattr(finder, "find_spec"):
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:  # a folder without an __init__ has none, and is no torch
                        spec.loader = Loader(spec.loader)
                    return spec
        return None


def waits(finder: Any) -> bool:
    return hasattr(finder, "waits_for_torch")


class Loader:
    """torch's own loader, but for what follows the import."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not waits(finder)]
        open_machine()


def run_hidden() -> None:
    """Run the ``sitecustomize`` that is found without this one, as Python would have."""
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    spec: Any = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    begin()
    run_hidden()
elif "FOLLOWED" in globals():  # multiprocessing's child runs this file by its path
    follow(*globals()["FOLLOWED"])
