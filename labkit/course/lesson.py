"""The start of a lesson: its parameters checked, its language and its GPUs set."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

import torch

from ..language import LANGUAGES, say, set_language
from ..machine import Machine, RealGpus, use_gpus


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
    num_gpus = _whole("num_gpus", num_gpus, 0, 64)
    _whole("batch_size", batch_size, 1, 1_000_000)
    _whole("data_size", data_size, 1, 1_000_000)
    set_language(language)
    machine = use_gpus(num_gpus)
    torch.manual_seed(0)
    return Lesson(name, machine)


def _whole(name: str, value: object, least: int, most: int) -> int:
    try:
        number = index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            say(
                en=f"{name} must be a whole number from {least} to {most}, got {value!r}",
                zh=f"{name} 必须是 {least} 到 {most} 之间的整数，现在是 {value!r}",
            )
        )
    if not least <= number <= most:
        raise ValueError(
            say(
                en=f"{name} must be from {least} to {most}, got {number}",
                zh=f"{name} 必须在 {least} 到 {most} 之间，现在是 {number}",
            )
        )
    return number
