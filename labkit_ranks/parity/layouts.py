"""Layouts of a script: the number of ranks and the script's arguments."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer, plural

# Arguments that name a degree of parallelism: the number of ranks is their product. Experts share these ranks.
_DEGREE = re.compile(r"(?<!\S)--(dp|ddp|fsdp|tp|pp|cp|sp|ep)(?:[-_](?:size|shard|replicate))?[ =](\d+)(?!\S)")


class RunLayout(NamedTuple):
    """``ranks`` ranks that run the script with ``arguments``."""

    ranks: int
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([say(en=plural(self.ranks, "rank"), zh=f"{self.ranks} 个 rank"), *self.arguments])


def read_layouts(wanted: Sequence[int | str], ranks: Sequence[int] = ()) -> list[RunLayout]:
    """Return the layouts that ``wanted`` describes: numbers of ranks, or arguments as on a command line.

    ranks   the number of ranks of each; one for all; several for one line of arguments. Without it, the degrees among
            the arguments (``--tp 2 --pp 2``) are multiplied.
    """
    lines = [RunLayout(one) if isinstance(one, int) else _read(one) for one in wanted or ("",)]
    numbers = [*ranks] or [one.ranks for one in lines]
    count = max(len(lines), len(numbers))
    if count < 2 or not {len(lines), len(numbers)} <= {1, count}:
        got = f"{len(lines)}, {len(ranks)}"
        en = f"parity needs two or more layouts, and one number of ranks for all or for each; got {got} of them"
        zh = f"至少要有两种布局才能比较，rank 数给一个，或者每种布局给一个；现在分别是 {got} 个"
        raise wrong(en=f"{en}: labkit parity --nproc-per-node 1,2 train.py", zh=zh)
    pairs = zip(lines * (count // len(lines)), numbers * (count // len(numbers)), strict=True)
    return [RunLayout(integer("ranks", number, 1, MOST_GPUS), line.arguments) for line, number in pairs]


def _read(text: str) -> RunLayout:
    degrees = [(name, int(number)) for name, number in _DEGREE.findall(text)]
    ranks = math.prod(number for name, number in degrees if name != "ep")
    experts = max((number for name, number in degrees if name == "ep"), default=1)
    return RunLayout(ranks if ranks % experts == 0 else ranks * experts, tuple(shlex.split(text)))
