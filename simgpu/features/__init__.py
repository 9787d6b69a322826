"""Features of torch on the simulated machine, one to a file or folder. An ordinary training script needs none.

Each registers itself in :mod:`..handlers` and :mod:`..hooks` when imported. The rest of the machine names none of them,
so a file can be deleted; only features that import it go with it.
"""

from importlib import import_module
from pkgutil import walk_packages


def load() -> list[str]:
    """Import all modules of this folder in the order of their names; return the names of the loaded ones."""
    loaded = []
    for found in walk_packages(__path__, f"{__name__}."):
        try:
            import_module(found.name)
        except ImportError as error:
            if not (error.name or "").startswith(__name__):
                raise
            continue  # a feature that it imports was deleted
        loaded.append(found.name)
    return loaded


# Importing one feature imports all, so that the order of their hooks is always the same.
FEATURES = load()
