"""Describe a simulated machine in the environment of child processes.

``LABKIT_MACHINE`` describes the machine, ``LABKIT_ENTER`` names the functions that open it, and the folder
``bootstrap`` is first in ``PYTHONPATH``: every child's Python runs the ``sitecustomize`` there, which calls these
functions once torch is imported. So anything that passes the environment on (subprocess, a shell script, torchrun)
passes the machine on.

Imports the standard library alone: ``labkit run`` prepares the environment before torch is loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit import _ENTRIES
from labkit.base.language import wrong
from labkit.base.numbers import MOST_GPUS, integer, must
from labkit.base.units import parse_bytes

from .bootstrap import sitecustomize
from .gpu_models import with_model

FOLDER, BOOTSTRAP = sitecustomize.HERE, sitecustomize.__file__
ENTRIES = list(_ENTRIES)  # the entry points that child processes call, in order
MACHINE, PATH, ENTER, RUN = sitecustomize.MACHINE, sitecustomize.PATH, sitecustomize.ENTER, sitecustomize.RUN
WITHOUT_TORCH = sitecustomize.WITHOUT_TORCH
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class MachineDescription:
    """Description of a machine for another process.

    gpus       how many, before CUDA_VISIBLE_DEVICES hides any.
    memory     bytes of each GPU: one number for all, or a list.
    order      of replicas: None, "threads" or GPU numbers.
    heedless   the value of CUDA_VISIBLE_DEVICES that ``simulate()`` ignored. A process with another value follows
               that. None: follow any value (``labkit run``).
    model      name of the GPU model (:mod:`.gpu_models`).
    """

    gpus: int
    memory: int | list[int]
    order: str | list[int] | None = None
    heedless: str | None = None
    model: str | None = None

    def text(self) -> str:
        return json.dumps(asdict(self))

    def visible_gpus(self, environment: Mapping[str, str]) -> tuple[int, ...]:
        """Return the numbers of the GPUs that CUDA shows under ``environment``, in CUDA's order."""
        listed = environment.get(VISIBLE)
        if listed is None or listed == self.heedless:
            return tuple(range(self.gpus))
        return visible_gpus(self.gpus, listed)

    def options(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of ``Machine`` for a process with ``environment``."""
        numbers, order = self.visible_gpus(environment), self.order
        return {
            "gpus": len(numbers),
            "memory": [self.memory[k] for k in numbers] if isinstance(self.memory, list) else self.memory,
            "order": tuple(k for k in order if k < len(numbers)) if isinstance(order, list) else order,
            "gpu_model": self.model,
        }


def parse_description(text: str) -> MachineDescription:
    """Parse the text of :meth:`MachineDescription.text`."""
    return MachineDescription(**json.loads(text))


def describe_requested_machine(
    gpus: int,
    memory: str | int | None,
    order: str | Sequence[int] | None,
    model: str | None = None,
) -> MachineDescription:
    """Check the arguments of a user and describe the machine. Raises TypeError or ValueError, naming the argument."""
    gpus = integer("gpus", gpus, 1, MOST_GPUS)
    order = checked_order(order, gpus)
    size: Any = with_model(memory, model)[0]
    listed = list(order) if isinstance(order, tuple) else order
    return MachineDescription(gpus, parse_bytes(size), listed, model=model)


def checked_order(order: object, gpus: int) -> str | tuple[int, ...] | None:
    """Check the user's ``order`` of replicas; raises ValueError."""
    if isinstance(order, (list, tuple)):
        order = tuple(order)
        if sorted(order) != list(range(gpus)):
            raise wrong(
                en=f"order must name each of the {gpus} GPUs once, got {list(order)}",
                zh=f"order 必须把 {gpus} 块 GPU 各写一次，现在是 {list(order)}",
            )
        return order
    if order is None or order == "threads":
        return order
    en, zh = "None, 'threads' or a list of GPU numbers", "是 None、'threads' 或 GPU 编号的列表"
    raise ValueError(must("order", order, en=en, zh=zh))


def visible_gpus(gpus: int, listed: str) -> tuple[int, ...]:
    """Return which of ``gpus`` GPUs ``CUDA_VISIBLE_DEVICES=listed`` shows, in its order.

    The rules of the CUDA driver (CUDA C++ Programming Guide, "CUDA Environment Variables"): an entry is a number or the
    beginning of one GPU's UUID; the first invalid entry ends the list; naming a GPU twice hides all.
    """
    numbers: list[int] = []
    for entry in map(str.strip, listed.split(",")):
        if entry.startswith("GPU-"):
            found = [k for k in range(gpus) if f"GPU-{uuid(k)}".startswith(entry)]
            number = found[0] if len(found) == 1 else gpus
        else:
            digits = entry[: len(entry) - len(entry.lstrip("0123456789"))]  # "1x" is 1, as strtol reads it
            number = int(digits) if digits else gpus
        if number >= gpus:
            break
        if number in numbers:
            return ()
        numbers.append(number)
    return tuple(numbers)


def uuid(number: int) -> str:
    """Return the invented UUID of simulated GPU ``number``."""
    return f"00000000-0000-0000-0000-{number:012x}"


def add_entry(entry: str) -> None:
    """Let the child processes call ``entry``, "module:function", before they open the machine."""
    if entry not in ENTRIES:
        ENTRIES.insert(0, entry)


def environment_with_machine(environment: Mapping[str, str], text: str) -> dict[str, str]:
    """Return ``environment`` with the machine that ``text`` describes."""
    return {
        **environment,
        MACHINE: text,
        ENTER: " ".join(ENTRIES),
        PATH: with_bootstrap(environment.get(PATH)),
    }


def with_bootstrap(path: str | None) -> str:
    """Return PYTHONPATH ``path`` with the bootstrap's folder first."""
    entries = path.split(os.pathsep) if path else []
    return os.pathsep.join([FOLDER, *(entry for entry in entries if entry != FOLDER)])


def without_bootstrap(path: str) -> str:
    """Return PYTHONPATH ``path`` without the bootstrap's folder."""
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if entry != FOLDER)
