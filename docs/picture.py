"""Draws docs/call.svg and docs/call.zh.svg, the moving picture of the README (``make renew ARGS=printed``).

A call of ten rows on four GPUs, forward and backward: the eight moments of ``labkit.CallExplorer``, one after another.
"""

from __future__ import annotations

import sys
from pathlib import Path

from labkit.base.files import write_whole
from labkit.base.language import LANGUAGES, using
from labkit_content.pictures import call_in_motion

HERE = Path(__file__).parent


def main() -> int:
    for language, name in zip(LANGUAGES, ("call.svg", "call.zh.svg"), strict=True):
        with using(language):
            write_whole(HERE / name, call_in_motion())
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
