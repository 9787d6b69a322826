"""Learn, debug and teach multi-GPU data parallelism in PyTorch, on any machine.

The public names stand in ``__init__.pyi``, once for type checkers and for :func:`__getattr__`. Each is loaded when it
is first used, so that ``import labkit`` costs next to nothing.
"""

import sys
from importlib import import_module

from .base import display
from .base.lazy_names import LazyNames

__version__ = "0.1.0"

# The functions that every process which is to see a machine calls once torch is there (simgpu/children).
_ENTRIES = ("simgpu:inherit", "labkit_ranks.processes.process_patches:inherit")

_names = LazyNames(__name__, __file__.removesuffix(".py") + ".pyi")


def __getattr__(name: str) -> object:
    if name == "__all__":
        return ["__version__", *_names.modules()]
    try:
        return _names(name)
    except ModuleNotFoundError as error:
        from .base.extras import explain_missing

        raise explain_missing(error) from None


def __dir__() -> list[str]:
    return sorted(["__version__", *_names.modules()])


def load_ipython_extension(shell: object) -> None:
    """``%load_ext labkit``: the magic ``%%ranks``. In a notebook ``import labkit`` does it, too."""
    import_module("labkit_ranks.notebook.magic").register_magic(shell)


# Load the pictures only when a notebook first shows one.
display.svg_of = lambda data: import_module(".view.draw", __name__).svg_of(data)

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
