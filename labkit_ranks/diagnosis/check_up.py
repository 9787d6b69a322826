"""Run a distributed script on simulated ranks, observe each rank, and turn the records into findings."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from labkit.base.language import say
from labkit.base.numbers import MOST_GPUS, integer, plural
from labkit_diagnose.result import SEVERITIES, Diagnosis, Finding

from ..rank.system_calls import RankExit
from ..threads.world import RanksFailed, World
from . import one_gpu
from .failures import describe_error
from .findings import describe_comparisons, find_faults, find_node_faults, reasons_not_compared
from .kinds import PHRASES
from .observer import Observer
from .records import STEPS, RankRecord

if TYPE_CHECKING:
    from ..rank.rank import Rank


@dataclass(frozen=True, repr=False)
class RanksDiagnosis(Diagnosis):
    """The result of :func:`diagnose_ranks`; as a bare last expression of a cell it shows itself.

    model   the name of the script, run by ``ranks`` ranks.
    """

    ranks: int = 0

    @property
    def judged(self) -> bool:
        """Whether the check-up compared or found anything."""
        return bool(self.compared or self.findings)

    @property
    def ok(self) -> bool:
        """Whether the check-up compared something and found neither an error nor a warning."""
        return bool(self.compared) and all(finding.severity == "note" for finding in self.findings)

    def summary(self) -> str:
        return super().summary() if self.judged else self._subject() + PHRASES["not_judged"]()

    def _comparisons(self) -> list[tuple[str, tuple[str, ...]]]:
        title = say(en="What is not looked at:", zh="不检查的内容：")
        return super()._comparisons() + [(title, (PHRASES["left_out"](),))] * (self.ok or not self.judged)

    @property
    def gpus(self) -> int:
        return self.ranks

    def _facts(self) -> dict[str, object]:
        return {
            "script": self.model,
            "ranks": self.ranks,
            "ok": self.ok,
            "judged": self.judged,
            "findings": [asdict(finding) for finding in self.findings],
            "compared": list(self.compared),
            "uncompared": list(self.uncompared),
            "not_looked_at": PHRASES["left_out"](),
        }

    def _subject(self) -> str:
        return say(en=f"{self.model} on {self.ranks} ranks: ", zh=f"{self.model}，{self.ranks} 个 rank：")


def diagnose_ranks(
    script: str | os.PathLike[str] | Callable[[Rank], Any],
    ranks: int,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    memory: str | int | None = "16 TiB",
    nodes: int = 1,
    gpu_model: str | None = None,
    ends: Callable[[World], object] = lambda world: None,
) -> RanksDiagnosis:
    """Find what is wrong with a script for ``torchrun``, run on ``ranks`` simulated GPUs.

    Run the script to its end or its error, and observe which rows each rank reads, how much each row counts in the
    gradients, when gradients are reduced, whether replicas stay equal, and what ranks draw, save and load. Then run the
    first steps again without output: on several nodes; and, if nothing was found, on one GPU with the batches of all
    ranks, to name the first tensor that differs.

    script      the path of a script, or with ``module`` the name of a module, as in ``python -m``, with its
                ``arguments``; or a function that takes a :class:`Rank`.
    memory      of each GPU; ``gpu_model`` names the GPU that torch reports; ``nodes`` is the number of computers.
    ends        is called with the world at the end of the first run, before its ranks are closed.
    """
    ranks = integer("ranks", ranks, 2, MOST_GPUS)
    program: Callable[[Rank], Any]
    if callable(script):
        program, name = script, getattr(script, "__name__", "?")
    else:
        from ..torchrun.script import RankProgram

        program = RankProgram(os.fspath(script), arguments, module)
        program.check_exists()
        name = program.name
    gpus: dict[str, Any] = {"memory": memory, "gpu_model": gpu_model}
    records, failure = _run(name, program, ranks, gpus, nodes=nodes, ends=ends)
    found: list[Finding] = find_faults(records, failure)
    looked, missed = describe_comparisons(records), reasons_not_compared(records)
    if failure is None and nodes == 1:
        several = next(number for number in range(2, ranks + 1) if ranks % number == 0)
        _, other = _run(name, program, ranks, gpus, nodes=several, enough=1)
        found += find_node_faults(several, other[1]) if other is not None else ()
    # A reshape that works on one GPU fails here because a rank's piece is no whole number of heads.
    reshapes = r"invalid for input of size|unflatten|split_with_sizes|divide axis"
    cut = failure is not None and re.search(reshapes, str(failure[1]))
    compare = not found and any(one.seen for one in records)
    if compare or (cut and [one.name for one in found] == ["script_fails"]):
        (one,), alone = _run(name, program, 1, gpus, enough=STEPS, like=records)
        if failure is not None:
            lost = one_gpu.find_cut_remainder(records, one, *failure) if alone is None else None
            found = [lost] if lost is not None else found
        elif alone is not None:
            missed.append(PHRASES["not_compared.fails"](problem=describe_error(alone[1])))
        else:
            more, line, why = one_gpu.compare_with_one_gpu(records, one)
            found, looked, missed = found + more, looked + line, missed + why
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    lines = {"compared": tuple(looked), "uncompared": () if found else tuple(missed)}
    return RanksDiagnosis(name, None, tuple(found), **lines, ranks=ranks)  # type: ignore[arg-type]


def _run(
    name: str,
    program: Callable[[Rank], Any],
    ranks: int,
    gpus: Mapping[str, Any],
    *,
    nodes: int = 1,
    enough: int = 0,
    like: Sequence[RankRecord] = (),
    ends: Callable[[World], object] = lambda world: None,
) -> tuple[list[RankRecord], tuple[int, BaseException] | None]:
    """Run the script once; return the ranks' records, and the rank and error that ended the run (None if none did).

    enough   optimizer steps after which the run ends; such a run prints nothing.
    """
    text = say(en=f"{name} runs on {plural(ranks, 'rank')}", zh=f"{name} 在 {ranks} 个 rank 上运行")
    logging.getLogger(__name__).info(text)
    quiet = io.StringIO()
    with (
        redirect_stdout(quiet) if enough else nullcontext(),
        redirect_stderr(quiet) if enough else nullcontext(),
        World(ranks, nodes=nodes, **gpus) as world,
        Observer(ranks, enough, like) as observer,
    ):
        try:
            world.run(program, to_end=True)
            for record in observer.records:
                record.digest_shared()
        except RanksFailed as failed:
            if not enough or not isinstance(failed.error, RankExit):
                return observer.records, (failed.rank, failed.error)
        finally:
            ends(world)
    return observer.records, None
