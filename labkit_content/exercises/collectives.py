"""Exercises of lesson 11: a step of a ring, a circle of sends broken, the bus bandwidth of a data sheet."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.plans.ring import Ring
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_NUMBER, a_function, read_returned
from labkit_course.kinds import number as a_number
from labkit_ranks.calls.faults.report import format_numbers

from .on_ranks import RanksRun, describe_waits, on_ranks, on_ranks_with_late_messages

# The only calls allowed, since the learner builds the sum from messages.
_MESSAGES = {"send", "recv"}


@derive_facts("11.star", ranks=(4, 2, 1024))
def _star(ranks: int) -> dict[str, int]:
    return {"others": ranks - 1, "both_ways": 2 * (ranks - 1)}


def _another_chunk(random: Random) -> dict[str, int]:
    ranks = random.randint(4, 8)
    return {"ranks": ranks, "rank": random.randrange(ranks), "step": random.randint(2, ranks - 1)}


@derive_facts("11.chunk", ranks=(4, 3, 64), rank=(2, 0, 63), step=(2, 2, 62), fresh=_another_chunk)
def _chunk(ranks: int, rank: int, step: int) -> dict[str, int]:
    return {
        "right": (rank + 1 - step) % ranks, "up": (rank - 1 + step) % ranks, "first": (rank - 1) % ranks,
    }  # fmt: skip


@judge("11.step", a_function("ring_step"))
def _step(answer: Callable[..., Any]) -> Hints:
    for ranks in (4, 3, 2, 5):
        ring = Ring(ranks)
        marked = [torch.full((ranks, 1), 10.0**rank, dtype=torch.float64) for rank in range(ranks)]
        steps: list[list[Tensor]] = []
        for step in range(1, ring.steps + 1):  # run one step more each time, to find the first mistake
            # Received chunks hold NaN until wait(): a step with NaN, but none with zeros there, read them too early.
            given = [(chunks, answer, step) for chunks in marked]
            ran = on_ranks_with_late_messages(_steps, ranks, given)
            if _holds_nan(ran) and not _holds_nan(on_ranks_with_late_messages(_steps, ranks, given, 0.0)):
                yield Named("early", ranks=ranks, step=step)
            if ran.failure and ran.failure.hangs:
                yield Named("hangs", ranks=ranks, step=step, words=describe_waits(ran.failure))
            steps = [[chunks[at] for chunks in ran.require_success().results] for at in range(step)]
            yield from _hints_after_step(ring, step, marked, steps, ran)
        parts = [torch.randn(ranks, 3) for _ in range(ranks)]
        ran = on_ranks_with_late_messages(_steps, ranks, [(chunks, answer, ring.steps) for chunks in parts])
        total = torch.stack(parts).sum(0)
        if not all(
            torch.allclose(history[-1], total, atol=1e-4) for history in ran.require_success().results
        ):
            yield Named("values")


def _steps(chunks: Tensor, answer: Callable[..., Any], steps: int) -> list[Tensor]:
    """Return this rank's chunks after each of the first ``steps`` steps."""
    history = []
    for step in range(1, steps + 1):
        answer(chunks, step)
        history.append(chunks.clone())
    return history


def _holds_nan(ran: RanksRun) -> bool:
    return any(chunks.isnan().any() for history in ran.results for chunks in history)


def _hints_after_step(
    ring: Ring, step: int, before: list[Tensor], steps: list[list[Tensor]], ran: RanksRun
) -> Hints:
    """Yield hints on chunks that are wrong after ``step`` and were right before."""
    if others := [kind for kind in ran.call_kinds() if kind not in _MESSAGES]:
        yield Named("called", call=others[0])
    ranks, now = ring.ranks, steps[-1]
    last = steps[-2] if step > 1 else before
    if (sent := ran.count_sent_bytes() / (8 * step)) > 1:
        yield Named("too_much", sent=f"{sent:.3g}")
    wanted = ring.chunk_sums(step)
    found = [[_counts(float(value), ranks) for value in chunks] for chunks in now]
    wrong = [
        (rank, chunk)
        for rank in range(ranks)
        for chunk in range(ranks)
        if found[rank][chunk] != [int(part in wanted[rank][chunk]) for part in range(ranks)]
    ]
    if not wrong:
        return
    said: dict[str, Any] = {"ranks": ranks, "step": step, "half": ranks - 1}
    if all(torch.equal(one, other) for one, other in zip(now, last, strict=True)):
        yield Named("stops" if step >= ranks else "nothing", **said)
    for rank, chunk in wrong:
        said |= {"rank": rank, "chunk": chunk, "before": (rank - 1) % ranks}
        counts = found[rank][chunk]
        if max(counts) > 1:
            why = Named("added" if step >= ranks else "again", ranks=ranks)
            yield Named("twice", part=counts.index(max(counts)), why=why, **said)
        sent_on = float(last[(rank - 1) % ranks][chunk])
        if step < ranks and float(now[rank][chunk]) == sent_on and chunk == (rank - step) % ranks:
            yield Named("replaced", **said)
    if (
        step == 1
        and ranks > 2
        and all(found[rank][c][(rank + 1) % ranks] for rank in range(ranks) for c in [(rank + 1) % ranks])
    ):
        yield Named("backwards")
    rank, chunk = wrong[0]
    said |= {"rank": rank, "chunk": chunk, "before": (rank - 1) % ranks}
    want = [int(part in wanted[rank][chunk]) for part in range(ranks)]
    yield Named("chunk", got=_parts(found[rank][chunk]), want=_parts(want), **said)


def _counts(value: float, ranks: int) -> list[int]:
    """Count each rank's 10 ** rank in ``value``; all 0 if it is no such sum."""
    if value != round(value) or not 0 < value < 10**ranks:
        return [0] * ranks
    return [int(value) // 10**part % 10 for part in range(ranks)]


def _parts(counts: list[int]) -> Named:
    if not any(counts):
        return Named("something")
    parts = [part for part, count in enumerate(counts) if count]
    return Named("gradients" if len(parts) > 1 else "gradient", parts=format_numbers(parts))


@judge("11.exchange", a_function("exchange"))
def _exchange(answer: Callable[..., Any]) -> Hints:
    for ranks, count in ((4, 3), (4, 3_000_000), (3, 2_000_000), (2, 3_000_000)):
        given = [torch.randn(count) for _ in range(ranks)]
        ran = on_ranks(answer, ranks, [(x,) for x in given])
        said: dict[str, Any] = {"ranks": ranks, "count": f"{count:,}"}
        if ran.failure and ran.failure.hangs:
            waits = getattr(ran.failure.error, "waits", None)
            receive = waits is not None and {wait.call for wait in waits.ranks} == {"recv"}
            yield Named("receive" if receive else "circle", words=describe_waits(ran.failure, ranks), **said)
        for rank, got in enumerate(ran.require_success().results):
            got = read_returned(got, en="`exchange`", zh="`exchange` ")
            if not isinstance(got, Tensor) or not torch.equal(got, given[rank - 1]):
                said["rank"] = rank
                if isinstance(got, Tensor) and torch.equal(got, given[rank]):
                    yield Named("own", **said)
                if ranks > 2 and isinstance(got, Tensor) and torch.equal(got, given[(rank + 1) % ranks]):
                    yield Named("next", **said)
                other = [k for k in range(ranks) if isinstance(got, Tensor) and torch.equal(got, given[k])]
                if other:
                    yield Named("overwritten", other=other[0], **said)
                yield Named("other", **said)
        if others := [kind for kind in ran.call_kinds() if kind not in _MESSAGES]:
            yield Named("called", call=others[0])


@judge("11.bus", a_function("bus_bandwidth"))
def _bus(answer: Callable[..., Any]) -> Hints:
    for nbytes, seconds, ranks in (
        (2**30, 0.004, 6),  # not 8, to tell bits from all links together
        (10**9, 0.01, 3),
        (2**26, 0.001, 64),
        (10**6, 0.002, 2),
    ):
        got = read_returned(
            answer(nbytes, seconds, ranks), A_NUMBER, en="`bus_bandwidth`", zh="`bus_bandwidth` "
        )
        each = nbytes / seconds
        want = each * 2 * (ranks - 1) / ranks
        if abs(got - want) <= 1e-6 * want:
            continue
        facts = {"nbytes": nbytes, "seconds": seconds, "ranks": ranks, "got": f"{got:.4g}", "want": want}
        facts |= {"factor": want / each, "steps": 2 * (ranks - 1)}
        wrong = {
            "algorithm": each, "inverse": each * each / want, "half": want / 2, "twice": 2 * each,
            "times_n": want * ranks, "giga": want / 1e9, "bits": 8 * want, "bytes": want * seconds,
        }  # fmt: skip
        for name, value in wrong.items():
            if abs(got - value) <= 1e-6 * value:
                yield Named(name, **facts)
        yield Named("other", **facts)
    alone = read_returned(answer(10**6, 0.001, 1), A_NUMBER, en="`bus_bandwidth`", zh="`bus_bandwidth` ")
    if alone:
        yield Named("one", got=f"{alone:.4g}")


@judge("11.floor", a_number)
def _floor(answer: float) -> Hints:
    if not answer >= 40:  # not a number is none, either
        yield Named("less")
    if answer > 300:
        yield Named("times")
    if answer > 60:
        yield Named("more")
