"""Layouts of a script: the number of ranks and the script's arguments."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer, plural

# Arguments that name a degree of parallelism, of which the number of ranks is the product; experts share these ranks.
_DEGREES = (
    "dp",
    "ddp",
    "fsdp",
    "dp_shard",
    "dp_replicate",
    "dp_size",
    "tp",
    "tp_size",
    "pp",
    "pp_size",
    "cp",
    "cp_size",
    "sp",
)
_EXPERTS = ("ep", "ep_size")
_RANKS = ("--nproc-per-node", "--nproc_per_node", "--nproc")


class RunLayout(NamedTuple):
    """``ranks`` ranks that run the script with ``arguments``."""

    ranks: int
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranks = say(en=plural(self.ranks, "rank"), zh=f"{self.ranks} 个 rank")
        return " ".join([ranks, *self.arguments])


def read_layouts(wanted: Sequence[int | str | RunLayout], ranks: Sequence[int] = ()) -> list[RunLayout]:
    """Return the layouts that ``wanted`` describes: numbers of ranks, or arguments as on a command line.

    ranks   the number of ranks of each; one for all; several for one line of arguments. Arguments can begin with
            ``--nproc-per-node N``. Without either, the degrees among the arguments (``--tp 2 --pp 2``) are multiplied.
    """
    lines = [one if isinstance(one, RunLayout) else _read(one) for one in wanted] or [_read("")]
    if ranks and len(lines) == 1:
        lines *= len(ranks)
    if len(ranks) not in (0, 1, len(lines)):
        en = f"{len(ranks)} numbers of ranks for {len(lines)} layouts: give one, or one for each"
        raise wrong(
            en=en, zh=f"{len(lines)} 种布局，却给了 {len(ranks)} 个 rank 数：给一个，或者每种布局给一个"
        )
    for at, number in enumerate([*ranks] * len(lines) if len(ranks) == 1 else ranks):
        lines[at] = lines[at]._replace(ranks=number)
    if len(lines) < 2:
        en, zh = (
            "parity compares at least two layouts, such as 1 and 2 ranks",
            "至少要有两种布局才能比较，例如 1 个和 2 个 rank",
        )
        raise wrong(en=en, zh=zh)
    return [RunLayout(integer("ranks", one.ranks, 1, MOST_GPUS), one.arguments) for one in lines]


def _read(text: int | str) -> RunLayout:
    if isinstance(text, int):
        return RunLayout(text)
    words = [
        part
        for word in shlex.split(text)
        for part in (word.split("=", 1) if word.startswith("--") else [word])
    ]
    values = dict(zip(words, words[1:], strict=False))
    for flag in _RANKS:
        if flag in values and values[flag].isdecimal():
            rest, at = (
                shlex.split(text),
                next(i for i, word in enumerate(shlex.split(text)) if word.split("=")[0] == flag),
            )
            return RunLayout(int(values[flag]), tuple(rest[:at] + rest[at + 1 + ("=" not in rest[at]) :]))
    degrees = {
        key.lstrip("-").replace("-", "_"): int(value) for key, value in values.items() if value.isdecimal()
    }
    ranks = math.prod(degrees.get(name, 1) for name in _DEGREES)
    experts = max(degrees.get(name, 1) for name in _EXPERTS)
    return RunLayout(ranks if ranks % experts == 0 else ranks * experts, tuple(shlex.split(text)))
