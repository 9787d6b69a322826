"""Run a learner's function on ranks for the judges of lessons 10 to 23; keep each rank's result and the calls."""

from __future__ import annotations

import io
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from labkit.base.language import say
from labkit.base.texts import Text
from labkit.base.tree import map_tensors
from labkit.trace.events import Event
from labkit.trace.recording import record
from labkit.turns import Deadlock
from labkit_course.judging import Unreadable
from labkit_diagnose.errors import short_text, user_line
from labkit_ranks.calls.faults.deadlock import Unmet
from labkit_ranks.calls.faults.mismatch import Mismatch
from labkit_ranks.rank.rank import Rank
from labkit_ranks.threads.world import RanksFailed, World
from simgpu import simulate


@dataclass(frozen=True)
class RankFailure:
    """The error of the first rank that raised, which ended the run.

    line    the place in the learner's own code: "the notebook, line 3, in ring"; "" if nowhere there.
    words   the error in one line, with its type.
    """

    rank: int
    error: BaseException
    line: str
    words: str
    ranks: int

    @property
    def hangs(self) -> bool:
        """Return whether real ranks would hang: in a deadlock, at a call never matched, or at mismatched calls."""
        return isinstance(self.error, (Deadlock, Mismatch, Unmet))


# A cell as the place of a call: a file with a number as its name, or the notebook's label. The number is left out.
_CELL = r"(?<!\w)(?:\d+\.py|Cell In\[\d+\]):(\d+) in (\w+)"


def describe_waits(failure: RankFailure, most: int = 1) -> str:
    """Describe in one line the first ``most`` waits or mismatched calls, with the place of each."""
    lines = [" ".join(line.split()) for line in str(failure.error).splitlines() if line.startswith("  rank")]
    place = say(en=r"line \1 of the cell, in \2", zh=r"单元格第 \1 行（\2）")
    return say(en="; ", zh="；").join(
        re.sub(_CELL, place, line).replace("停在 单元格", "停在单元格").replace("） 的", "）的")
        for line in lines[:most]
    )


@dataclass(frozen=True)
class RanksRun:
    """The run of a function on ranks.

    results   of each rank, in order, tensors on the CPU; [] if it failed.
    events    the ranks' collectives, sends and receives, each rank's part in each, in the order of time.
    """

    results: list[Any] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    failure: RankFailure | None = None

    def call_kinds(self, *kinds: str) -> list[str]:
        """Return the kinds of calls made by the ranks, such as ``"all_reduce"``, limited to ``kinds`` if given."""
        found = dict.fromkeys(event.name for event in self.events)
        return [kind for kind in found if not kinds or kind in kinds]

    def count(self, kind: str, rank: int = 0) -> int:
        """Return how often ``rank`` called a collective of this kind."""
        return sum(event.name == kind and event.rank == rank for event in self.events)

    def count_sent_bytes(self, rank: int = 0) -> int:
        """Return the bytes that ``rank`` sent in messages to single ranks."""
        return sum(event.nbytes for event in self.events if event.name == "send" and event.rank == rank)

    def require_success(self) -> RanksRun:
        """Return this run if no rank failed. Otherwise raise Unreadable with the place of the hang or of the error."""
        if self.failure is None:
            return self
        failure, en, zh = self.failure, "", ""
        if isinstance(failure.error, Unreadable):
            raise failure.error
        count = f"{failure.ranks} rank{'s' * (failure.ranks > 1)}"
        if failure.hangs:
            words = describe_waits(failure) or failure.words.rstrip(".。")
            raise Unreadable(
                Text(
                    f"with {count} it hangs: {words}. Does every rank make the same calls, in the same order?",
                    f"{failure.ranks} 个 rank 时卡住了：{words}。每个 rank 都按同样的次序做了同样的调用吗？",
                )
            )
        if failure.line:
            en, zh = f" ({failure.line})", f"（{failure.line}）"
        raise Unreadable(
            Text(
                en=f"with {count}, your function fails on rank {failure.rank}{en}: {failure.words}",
                zh=f"{failure.ranks} 个 rank 时，你的函数在 rank {failure.rank} 上报错{zh}：{failure.words}",
            )
        )


def on_ranks(
    function: Callable[..., Any],
    ranks: int,
    given: Sequence[Sequence[Any]] | None = None,
    *,
    nodes: int = 1,
    memory: str | int | None = None,
    initialized: bool = True,
) -> RanksRun:
    """Call ``function(*given[rank])`` on each of ``ranks`` ranks, on a new machine, and return the run.

    An open ``%%ranks`` session of the lesson is not disturbed. The process group is initialized, the rank's GPU is the
    current one, and tensors among the arguments are copied to it. Output is dropped.

    given   the arguments of each rank; None: none.
    nodes   the number of simulated computers, with equal numbers of ranks.
    memory  of each GPU.
    initialized   False: as torchrun starts a script, without a process group or a chosen GPU, arguments on the CPU.
    """

    def part(rank: Rank) -> Any:
        if initialized:
            torch.cuda.set_device(rank.local)
            dist.init_process_group("nccl", device_id=torch.device("cuda", rank.local))
        own = map_tensors(
            tuple(given[rank.number]) if given else (),
            lambda path, tensor: tensor.clone().cuda() if initialized else tensor.clone(),
        )
        result = function(*own)
        return map_tensors(result, lambda path, tensor: tensor.detach().cpu())

    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        simulate(gpus=ranks // nodes, memory=memory),
        World(ranks, nodes=nodes, memory=memory) as world,
        record() as trace,
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        results, failure = [], None
        try:
            results = world.run(part, to_end=True)
        except RanksFailed as failed:
            failure = _failure(failed.rank, failed.error, ranks)
    return RanksRun(results, [event for event in trace if event.phase in ("collective", "stuck")], failure)


# A number that no exercise sends.
_OVERWRITTEN = 54321.0


def _receive_at_wait(send_and_receive: Callable[..., Any], before: float, calls: list[Any]) -> list[Any]:
    """Send and receive, with ``before`` in the received tensors until ``wait``, as on GPUs they are not there yet.

    A tensor that is sent as well is overwritten before it is sent: on GPUs nothing says which comes first.
    """
    sent = {call.tensor.data_ptr() for call in calls if call.op is dist.isend}
    late = [call for call in calls if call.op is dist.irecv]
    into = [call.tensor for call in late]
    for call in late:
        call.tensor.fill_(_OVERWRITTEN if call.tensor.data_ptr() in sent else before)
        call.tensor = torch.empty_like(call.tensor)
    works = send_and_receive(calls)

    class Arriving:
        def wait(self, *timeout: Any) -> bool:
            for work in works:
                work.wait()
            for place, call in zip(into, late, strict=True):
                place.copy_(call.tensor)
            return True

    return [Arriving()] * len(works)


def on_ranks_with_late_messages(
    function: Callable[..., Any], ranks: int, given: Sequence[Sequence[Any]], before: float = float("nan")
) -> RanksRun:
    """As :func:`on_ranks`; what ``batch_isend_irecv`` receives holds ``before`` until ``wait``."""
    with patch.object(dist, "batch_isend_irecv", partial(_receive_at_wait, dist.batch_isend_irecv, before)):
        return on_ranks(function, ranks, given)


def _sum_at_wait(
    all_reduce: Callable[..., Any], late: dict[int, list[Any]], tensor: Any, *given: Any, **named: Any
) -> Any:
    """All-reduce; with ``async_op=True`` leave ``tensor`` as it is until ``wait``, as on GPUs the sum comes later."""
    if not (given[2] if len(given) > 2 else named.get("async_op")):
        return all_reduce(tensor, *given, **named)
    work = all_reduce(total := tensor.clone(), *given, **named)
    pending = [tensor]

    def arrive() -> None:
        work.wait()
        while pending:
            pending.pop().detach().copy_(total)

    class ArrivingSum:
        def __getattr__(self, name: str) -> Any:
            arrive()
            return getattr(work, name)

    late.setdefault(dist.get_rank(), []).append(arrive)
    return ArrivingSum()


def on_ranks_with_late_sums(
    function: Callable[..., Any], ranks: int, given: Sequence[Sequence[Any]] | None = None
) -> RanksRun:
    """As :func:`on_ranks`; the sum of an all-reduce with ``async_op=True`` is there only after ``wait``."""
    late = dict[int, list[Any]]()
    synchronize = torch.cuda.synchronize

    def synchronize_late(*device: Any, **named: Any) -> None:
        for arrive in late.pop(dist.get_rank(), []):
            arrive()
        synchronize(*device, **named)

    with (
        patch.object(dist, "all_reduce", partial(_sum_at_wait, dist.all_reduce, late)),
        patch.object(torch.cuda, "synchronize", synchronize_late),
    ):
        return on_ranks(function, ranks, given)


@contextmanager
def watch_new(kind: type) -> Iterator[list[tuple[int, Any]]]:
    """Yield a list to which each new object of ``kind`` is added, with the rank that makes it, within the block."""
    made: list[tuple[int, Any]] = []
    real = kind.__init__  # type: ignore[misc]

    def init(self: Any, *given: Any, **named: Any) -> None:
        made.append((dist.get_rank() if dist.is_initialized() else 0, self))
        real(self, *given, **named)

    with patch.object(kind, "__init__", init):
        yield made


def _failure(rank: int, error: BaseException, ranks: int) -> RankFailure:
    text = "".join(traceback.format_exception(error))
    words = short_text(error) if isinstance(error, Exception) else type(error).__name__
    line = user_line(text)
    file = re.split("[ ,]", line)[0]
    own = Path(__file__).with_name(file).is_file()  # a line of a judge, not of the learner
    return RankFailure(rank, error, "" if own else line, words, ranks)
