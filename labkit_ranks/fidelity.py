"""A part of the documentation's table: which parts of torch.distributed are simulated, how, and which refuse.

The rows stand in ``fidelity.txt``; in ``docs/simulated.md`` they stand below what is said of the machine.
``python -m labkit_ranks`` prints both.
"""

from __future__ import annotations

from simgpu.fidelity import ABSENT, APPROXIMATED, FAITHFUL, format_names, parts, patched_names

from .threads.thread_patches import patches
from .threads.world import World

MEASURED = "measured"
PARTS = parts(__file__)


def table() -> str:
    """The part as Markdown."""
    lines = ["", "## Ranks: what of torch.distributed is simulated", "", "| | | |", "| --- | --- | --- |"]
    for how in (FAITHFUL, APPROXIMATED, ABSENT):
        lines += [f"| **{how}** | {what} | {note} |" for what, found, note in PARTS if found == how]
    lines += ["", "What is changed besides while ranks are there, and taken back with them:", ""]
    with World(1):
        lines += [
            f"- `{owner}`: {format_names(names)}" for owner, names in patched_names(patches(bool)).items()
        ]
    lines += ["", "## How PyTorch's own tests fare", ""]
    lines += [f"- **{what}**: {note}" for what, found, note in PARTS if found == MEASURED]
    return "\n".join(lines) + "\n"
