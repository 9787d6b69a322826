"""Features of torch on the simulated machine, one to a file or folder. An ordinary training script needs none.

Each registers itself in :mod:`..handlers` and :mod:`..hooks` when imported. The rest of the machine names none of them,
so a file can be deleted; only features that import it go with it.
"""

from importlib import import_module
from pkgutil import walk_packages


def load() -> list[str]:
    """Import all modules of this folder in alphabetical order; return the names of the loaded modules."""
    loaded = []
    for found in walk_packages(__path__, f"{__name__}."):
        try:
            import_module(found.name)
        except ImportError as error:
            if not (error.name or "").startswith(__name__):
                raise
            continue  # imports a deleted feature
        loaded.append(found.name)
    return loaded


# Importing a feature imports all, so that hooks always have the same order.
FEATURES = load()
