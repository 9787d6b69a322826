"""Document which parts of CUDA are faithful, approximated, and absent.

``python -m simgpu`` prints the rows of ``fidelity.txt``; ``docs/simulated.md`` adds those on ranks
(:mod:`labkit_ranks.fidelity`).
"""

from __future__ import annotations

from labkit.base.files import rows_beside

from .state.errors import NotSimulated as NotSimulated
from .state.gpu import PEAK_STEP as PEAK_STEP
from .torch_api.absent import REFUSED as REFUSED
from .torch_api.table import STAYS

FAITHFUL, APPROXIMATED, ABSENT = "faithful", "approximated", "absent"


def parts(of: str) -> tuple[tuple[str, str, str], ...]:
    """Return the rows of the table beside the file ``of``: what, how, and a sentence."""
    return tuple((what, how, note) for how, what, note in rows_beside(of))


PARTS = parts(__file__)


def table() -> str:
    """Return the table as Markdown, and the changes that stay."""
    rows = [
        f"| **{how}** | {what} | {note} |"
        for how in (FAITHFUL, APPROXIMATED, ABSENT)
        for what, found, note in PARTS
        if found == how
    ]
    sections = (
        "# What is simulated, and what is not",
        "Made by `python -m labkit_ranks`; of the machine alone, by `python -m simgpu`.",
        "\n".join(("| | | |", "| --- | --- | --- |", *rows)),
        "All changes of torch and Python are undone when the machine is closed, except these:",
        "\n".join(f"- {what}: {why}" for what, why in STAYS),
    )
    return "\n\n".join(sections) + "\n"
