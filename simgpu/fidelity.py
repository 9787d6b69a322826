"""Document which parts of CUDA are faithful, approximated, and absent.

``python -m simgpu`` prints the rows of ``fidelity.txt``; ``docs/simulated.md`` adds those on ranks
(:mod:`labkit_ranks.fidelity`). The functions of ``torch._C`` are listed from the code that answers them and from
torch.cuda's sources, the changes in torch from the patches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from labkit.base.files import rows_beside
from labkit.base.patches import Patch
from labkit.turns.locks import lock_patches

from .machine import Machine
from .state.errors import NotSimulated as NotSimulated
from .state.gpu import PEAK_STEP as PEAK_STEP
from .torch_api.absent import REFUSED as REFUSED
from .torch_api.cuda import functions_of
from .torch_api.table import STAYS
from .torch_api.table import table as patches

FAITHFUL, APPROXIMATED, ABSENT = "faithful", "approximated", "absent"


def parts(of: str) -> tuple[tuple[str, str, str], ...]:
    """Return the rows of the table beside the file ``of``: what, how, and a sentence."""
    return tuple((what, how, note) for how, what, note in rows_beside(of))


PARTS = parts(__file__)


def provided_functions() -> list[str]:
    """Return the names of the functions of ``torch._C`` that the machine answers."""
    return sorted(functions_of(Machine(1)))


def missing_functions() -> list[str]:
    """Return the CUDA functions of ``torch._C`` that torch.cuda's sources mention and the machine lacks."""
    folder = Path(torch.cuda.__file__).parent
    text = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    return sorted(set(re.findall(r"_C\.(_cuda_\w+|_nccl_\w+)", text)) - set(provided_functions()))


def table() -> str:
    """Return the table as Markdown."""
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
        "## Functions of `torch._C` that are answered",
        format_names(provided_functions()),
        "## Functions of `torch._C` that torch.cuda uses and that raise an error",
        format_names(missing_functions()),
        "## What is changed while a machine is in use, besides `torch._C`",
        _changes(patches(Machine(1))),
        "Only during a data-parallel call, for replicas that wait for each other:",
        _changes(lock_patches()),
        "All of it is taken back. What stays for the process:",
        "\n".join(f"- {what}: {why}" for what, why in STAYS),
    )
    return "\n\n".join(sections) + "\n"


def _changes(rows: Iterable[Patch]) -> str:
    return "\n".join(f"- `{owner}`: {format_names(names)}" for owner, names in patched_names(rows).items())


def owner_name(owner: Any) -> str:
    """Return the name of a module, of a class, or of an object's class."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", None) or owner_name(type(owner))


def patched_names(rows: Iterable[Patch]) -> dict[str, list[str]]:
    """Return the patched names of each module and class outside ``torch._C``."""
    found: dict[str, list[str]] = {}
    for owner, name, _ in rows:
        if name == "__torch_dispatch__":  # the classes depend on the loaded modules
            found["every class of tensors or modes that has it"] = [name]
            continue
        where = owner_name(owner)
        if where.startswith(
            "torch.distributed.tensor."
        ):  # patched only if loaded; a row of table.STAYS says so
            continue
        found.setdefault(where, []).append(name)
    return {owner: sorted(names) for owner, names in sorted(found.items()) if owner != "torch._C"}


def format_names(names: list[str]) -> str:
    """Return ``names`` as Markdown."""
    return ", ".join(f"`{name}`" for name in names)
