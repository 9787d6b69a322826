"""The start of a lesson: its parameters checked, its language and its GPUs set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from labkit.base.language import check_language, series, set_language, wrong
from labkit.base.numbers import integer, must
from labkit.base.texts import texts_beside
from simgpu import Machine, RealGpus, use_gpus

from .names import watch

_TEXTS = texts_beside(__file__)
# The parameters that lessons have besides their language, and from where to where they go. Part one has the first
# three, part two, where ranks run on GPUs of their own, the last.
LIMITS = {
    "num_gpus": (0, 64), "batch_size": (1, 1_000_000), "data_size": (1, 1_000_000), "num_ranks": (1, 64),
}  # fmt: skip

_begun: str | None = None


def begun() -> str | None:
    """The name of the lesson that began last, such as ``"03_split"``."""
    return _begun


@dataclass(frozen=True)
class Lesson:
    """A lesson that has begun. Shows the GPUs, or the ranks, that it runs on, in one line."""

    name: str
    machine: Machine | RealGpus
    ranks: int = 0

    def __repr__(self) -> str:
        if self.ranks:
            return _TEXTS["ranks",](ranks=self.ranks)
        count = len(self.machine.gpus)
        if not count:
            return _TEXTS["cpu",]()
        names = series(f"cuda:{gpu}" for gpu in range(count))
        if count > 4:
            names = f"cuda:0 … cuda:{count - 1}"
        if isinstance(self.machine, RealGpus):
            return _TEXTS["real",](count=count, names=names, model=torch.cuda.get_device_name(0))
        return _TEXTS["simulated",](count=count, names=names)


def checked_parameters(given: Mapping[str, object]) -> dict[str, int]:
    """Those of the given parameters that lessons have; TypeError or ValueError names the first that none takes."""
    return {name: integer(name, given[name], *limits) for name, limits in LIMITS.items() if name in given}


def begin(name: str, *, language: str, **numbers: int) -> Lesson:
    """Begin lesson ``name``: check its parameters, set the language, the GPUs and the seed.

    From here on a name that is not there is explained by the cell that makes it (see :mod:`.names`), and the board
    says how this lesson went.

    language   "en" or "zh" (what :func:`labkit.set_language` takes).
    numbers    the lesson's parameters, each within :data:`LIMITS`. ``num_gpus``: real GPUs are used if the computer has
               that many, else they are simulated. ``num_ranks``: a lesson of part two, whose ``%%ranks`` cells start
               as many ranks, each on a simulated GPU; other cells see no GPU until one is simulated.

    Raises TypeError or ValueError with one line that names the parameter, before anything is changed.
    """
    global _begun
    check_language(language)
    found = checked_parameters(numbers)
    if odd := numbers.keys() - LIMITS.keys():
        raise TypeError(
            must("numbers", min(odd), en=f"one of {', '.join(LIMITS)}", zh=f"是 {'、'.join(LIMITS)} 之一")
        )
    if not found.keys() & {"num_gpus", "num_ranks"}:
        raise wrong(TypeError, en="num_gpus or num_ranks must be given", zh="必须给出 num_gpus 或 num_ranks")
    set_language(language)
    machine = use_gpus(found.get("num_gpus", 0))
    torch.manual_seed(0)
    _begun = name
    watch(name)
    return Lesson(name, machine, found.get("num_ranks", 0))
