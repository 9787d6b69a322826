"""Run a torchrun script under several layouts of simulated ranks, and say whether it is the same training.

Exit code 0: the same training in all layouts. 1: a layout differs, fails or does not train. 2: bad usage. 3: something
could not be compared; the page says what.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import redirect_stdout
from itertools import groupby

from .usage import MODULE, UsageError, announce_loading, at_least, bad_usage, split_program
from .wording import Wording

_SEPARATOR = ":::"


def _numbers(text: str) -> list[int]:
    return [at_least(1)(part) for part in text.split(",")]


WORDING = Wording(
    "parity",
    nproc_per_node={"type": _numbers, "default": []},
    steps={"type": at_least(1), "default": 10},
    m=MODULE,
    subject={"nargs": argparse.PARSER},
)


def run(options: argparse.Namespace) -> int:
    script, arguments, module = split_program(options.subject, options.module)
    lines = [list(words) for end, words in groupby(arguments, _SEPARATOR.__eq__) if not end]
    if arguments.count(_SEPARATOR) != max(len(lines) - 1, 0):
        raise UsageError(
            en=f"each {_SEPARATOR} must stand between the arguments of two layouts",
            zh=f"每个 {_SEPARATOR} 都要放在两种布局的参数之间",
        )
    announce_loading()
    from labkit_ranks.parity.parity import parity

    with redirect_stdout(sys.stderr), bad_usage(FileNotFoundError, TypeError, ValueError):
        found = parity(
            script, [shlex.join(words) for words in lines],
            ranks=options.nproc_per_node, steps=options.steps, module=module,
        )  # fmt: skip
    print(found.to_json() if options.json else found)
    return found.exit_code
