"""Every private name of torch that labkit rests on, and why, by the rows of ``torch_private.txt``.

What stands in nobody's documentation may change with any release. ``python -m tools.torch_private`` says which names
the torch that is installed no longer has. Rooms use the names where they need them, and a test finds every one that is
not listed. What is replaced only while a machine is in use stands in :mod:`simgpu.torch_api.table` too.
"""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import NamedTuple

import torch

from labkit.base.files import rows_beside


class Private(NamedTuple):
    """Names that belong together.

    names   as ``torch.somewhere._name, torch.elsewhere._name`` or ``torch.somewhere: _name, _other``, which are
            looked up; in words, what has no such place.
    why     what labkit does with them, and where.
    """

    names: str
    why: str

    def find_missing(self) -> str | None:
        """Return what is wrong with the first name that is gone; None if all are there."""
        owner, _, names = self.names.rpartition(": ")
        for name in names.split(", "):
            if (path := f"{owner}.{name}".removeprefix(".")).startswith("torch."):
                try:
                    resolve_name(path)
                except (AttributeError, ImportError) as error:
                    return str(error)
        return None


PRIVATE = [Private(*row) for row in rows_beside(__file__)]


def main() -> int:
    """Print the names that are gone; 1 if any is."""
    gone = {private: wrong for private in PRIVATE if (wrong := private.find_missing())}
    for private, wrong in gone.items():
        print(f"{private.names}: {wrong}\n  {private.why}")
    print(
        f"PyTorch {torch.__version__}: {len(gone)} of {len(PRIVATE)} private things that labkit rests on are gone"
    )
    return bool(gone)


if __name__ == "__main__":
    sys.exit(main())
