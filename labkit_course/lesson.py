"""Begin a lesson: check its parameters, and set language and GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.base.language import check_language, series, set_language, wrong
from labkit.base.texts import texts_beside
from simgpu import Machine, RealGpus, use_gpus

from .names import watch
from .parameters import checked_parameters

_TEXTS = texts_beside(__file__)
_begun: str | None = None


def current_lesson() -> str | None:
    """Return the name of the lesson that began last, such as ``"03_split"``."""
    return _begun


@dataclass(frozen=True)
class RunningLesson:
    """A running lesson, shown as a line about GPUs or ranks."""

    name: str
    machine: Machine | RealGpus
    ranks: int = 0

    def __repr__(self) -> str:
        if self.ranks:
            return _TEXTS["ranks"](ranks=self.ranks)
        count = len(self.machine.gpus)
        if not count:
            return _TEXTS["cpu"]()
        names = series(f"cuda:{gpu}" for gpu in range(count))
        if count > 4:
            names = f"cuda:0 … cuda:{count - 1}"
        if isinstance(self.machine, RealGpus):
            return _TEXTS["real"](count=count, names=names, model=torch.cuda.get_device_name(0))
        return _TEXTS["simulated"](count=count, names=names)


def begin(name: str, *, language: str, **numbers: int) -> RunningLesson:
    """Begin lesson ``name``: check its parameters, set the language, the GPUs and the seed.

    Afterwards a NameError also shows the cell that defines the name (see :mod:`.names`), and the board scores this
    lesson.

    language   "en" or "zh", as in :func:`labkit.set_language`.
    numbers    the lesson's parameters, each within its limits. ``num_gpus``: real GPUs if the computer has that
               many, or else simulated ones. ``num_ranks``: for part two, whose ``%%ranks`` cells start so many ranks,
               each on a simulated GPU; other cells see no GPU until one is simulated.

    Raises TypeError or ValueError with one line that names the parameter, before changing anything.
    """
    global _begun
    check_language(language)
    found = checked_parameters(numbers)
    if not found.keys() & {"num_gpus", "num_ranks"}:
        raise wrong(TypeError, en="num_gpus or num_ranks must be given", zh="必须给出 num_gpus 或 num_ranks")
    set_language(language)
    machine = use_gpus(found.get("num_gpus", 0))
    torch.manual_seed(0)
    _begun = name
    watch(name)
    return RunningLesson(name, machine, found.get("num_ranks", 0))
