"""Count the files that an everyday call visits: ``python -m tools.journeys``.

For each journey, print how many of our files run, and how often control enters a file from another one: a reader who
follows the call in an editor opens that many files, that many times. Each journey runs once before, so that imports do
not count.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

import labkit
from labkit.base.ours import is_our_file


class Counter:
    """Context manager that counts calls into our files in all threads."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.entries = 0

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not is_our_file(frame.f_code.co_filename):
            return
        file = frame.f_code.co_filename
        self.files.add(file)
        caller = frame.f_back
        self.entries += caller is None or caller.f_code.co_filename != file

    def __enter__(self) -> Counter:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def prepare_move() -> Callable[[], Any]:
    x = torch.ones(4, 5)
    return lambda: x.to("cuda:1")


def prepare_call(wrap: Any) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        model, x = wrap(nn.Linear(5, 2).to("cuda:0")), torch.ones(30, 5, device="cuda:0")
        return lambda: model(x)

    return prepare


def prepare_answer() -> Callable[[], Any]:
    from labkit_course import begin, check

    begin("03_split", num_gpus=8, batch_size=30, data_size=100, language="en")
    return lambda: check("03.idle", 3)


def prepare_diagnose() -> Callable[[], Any]:
    model, x = nn.Linear(5, 2), torch.ones(8, 5)
    return lambda: labkit.diagnose(model, x, gpus=2)


def count_second_run(prepare: Callable[[], Callable[[], Any]], times: int = 1) -> Counter:
    """Count the second of two runs."""
    run = prepare()
    run()
    with Counter() as counter:
        for _ in range(times):
            run()
    return counter


def count_all_reduce() -> Counter:
    """Count in the last rank to join a collective."""
    from torch import distributed as dist

    counters: list[Counter] = []
    with labkit.ranks(2) as ranks:

        def run() -> None:
            x = torch.ones(4, device="cuda")
            dist.all_reduce(x)
            if dist.get_rank() == 0:  # rank 1 has completed the first one, and so comes first to the second
                with Counter() as counter:
                    dist.all_reduce(x)
                counters.append(counter)
            else:
                dist.all_reduce(x)

        ranks.run(run)
    return counters[0]


def main() -> None:
    labkit.set_language("en")
    with labkit.simulate(gpus=8):
        journeys = {
            'x.to("cuda:1")': count_second_run(prepare_move),
            "nn.DataParallel": count_second_run(prepare_call(nn.DataParallel)),
            "labkit.DataParallel": count_second_run(prepare_call(labkit.DataParallel)),
        }
    journeys["all_reduce, the rank that completes"] = count_all_reduce()
    with contextlib.redirect_stdout(io.StringIO()):
        journeys["a lesson's answer"] = count_second_run(prepare_answer)
    journeys["diagnose(Linear)"] = count_second_run(prepare_diagnose)
    for name, counter in journeys.items():
        print(f"{name:40} {len(counter.files):4d} files {counter.entries:6d} entries")


if __name__ == "__main__":
    main()
