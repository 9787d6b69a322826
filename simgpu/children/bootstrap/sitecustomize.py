"""Open a simulated machine in a child process, as soon as the child imports torch (see ``..children``).

Python runs this file first in every process whose environment describes a machine. Until torch is imported, each
import costs one more look; a process without torch never loads labkit. The ``sitecustomize`` hidden by this file runs
afterwards.

Any Python may find this file. So the syntax is old, labkit is imported by its folder (it need not be on that Python's
path), and no error ends the process.
"""

import atexit
import os
import sys
from importlib.machinery import PathFinder
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
MACHINE, PATH = "LABKIT_MACHINE", "PYTHONPATH"
# Entry points to call once torch is imported: ENTER in every process ("simgpu:inherit …"), RUN in this process but in
# none of its children ("module:function TEXT", for `labkit run`).
ENTER, RUN = "LABKIT_ENTER", "LABKIT_RUN"
ONCE = os.environ.pop(RUN, None)
# What to write at the end of this process if it never imports torch.
WITHOUT_TORCH = "LABKIT_WITHOUT_TORCH"
NOTE = os.environ.pop(WITHOUT_TORCH, "")


def begin() -> None:
    """Wait for torch, if the environment describes a machine."""
    if MACHINE in os.environ and not any(map(waits, sys.meta_path)):
        sys.meta_path.insert(0, Finder())


def write_note() -> None:
    if "torch" not in sys.modules:
        sys.stderr.write(NOTE + "\n")


def follow(description: str, path: str, enter: str) -> None:
    """Replace the environment's machine by `description`: a fork server's environment may be out of date."""
    known = os.environ.get(MACHINE)
    os.environ[MACHINE], os.environ[PATH], os.environ[ENTER] = description, path, enter
    if "torch" not in sys.modules:
        begin()
    elif known != description:
        open_machine()


def open_machine() -> None:
    """Open the machine described by the environment, with the labkit around this file."""
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
    """Put our package `name` into sys.modules. With `lazily`, its code runs at the first use."""
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
    """Call the entry point ``"module:function"``; skip a module that is not installed."""
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
    """Finder that lets the others find torch, and wraps the loader to open the machine afterwards."""

    # An attribute instead of the class: this file may run twice, and then defines two classes.
    waits_for_torch = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if not waits(finder) and hasattr(finder, "find_spec"):
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:  # a folder named torch has no loader
                        spec.loader = Loader(spec.loader)
                    return spec
        return None


def waits(finder: Any) -> bool:
    return hasattr(finder, "waits_for_torch")


class Loader:
    """torch's own loader, which opens the machine after the import."""

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
    """Run the ``sitecustomize`` hidden by this file."""
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    spec: Any = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if NOTE:
        atexit.register(write_note)
    begin()
    run_hidden()
elif "FOLLOWED" in globals():  # run by path, in a child of multiprocessing
    follow(*globals()["FOLLOWED"])
