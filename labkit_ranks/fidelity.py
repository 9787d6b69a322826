"""Document which parts of torch.distributed are faithful, approximated, and absent.

``python -m labkit_ranks`` prints the rows of ``fidelity.txt`` below those of :mod:`simgpu.fidelity`, as in
``docs/simulated.md``.
"""

from __future__ import annotations

from simgpu.fidelity import ABSENT, APPROXIMATED, FAITHFUL, parts

MEASURED = "measured"
PARTS = parts(__file__)


def table() -> str:
    """Return the section on ranks as Markdown."""
    lines = ["", "## Ranks: what of torch.distributed is simulated", "", "| | | |", "| --- | --- | --- |"]
    for how in (FAITHFUL, APPROXIMATED, ABSENT):
        lines += [f"| **{how}** | {what} | {note} |" for what, found, note in PARTS if found == how]
    lines += ["", "## Results of PyTorch's own tests", ""]
    lines += [f"- **{what}**: {note}" for what, found, note in PARTS if found == MEASURED]
    return "\n".join(lines) + "\n"
