"""The check-up of a distributed script: it runs once on simulated ranks, is observed, and its records are judged."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.language import say
from ...base.numbers import MOST_GPUS, whole
from ...diagnosis.result import SEVERITIES, Diagnosis, Finding
from ..threads.world import RanksFailed, World
from .meaning import compared, findings
from .observer import Observer

if TYPE_CHECKING:
    from ..rank.rank import Rank


@dataclass(frozen=True, repr=False)
class RanksDiagnosis(Diagnosis):
    """The result of :func:`diagnose_ranks`; a bare last expression in a cell shows it.

    model   the script.
    ranks   how many ran it.
    """

    ranks: int = 0

    @property
    def gpus(self) -> int:
        return self.ranks

    def _facts(self) -> dict[str, object]:
        return {
            "script": self.model,
            "ranks": self.ranks,
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
            "compared": list(self.compared),
        }

    def _subject(self) -> str:
        return say(en=f"{self.model} on {self.ranks} ranks: ", zh=f"{self.model}，{self.ranks} 个 rank：")


def diagnose_ranks(
    script: str | os.PathLike[str] | Callable[[Rank], Any],
    ranks: int,
    arguments: Sequence[str] = (),
    *,
    memory: str | int = "16 TiB",
) -> RanksDiagnosis:
    """What is wrong with a script for ``torchrun``, run on ``ranks`` simulated GPUs? A :class:`RanksDiagnosis`.

    It runs once, to its end or its error, while it is looked at which rows each rank reads, how much each counts in
    the gradients, when these are reduced, and whether the replicas' weights stay alike.

    script      its path; or a function that is called with each :class:`Rank`.
    arguments   the script's own.
    """
    ranks = whole("ranks", ranks, 2, MOST_GPUS)
    program: Callable[[Rank], Any]
    if callable(script):
        program, name = script, getattr(script, "__name__", "?")
    else:
        path = Path(script)
        if not path.is_file():
            raise FileNotFoundError(say(en=f"there is no file {path}", zh=f"没有文件 {path}"))
        from ..torchrun.script import Program

        program, name = Program(str(path), arguments), path.name
    text = say(en=f"{name} runs on {ranks} ranks", zh=f"{name} 在 {ranks} 个 rank 上运行")
    logging.getLogger(__name__).info(text)
    failure: tuple[int, BaseException] | None = None
    with World(ranks, memory=memory) as world, Observer(ranks) as observer:
        try:
            world.run(program, to_end=True)
        except RanksFailed as failed:
            failure = failed.rank, failed.error
        found: list[Finding] = findings(observer.records, failure)
        looked = compared(observer.records)
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return RanksDiagnosis(name, None, tuple(found), compared=looked, ranks=ranks)  # type: ignore[arg-type]
