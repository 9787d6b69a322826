"""The table of the documentation: the parts of CUDA that are faithful here, approximated, and absent.

The rows stand in ``fidelity.txt``. ``python -m simgpu`` prints the table; ``docs/simulated.md`` is that print,
and what ``labkit_ranks`` has to say of ranks (:mod:`labkit_ranks.fidelity`). The functions of ``torch._C``
are listed from the code that answers them and from torch.cuda's own sources, what is changed from the patches.
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
    """The rows of the table beside the module with the file ``of``: what, how, and a sentence on it."""
    return tuple((what, how, note) for how, what, note in rows_beside(of))


PARTS = parts(__file__)


def provided_functions() -> list[str]:
    """The functions of ``torch._C`` that the machine answers."""
    return sorted(functions_of(Machine(1)))


def missing_functions() -> list[str]:
    """The CUDA functions of ``torch._C`` that torch.cuda's sources mention and the machine does not answer."""
    folder = Path(torch.cuda.__file__).parent
    text = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    return sorted(set(re.findall(r"_C\.(_cuda_\w+|_nccl_\w+)", text)) - set(provided_functions()))


def table() -> str:
    """The table as Markdown."""
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
    """The name of a module, a class, or the class of a single object."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", None) or owner_name(type(owner))


def patched_names(rows: Iterable[Patch]) -> dict[str, list[str]]:
    """The modules and classes outside ``torch._C`` that ``rows`` change, each with the names."""
    found: dict[str, list[str]] = {}
    for owner, name, _ in rows:
        if name == "__torch_dispatch__":  # of whichever modules are loaded
            found["every class of tensors or modes that has it"] = [name]
            continue
        where = owner_name(owner)
        if where.startswith("torch.distributed.tensor."):  # if it is loaded: table.STAYS says it
            continue
        found.setdefault(where, []).append(name)
    return {owner: sorted(names) for owner, names in sorted(found.items()) if owner != "torch._C"}


def format_names(names: list[str]) -> str:
    """Names as Markdown."""
    return ", ".join(f"`{name}`" for name in names)
