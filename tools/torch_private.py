"""Check that torch still has the private names that labkit uses: the rows of ``torch_private.txt``, with reasons.

Undocumented names may change with any release. ``python -m tools.torch_private`` prints the names that the installed
torch lacks. A test finds every used name that is not listed. Names that are patched while a machine is in use are in
:mod:`simgpu.torch_api.table` too.
"""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import NamedTuple

import torch

from labkit.base.files import rows_beside


class Private(NamedTuple):
    """Names used for one purpose.

    names   as ``torch.somewhere._name, torch.elsewhere._name`` or ``torch.somewhere: _name, _other``, which are
            looked up; other text describes things without a path.
    why     what labkit does with them, and where.
    """

    names: str
    why: str

    def find_missing(self) -> str | None:
        """Return the error for the first missing name; None if torch has all names."""
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
    """Print the missing names; return 1 if there are any."""
    gone = {private: wrong for private in PRIVATE if (wrong := private.find_missing())}
    for private, wrong in gone.items():
        print(f"{private.names}: {wrong}\n  {private.why}")
    print(
        f"PyTorch {torch.__version__} lacks {len(gone)} of the {len(PRIVATE)} private things that labkit uses"
    )
    return bool(gone)


if __name__ == "__main__":
    sys.exit(main())
