"""Public names of a package that load on first use, so that importing the package costs next to nothing."""

import sys
from importlib import import_module


class LazyNames:
    """The ``__getattr__`` of a package, for the names that ``file`` imports for type checkers.

    file   a stub, or the package's ``__init__.py``, where the imports are below ``if TYPE_CHECKING``.
    """

    def __init__(self, package: str, file: str) -> None:
        self.package, self.file = package, file
        self._modules: dict[str, str] = {}

    def modules(self) -> dict[str, str]:
        """Return the module of each name."""
        if not self._modules:
            with open(self.file, encoding="utf-8") as file:
                text = file.read().rpartition("\nif TYPE_CHECKING:\n")[2]
            text = text.replace(",\n    )", "").replace("(\n", "").replace(",\n", ",")  # names in brackets
            for words in (line.split(maxsplit=3) for line in text.splitlines()):
                if words[:1] == ["from"] and words[1] != ".":
                    self._modules |= {part.split()[-1]: words[1] for part in words[3].split(",")}
        return self._modules

    def __call__(self, name: str) -> object:
        """Import a name at its first use."""
        if name not in self.modules():
            raise AttributeError(f"module {self.package!r} has no attribute {name!r}")
        module = import_module(self.modules()[name], self.package)
        value = getattr(module, name) if hasattr(module, name) else import_module(f".{name}", module.__name__)
        setattr(sys.modules[self.package], name, value)  # later uses find it without this function
        return value
