"""Learn, debug and teach multi-GPU data parallelism in PyTorch, on any machine.

The public names stand in ``__init__.pyi``, once for type checkers and for :func:`__getattr__`. Each is loaded when it
is first used, so that ``import labkit`` costs next to nothing.
"""

import sys
from importlib import import_module

from .base import display

__version__ = "0.1.0"

# The functions that every process which is to see a machine calls once torch is there (simgpu/children).
_ENTRIES = ("simgpu:inherit", "labkit_ranks.processes.process_patches:inherit")

_module_of: dict[str, str] = {}  # public name -> its module, filled by _public


def _public() -> dict[str, str]:
    """Return the module of each public name, read from ``__init__.pyi``."""
    if not _module_of:
        with open(__file__.removesuffix(".py") + ".pyi", encoding="utf-8") as lines:
            for words in map(str.split, lines):
                if words[:1] == ["from"] and words[4:5] == ["as"]:
                    _module_of[words[3]] = words[1]
    return _module_of


def __getattr__(name: str) -> object:
    if name == "__all__":
        return ["__version__", *_public()]
    if name not in _public():
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    try:
        module = import_module(_module_of[name], __name__)
    except ModuleNotFoundError as error:
        from .base.extras import explain_missing

        raise explain_missing(error) from None
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *_public()])


def load_ipython_extension(shell: object) -> None:
    """``%load_ext labkit``: the magic ``%%ranks``. In a notebook ``import labkit`` does it, too."""
    import_module("labkit_ranks.notebook.magic").register_magic(shell)


# Load the pictures only when a notebook first shows one.
display.svg_of = lambda data: import_module(".view.draw", __name__).svg_of(data)

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
