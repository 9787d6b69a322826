"""Layouts of a script: the number of ranks and the script's arguments."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer, plural

# Arguments that name a degree of parallelism: the number of ranks is their product. Experts share these ranks.
_DEGREES = "dp ddp fsdp tp pp cp sp dp_size tp_size pp_size cp_size dp_shard dp_replicate".split()
_EXPERTS = "ep ep_size".split()


class RunLayout(NamedTuple):
    """``ranks`` ranks that run the script with ``arguments``."""

    ranks: int
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([say(en=plural(self.ranks, "rank"), zh=f"{self.ranks} 个 rank"), *self.arguments])


def read_layouts(wanted: Sequence[int | str], ranks: Sequence[int] = ()) -> list[RunLayout]:
    """Return the layouts that ``wanted`` describes: numbers of ranks, or arguments as on a command line.

    ranks   the number of ranks of each; one for all; several for one line of arguments. Arguments may contain
            ``--nproc-per-node N``. Without either, the degrees among them (``--tp 2 --pp 2``) are multiplied.
    """
    lines = [RunLayout(one) if isinstance(one, int) else _read(one) for one in wanted or ("",)]
    lines *= len(ranks) if len(lines) == 1 and ranks else 1
    numbers = [*ranks] * len(lines) if len(ranks) == 1 else ranks or [one.ranks for one in lines]
    if len(numbers) != len(lines):
        en = f"{len(ranks)} numbers of ranks for {len(lines)} layouts: give one, or one for each"
        raise wrong(
            en=en, zh=f"{len(lines)} 种布局，却给了 {len(ranks)} 个 rank 数：给一个，或者每种布局给一个"
        )
    if len(lines) < 2:
        en = "parity compares at least two layouts: labkit parity --nproc-per-node 1,2 train.py"
        raise wrong(en=en, zh="至少要有两种布局才能比较：labkit parity --nproc-per-node 1,2 train.py")
    counts = (integer("ranks", number, 1, MOST_GPUS) for number in numbers)
    return [RunLayout(count, line.arguments) for count, line in zip(counts, lines, strict=True)]


def _read(text: str) -> RunLayout:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc-per-node", "--nproc_per_node", "--nproc", type=int)
    own, arguments = parser.parse_known_args(shlex.split(text))
    for name in (*_DEGREES, *_EXPERTS):
        flags = {f"--{name}", f"--{name.replace('_', '-')}"}
        degree: Any = {
            "nargs": "?",
            "const": 1,
            "default": 1,
            "type": lambda text: int(text) if text.isdecimal() else 1,
        }
        parser.add_argument(*flags, dest=name, **degree)
    found = vars(parser.parse_known_args(arguments)[0])
    ranks, experts = math.prod(found[name] for name in _DEGREES), max(found[name] for name in _EXPERTS)
    product = ranks if ranks % experts == 0 else ranks * experts
    return RunLayout(own.nproc_per_node or product, tuple(arguments))
