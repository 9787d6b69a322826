"""Ranks of which none can go on, and calls that nobody came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ....base.language import say
from ....trace.waits import Wait, WaitForGraph
from ..call import Call
from .lateness import watchdog
from .words import described, group_of, ordinal, ranks_text, table


class Unmet(RuntimeError):
    """All ranks have ended, and some calls were never met by the others'."""


@dataclass(frozen=True)
class Standing:
    """Where one rank is when none can go on.

    call    the collective or message that it waits in.
    what    what else it waits for: ``"Lock.acquire at train.py:12"``; "" if it has ended.
    error   what it raised, if it has ended by that.
    came    how often it has come to a line with a call of a kind: (line of code, kind) -> times.
    seqs    how many calls of a group it has made: group -> number of its last.
    last    the last call that it made.
    """

    rank: int
    call: Call | None = None
    what: str = ""
    error: BaseException | None = None
    came: Mapping[tuple[str, str], int] = field(default_factory=dict)
    seqs: Mapping[str, int] = field(default_factory=dict)
    last: Call | None = None

    @property
    def ended(self) -> bool:
        return self.call is None and not self.what


def deadlock(standings: Sequence[Standing], timeout: timedelta | None = None) -> str:
    """What is said when all ranks that live wait: for each where it stands; what it means; what to do.

    standings   of all ranks, in their order.
    timeout     of the group, after which NCCL would end it.
    """
    waiting = [one for one in standings if not one.ended]
    lines = [
        say(
            en="no rank can go on: each that is left waits for another.",
            zh="所有 rank 都走不下去了：剩下的每一个都在等别的 rank。",
        ),
        *_standing_lines(standings),
        _meaning(standings),
    ]
    stuck = next((one.call for one in waiting if one.call is not None and one.call.backend == "nccl"), None)
    if stuck is not None:
        limit = timeout or timedelta(minutes=10)
        said = watchdog(stuck, limit)
        seconds = f"{limit.total_seconds():g}"
        lines.append(
            say(
                en=f"On real GPUs they stand for {seconds} s, until: {said}",
                zh=f"在真实的 GPU 上会一直卡 {seconds} 秒，然后才报：{said}",
            )
        )
    return "\n".join(lines)


def cause(standings: Sequence[Standing]) -> str:
    """Why none can go on: "uneven" numbers of batches, "alone" in a line to which others never came, or ""."""
    calls = [one.call for one in standings if one.call is not None]
    if not calls or any(one.what for one in standings) or any(call.is_message for call in calls):
        return ""
    call = calls[0]
    by = {one.rank: one for one in standings}
    key = (call.short_place, call.kind)
    came = [by[rank].came.get(key, 0) for rank in missing(call, standings) if rank in by]
    if not came:
        return ""
    if not all(came):
        return "alone"
    return "uneven" if by[call.rank].came.get(key, 0) > 1 else ""


def graph(standings: Sequence[Standing]) -> WaitForGraph:
    """The same as data, which draws itself."""
    return WaitForGraph(tuple(_wait(one, standings) for one in standings))


def _wait(one: Standing, standings: Sequence[Standing]) -> Wait:
    call = one.call
    if call is not None:
        return Wait(
            one.rank, "waits", call.kind, missing(call, standings), group_of(call), call.seq, call.short_place
        )
    if one.what:
        return Wait(one.rank, "waits", one.what)
    if one.error is not None:
        return Wait(one.rank, "failed", type(one.error).__name__)
    return Wait(one.rank, "ended")


def missing(call: Call, standings: Sequence[Standing]) -> tuple[int, ...]:
    """The ranks that have not come to ``call``."""
    if call.is_message:
        return () if call.root is None else (call.ranks[call.root],)
    members = frozenset(call.ranks)
    return tuple(
        one.rank
        for one in standings
        if one.rank in members and one.rank != call.rank and one.seqs.get(call.group, 0) < call.seq
    )


def _standing_lines(standings: Sequence[Standing]) -> list[str]:
    """A line for ranks that stand alike."""
    found: dict[str, list[int]] = {}
    for one in standings:
        found.setdefault(_standing(one, standings), []).append(one.rank)
    names = [ranks_text(ranks) for ranks in found.values()]
    wide = max(map(len, names), default=0)
    return [
        f"  {name:<{wide}}  {_several(text) if len(ranks) > 1 else text}"
        for name, (text, ranks) in zip(names, found.items(), strict=True)
    ]


def _several(text: str) -> str:
    """What is said of one, of several."""
    for one, several in (
        ("waits ", "wait "),
        ("has ended; its", "have ended; their"),
        ("has ended", "have ended"),
    ):
        if text.startswith(one):
            return several + text.removeprefix(one)
    return text


def _standing(one: Standing, standings: Sequence[Standing]) -> str:
    call = one.call
    if call is not None:
        awaited = missing(call, standings)
        whom = ranks_text(awaited) if awaited else say(en="the others", zh="其他 rank")
        what = described(call)
        if call.is_message:
            return say(en=f"waits in {what} at {call.short_place}", zh=f"停在 {call.short_place} 的 {what}")
        return say(
            en=f"waits for {whom} in {what}, call {call.seq} of group {group_of(call)}, at {call.short_place}",
            zh=f"在等 {whom}：停在 {call.short_place} 的 {what}，组 {group_of(call)} 的第 {call.seq} 次调用",
        )
    if one.what:
        return say(en=f"waits for {one.what}", zh=f"在等 {one.what}")
    if one.error is not None:
        return say(
            en=f"failed with {type(one.error).__name__}: {one.error}",
            zh=f"出错退出：{type(one.error).__name__}：{one.error}",
        )
    last = one.last
    if last is None:
        return say(en="has ended without a call", zh="已经结束，没有做过任何调用")
    return say(
        en=f"has ended; its last call was {last.kind}, call {last.seq} of group {group_of(last)}, "
        f"at {last.short_place}",
        zh=f"已经结束；最后一次调用是 {last.short_place} 的 {last.kind}，组 {group_of(last)} 的第 {last.seq} 次",
    )


def _meaning(standings: Sequence[Standing]) -> str:
    """Why, as far as it can be told, and what to do."""
    calls = [one.call for one in standings if one.call is not None]
    others = [one for one in standings if one.what]
    if others and not calls:
        return say(
            en="No other rank gives what is waited for: locks, queues and files are a rank's own.\n"
            "Do: ranks share nothing but collectives and the store.",
            zh="别的 rank 不会给出它们等的东西：锁、队列和文件都是各 rank 自己的。\n"
            "怎么办：rank 之间只能通过集合通信和 store 交换数据。",
        )
    if others:
        names = ranks_text([one.rank for one in others])
        return say(
            en=f"The others stand in a call to which {names} cannot come, waiting for something else first.\n"
            "Do: look at that line; a lock, a queue or a file that only another rank could give back is never given "
            "back.",
            zh=f"其他 rank 停在集合通信里，而 {names} 到不了那里：它在等别的东西。\n"
            "怎么办：看它停住的那一行；如果是要由别的 rank 释放的锁、队列或文件，那就永远等不到。",
        )
    if all(call.is_message for call in calls):
        return _meaning_of_messages(calls, standings)
    collectives = [call for call in calls if not call.is_message]
    if len(collectives) < len(calls):
        return say(
            en="Some stand in a message, the others in a collective: neither comes to the other.\n"
            "Do: pair each send with a recv before the next collective; `isend` and `irecv` go on, and are waited for "
            "later.",
            zh="有的停在点对点的收发里，有的停在集合通信里，互相都等不到。\n"
            "怎么办：在下一次集合通信之前，让每个 send 都有对应的 recv；`isend` 和 `irecv` 不会停住，可以稍后再等。",
        )
    elsewhere = {call.rank: call.group for call in collectives}
    if all(
        elsewhere.get(rank, call.group) != call.group
        for call in collectives
        for rank in missing(call, standings)
    ):
        return say(
            en="They stand in calls of different groups, each waiting for one that stands in another's.\n"
            "Do: where ranks share several groups, all make the calls of these groups in the same order; "
            "`new_group` is "
            "a call that all ranks of the world make, members or not.",
            zh="它们停在不同组的调用里，互相等待。\n"
            "怎么办：同时属于几个组的 rank，要按同样的次序调用这些组；`new_group` 要由全体 rank 调用，不论是不是成员。",
        )
    return _meaning_of_missing(collectives[0], standings)


def _meaning_of_missing(call: Call, standings: Sequence[Standing]) -> str:
    """Why some have not come to ``call``: fewer batches, or only some ranks run this line."""
    by = {one.rank: one for one in standings}
    away = [by[rank] for rank in missing(call, standings) if rank in by]
    key = (call.short_place, call.kind)
    mine = by[call.rank].came.get(key, 0)
    never = [one for one in away if not one.came.get(key)]
    through = f" (`{via}`)" if (via := call.via) else ""
    if away and not never and mine > 1:
        rounds = ", ".join(sorted({str(one.came[key]) for one in away}))
        names = ranks_text([one.rank for one in away])
        over = all(one.ended for one in away)
        return say(
            en=f"{names} came to this line{through} {rounds} times"
            + (" and ended" if over else "")
            + f"; rank {call.rank} stands there for the {ordinal(mine)} time: they have unequal numbers of batches.\n"
            "Do: give all ranks as many batches, with `DistributedSampler` (it pads) and `drop_last=True`, or count "
            "steps instead of rows; with DDP alone, `with Join([model]):` lets the others finish.",
            zh=f"{names} 到过这一行{through} {rounds} 次"
            + ("，然后结束了" if over else "")
            + f"；rank {call.rank} 正停在第 {mine} 次：各 rank 的批次数不同。\n"
            "怎么办：让所有 rank 的批次数相同：用 `DistributedSampler`（它会补齐）和 `drop_last=True`，"
            "或者按步数而不是按行数循环；"
            "如果只用 DDP，`with Join([model]):` 能让其余的 rank 跑完。",
        )
    if never:
        names = ranks_text([one.rank for one in never])
        here = ranks_text([one.rank for one in standings if one.came.get(key)])
        return say(
            en=f"{names} never came to this line{through}, {here} did. What is called there is collective: "
            f"{call.kind} returns once all of {ranks_text(call.ranks)} have called it.\n"
            "Do: let every rank make this call, and only print or write in one (`if rank == 0:` around the printing, "
            "not around the call); saving a sharded model, evaluating through the DDP wrapper, gathering objects and "
            "synchronised metrics are collective too (for evaluation in one rank, call `model.module`).",
            zh=f"{names} 从没到过这一行{through}，而 {here} 到过。这里的调用是集合通信：要等 {ranks_text(call.ranks)} "
            f"全都调用了 {call.kind} 才会返回。\n"
            "怎么办：让每个 rank 都做这个调用，只把打印或写文件放在一个 rank 里（`if rank == 0:` 包住打印，"
            "不要包住调用）；"
            "保存分片模型、通过 DDP 包装做评估、收集对象、同步的指标，也都是集合通信（只在一个 rank 上评估时，"
            "请调用 `model.module`）。",
        )
    names = ranks_text([one.rank for one in away])
    ended = [one.rank for one in away if one.ended]
    if ended:
        return say(
            en=f"{ranks_text(ended)} ended before the call in which the others stand.\n"
            "Do: let all ranks run to the same end: an early return, `sys.exit` or `break` in one leaves the others "
            "waiting.",
            zh=f"{ranks_text(ended)} 还没到其他 rank 停住的调用就已经结束了。\n"
            "怎么办：让所有 rank 走到同一个终点：某个 rank 提前 return、`sys.exit` 或 `break`，其他 rank 就会一直等。",
        )
    return say(
        en=f"The call in which rank {call.rank} stands is one to which {names or 'the others'} cannot come, standing "
        "elsewhere.\nDo: every rank of a group makes the same calls in the same order.",
        zh=f"{names or '其他 rank'} 停在别处，到不了 rank {call.rank} 停住的调用。\n怎么办：组里每个 rank "
        "都要按同样的次序做同样的调用。",
    )


def _meaning_of_messages(calls: Sequence[Call], standings: Sequence[Standing]) -> str:
    kinds = {call.kind for call in calls}
    ended = {one.rank for one in standings if one.ended}
    gone = sorted({call.ranks[call.root] for call in calls if call.root is not None} & ended)
    if gone:
        names = ranks_text(gone)
        return say(
            en=f"{names} ended without the other half of a message that is waited for.\n"
            "Do: pair each send with a recv, with the same peer and in the same order.",
            zh=f"{names} 已经结束，却没有做另一半收发。\n怎么办：每个 send 都要有对应的 recv，对方相同，次序相同。",
        )
    if kinds == {"recv"}:
        return say(
            en="All receive, and nobody sends: each waits for a message that would only be sent afterwards.\n"
            "Do: let one side send first, or post both at once: "
            "`batch_isend_irecv([P2POp(isend, …), P2POp(irecv, …)])`.",
            zh="大家都在接收，没有人发送：每个 rank 等的消息都要等对方之后才发。\n"
            "怎么办：让其中一方先发送，或者同时提交：`batch_isend_irecv([P2POp(isend, …), P2POp(irecv, …)])`。",
        )
    if kinds == {"send"}:
        return say(
            en="All send, and nobody receives: a message of over 4 MiB waits until its receiver is there (smaller "
            "ones fit "
            "into NCCL's buffer, so this hangs for large models only).\n"
            "Do: let one side receive first, or post both at once: `batch_isend_irecv`.",
            zh="大家都在发送，没有人接收：超过 4 MiB 的消息要等接收方到了才能发出（小的放得进 NCCL 的缓冲区，"
            "所以只有模型大了才会卡住）。\n"
            "怎么办：让其中一方先接收，或者同时提交：`batch_isend_irecv`。",
        )
    return say(
        en="Sends and receives do not pair up.\n"
        "Do: pair each send with a recv, with the same peer and in the same order; `isend` and `irecv` do not stop.",
        zh="发送和接收配不成对。\n怎么办：每个 send 都要有对应的 recv，对方相同，次序相同；`isend` 和 `irecv` "
        "不会停住。",
    )


def unmet(calls: Sequence[Call]) -> str:
    """What is said of calls that were made and never met, when all ranks have ended."""
    return "\n".join(
        [
            say(
                en="all ranks have ended, and these calls were never met by the others' (on real GPUs a rank hangs "
                "in them, "
                "or in `destroy_process_group`):",
                zh="所有 rank 都已结束，但下面这些调用一直没有等到对方（在真实的 GPU 上，rank 会卡在这里，"
                "或者卡在 `destroy_process_group`）：",
            ),
            *table(calls),
            say(
                en="Do: pair each send with a recv, let all ranks make each collective, and wait for what is "
                "asynchronous "
                "(`work.wait()`).",
                zh="怎么办：每个 send 都要有对应的 recv，每次集合通信所有 rank 都要调用，"
                "异步的调用要等它完成（`work.wait()`）。",
            ),
        ]
    )
