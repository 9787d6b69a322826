"""Features of torch on the simulated machine, one to a file or folder; an ordinary training script needs none of them.

Each registers itself as it is imported, in :mod:`..handlers` and :mod:`..hooks`, and nothing else of the machine knows
it by name: a file that is deleted leaves the rest as it is, but for the features that stand on it.
"""

from importlib import import_module
from pkgutil import walk_packages


def load() -> list[str]:
    """Import all modules that lie here, in the order of their names. Returns the names of those that were loaded."""
    loaded = []
    for found in walk_packages(__path__, f"{__name__}."):
        try:
            import_module(found.name)
        except ImportError as error:
            if not (error.name or "").startswith(__name__):
                raise
            continue  # it stands on one that is not there
        loaded.append(found.name)
    return loaded


# Once any feature is imported all are, in this order: the order of their hooks does not depend on who asks first.
FEATURES = load()
