"""The start of a lesson: its parameters checked, its language and its GPUs set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..base.language import checked_language, say, set_language
from ..base.numbers import plural, whole
from ..machine import Machine, RealGpus, use_gpus
from .names import watch

# The parameters that every lesson has, besides its language, and from where to where they go.
LIMITS = {"num_gpus": (0, 64), "batch_size": (1, 1_000_000), "data_size": (1, 1_000_000)}

_begun: str | None = None


def begun() -> str | None:
    """The name of the lesson that began last, such as ``"03_split"``."""
    return _begun


@dataclass(frozen=True)
class Lesson:
    """A lesson that has begun. Shows the GPUs it runs on, in one line."""

    name: str
    machine: Machine | RealGpus

    def __repr__(self) -> str:
        count = len(self.machine.gpus)
        if not count:
            return say(en="No GPU: everything runs on the CPU.", zh="没有 GPU：一切都在 CPU 上运行。")
        names = ", ".join(f"cuda:{gpu}" for gpu in range(count))
        if count > 4:
            names = f"cuda:0 … cuda:{count - 1}"
        if isinstance(self.machine, RealGpus):
            return say(
                en=f"{plural(count, 'real GPU')}: {names} ({torch.cuda.get_device_name(0)})",
                zh=f"{count} 块真 GPU：{names}（{torch.cuda.get_device_name(0)}）",
            )
        return say(en=f"{plural(count, 'simulated GPU')}: {names}", zh=f"{count} 块模拟 GPU：{names}")


def checked_parameters(given: Mapping[str, object]) -> dict[str, int]:
    """Those of the given parameters that every lesson has; TypeError or ValueError names the first that none takes."""
    return {name: whole(name, given[name], *limits) for name, limits in LIMITS.items() if name in given}


def begin(name: str, *, num_gpus: int, batch_size: int, data_size: int, language: str) -> Lesson:
    """Begin lesson ``name``: check its parameters, set the language, the GPUs and the seed.

    From here on a name that is not there is explained by the cell that makes it (see :mod:`.names`), and the board
    says how this lesson went.

    num_gpus     0 to 64; real GPUs are used if the computer has that many, else they are simulated.
    batch_size   rows in a batch, at least 1.
    data_size    rows in the dataset, at least 1.
    language     "en" or "zh" (what :func:`labkit.set_language` takes).

    Raises TypeError or ValueError with one line that names the parameter, before anything is changed.
    """
    global _begun
    checked_language(language)
    given = {"num_gpus": num_gpus, "batch_size": batch_size, "data_size": data_size}
    num_gpus = checked_parameters(given)["num_gpus"]
    set_language(language)
    machine = use_gpus(num_gpus)
    torch.manual_seed(0)
    _begun = name
    watch(name)
    return Lesson(name, machine)
