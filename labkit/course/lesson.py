"""The start of a lesson: its parameters checked, its language and its GPUs set."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..base.language import LANGUAGES, say, set_language
from ..machine import Machine, RealGpus, use_gpus
from .ranges import in_range


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
                en=f"{count} real GPU{'s' * (count != 1)}: {names} ({torch.cuda.get_device_name(0)})",
                zh=f"{count} 块真 GPU：{names}（{torch.cuda.get_device_name(0)}）",
            )
        return say(
            en=f"{count} simulated GPU{'s' * (count != 1)}: {names}", zh=f"{count} 块模拟 GPU：{names}"
        )


def begin(name: str, *, num_gpus: int, batch_size: int, data_size: int, language: str) -> Lesson:
    """Begin lesson ``name``: check its parameters, set the language, the GPUs and the seed.

    num_gpus     0 to 64; real GPUs are used if the computer has that many, else they are simulated.
    batch_size   rows in a batch, at least 1.
    data_size    rows in the dataset, at least 1.
    language     "en" or "zh".

    Raises TypeError or ValueError with one line that names the parameter, before anything is changed.
    """
    if not isinstance(language, str) or language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(map(repr, LANGUAGES))}, got {language!r}")
    given = {"num_gpus": num_gpus, "batch_size": batch_size, "data_size": data_size}
    num_gpus, *_ = (in_range(name, value) for name, value in given.items())
    set_language(language)
    machine = use_gpus(num_gpus)
    torch.manual_seed(0)
    return Lesson(name, machine)
