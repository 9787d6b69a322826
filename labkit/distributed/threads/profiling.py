"""PyTorch's profiler in ranks: it is one for a process, so one rank at a time has it, and the others get nothing.

C++ keeps one session (torch/csrc/autograd/profiler_kineto.cpp); a second thread that begins and ends its own in
between ends the process by a segmentation fault.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.autograd import profiler

from ...base.language import say
from ...base.patches import Patch
from ..rank.rank import Rank, here


class Nothing:
    """The result of a profile that another rank's has kept from beginning: no events."""

    def __bool__(self) -> bool:
        return False

    def events(self) -> list[Any]:
        return []

    experimental_event_tree = events

    def save(self, path: str) -> None:
        Path(path).write_text('{"traceEvents": []}', "utf-8")


def patches() -> Iterator[Patch]:
    """Whose session it is, and what the others are told."""
    theirs: Any = profiler  # which has them from C
    begin: Callable[..., Any] = theirs._prepare_profiler
    enable: Callable[..., Any] = theirs._enable_profiler
    disable: Callable[..., Any] = theirs._disable_profiler
    whose: list[tuple[Rank | None, int]] = []

    def me() -> tuple[Rank | None, int]:
        return here.rank, threading.get_ident()

    def mine() -> bool:
        return bool(whose) and whose[0] == me()

    def prepare(*args: Any, **options: Any) -> None:
        if not whose:
            whose.append(me())
        if mine():
            begin(*args, **options)
        elif here.rank is not None and whose[0][0] is not None:
            has, asks = whose[0][0].name, here.rank.name
            warnings.warn(
                say(
                    en=f"{asks} profiles nothing: {has} has PyTorch's profiler, which is one for the process that "
                    "the ranks share. Profile one rank, or run them with --processes",
                    zh=f"{asks} 的分析结果为空：PyTorch 的 profiler 每个进程只有一个，现在由 {has} 占用，"
                    "而各 rank 同在一个进程里。"
                    "请只分析一个 rank，或者加 --processes 运行",
                ),
                stacklevel=4,
            )

    def start(*args: Any, **options: Any) -> None:
        if not whose:  # emit_nvtx prepares nothing
            whose.append(me())
        if mine():
            enable(*args, **options)

    def stop() -> Any:
        if not mine():
            return Nothing()
        whose.clear()
        return disable()

    yield Patch(profiler, "_prepare_profiler", prepare)
    yield Patch(profiler, "_enable_profiler", start)
    yield Patch(profiler, "_disable_profiler", stop)
