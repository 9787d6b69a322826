"""What went wrong among ranks, in words: calls that do not fit together, ranks of which none can go on, calls that
came too late, several ranks on one GPU.

Pure: from calls to texts in the language in use. Each text says for every rank what it called, the call's number in
its group, shapes and types, and the line of the user's code; then what it means, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Any

from torch.distributed import DistBackendError

from ..base.language import say
from ..trace.waits import Wait, WaitForGraph
from .call import Call
from .checks import nccl_error


class Mismatch(RuntimeError):
    """Ranks that meet in one collective called different things.

    what   in what they differ: "kind", "op", "root", "number", "dtype" or "shape".
    """

    what = ""


class Unmet(RuntimeError):
    """All ranks have ended, and some calls were never met by the others'."""


# Calls that do not fit.


def _difference(calls: Sequence[Call]) -> str:
    first = calls[0]
    return next((what for other in calls[1:] if (what := _conflict(first, other))), "")


def fault(calls: Sequence[Call]) -> Exception | None:
    """What is raised in the ranks that made these calls, if they do not fit together."""
    what = _difference(calls)
    if not what:
        return on_one_gpu(calls)
    error = Mismatch(_told(calls, what))
    error.what = what
    return error


def _conflict(a: Call, b: Call) -> str:
    """In what two calls differ, "kind", "op", "root", "number", "dtype" or "shape"; "" if they fit."""
    if a.kind != b.kind:
        return "" if {a.kind, b.kind} == {"send", "recv"} and _lengths(a) == _lengths(b) else _of_kinds(a, b)
    if a.op != b.op:
        return "op"
    if a.root != b.root and a.kind not in ("send", "recv"):
        return "root"
    one, other = _brought(a), _brought(b)
    if len(one) != len(other):
        return "number"
    for x, y in zip(one, other, strict=True):
        if x.dtype != y.dtype:
            return "dtype"
        if x.numel() != y.numel() and a.kind not in _UNEVEN:
            return "shape"
    uneven = _UNEVEN.get(a.kind)
    return "" if uneven is None or (uneven(a, b) and uneven(b, a)) else "shape"


def _of_kinds(a: Call, b: Call) -> str:
    if {a.kind, b.kind} != {"send", "recv"}:
        return "kind"
    one, other = (a.inputs or a.outputs)[0], (b.inputs or b.outputs)[0]
    return "dtype" if one.dtype != other.dtype else "shape"


def _lengths(call: Call) -> list[tuple[int, Any]]:
    return [(tensor.numel(), tensor.dtype) for tensor in call.inputs or call.outputs]


def _brought(call: Call) -> list[Any]:
    """The tensors of which every member has alike."""
    if call.kind in ("broadcast", "scatter"):
        return call.outputs
    return call.inputs


def _gathers(to: Call, of: Call) -> bool:
    """Whether ``to`` has room for what ``of`` brings (all_gather: pieces may differ in size)."""
    return bool(to.outputs[of.at].numel() == of.inputs[0].numel())


def _scatters(of: Call, to: Call) -> bool:
    return bool(of.inputs[to.at].numel() == to.outputs[0].numel())


def _sends(of: Call, to: Call) -> bool:
    return bool(of.inputs[to.at].numel() == to.outputs[of.at].numel())


def _sends_rows(of: Call, to: Call) -> bool:
    return _rows(of.inputs[0], of.splits and of.splits[0], len(of.ranks), to.at) == _rows(
        to.outputs[0], to.splits and to.splits[1], len(to.ranks), of.at
    )


def _rows(tensor: Any, sizes: list[int] | None, members: int, at: int) -> int:
    """How many numbers of ``tensor`` are for member ``at``."""
    rows = sizes[at] if sizes else (tensor.size(0) if tensor.dim() else 1) // members
    return int(rows * prod(tensor.shape[1:]))


# Where members may bring pieces of different sizes: whether what one sends is what the other has room for.
_UNEVEN: dict[str, Callable[[Call, Call], bool]] = {
    "all_gather": _gathers,
    "reduce_scatter": _scatters,
    "all_to_all": _sends,
    "all_to_all_single": _sends_rows,
}


def _told(calls: Sequence[Call], what: str) -> str:
    first = calls[0]
    message = first.kind in ("send", "recv")
    if message:
        head = say(
            en="a message and its receiver do not fit together:",
            zh="发送（send）和接收（recv）对不上：",
        )
    else:
        head = say(
            en=f"ranks that meet in call {first.seq} of group {_group(first)} do not call the same:",
            zh=f"各 rank 在组 {_group(first)} 的第 {first.seq} 次调用里碰面，调用的内容却不一样：",
        )
    return "\n".join([head, *_table(calls), _reason(calls, what)])


def _table(calls: Iterable[Call]) -> list[str]:
    """A line for each call that differs from the others, with the ranks that made it."""
    lines: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        lines.setdefault((described(call), call.short_place), []).append(call.rank)
    names = [ranks_text(ranks) for ranks in lines.values()]
    wide = max(map(len, names))
    widest = max(len(what) for what, _ in lines)
    return [
        f"  {name:<{wide}}  {what:<{widest}}  {place}".rstrip()
        for name, (what, place) in zip(names, lines, strict=True)
    ]


def described(call: Call) -> str:
    """A call in words: ``all_reduce SUM [4, 4] float32``."""
    words = [call.kind]
    if call.op:
        words.append(call.op)
    if call.root is not None and call.kind != "barrier":
        rank = call.ranks[call.root] if 0 <= call.root < len(call.ranks) else call.root
        words.append(f"{_PREPOSITIONS.get(call.kind, 'from')} rank {rank}")
    tensors = call.inputs or call.outputs
    shapes = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    if shapes and len(set(shapes)) == 1:
        times = f"{len(shapes)} × " if len(shapes) > 1 else ""
        words.append(f"{times}{list(shapes[0][0])} {shapes[0][1]}")
    else:
        words += [f"{list(shape)} {dtype}" for shape, dtype in shapes[:3]]
        words += ["…"] * (len(shapes) > 3)
    return " ".join(words)


_PREPOSITIONS = {"reduce": "to", "gather": "to", "send": "to"}


def _reason(calls: Sequence[Call], what: str) -> str:
    first = calls[0]
    if what == "kind":
        return say(
            en="The calls of a group are matched by their number: one rank has skipped a call, or made one more. NCCL "
            "would hang, or mix up their values.\n"
            "Do: look for what only some ranks do (`if rank == 0:`, `continue`, `break`, an early return) before and "
            "around these lines; every rank of the group makes the same calls in the same order.",
            zh="同一个组里的调用按次序配对：说明有的 rank 少调用了一次，或者多调用了一次。真实的 NCCL 会卡住，"
            "或者把数据弄混。\n"
            "怎么办：看看这几行之前和附近，有没有只在部分 rank 上执行的代码（`if rank == 0:`、`continue`、`break`、"
            "提前 return）；"
            "组里每个 rank 都要按同样的次序做同样的调用。",
        )
    if what == "op":
        return say(
            en="They reduce by different operations: each rank would get another result.\nDo: give all ranks the "
            "same `op=`.",
            zh="各 rank 的归约操作不同，结果会各不相同。\n怎么办：所有 rank 用同一个 `op=`。",
        )
    if what == "root":
        return say(
            en="They name different ranks as the root: NCCL would hang, or hand out the wrong values.\n"
            "Do: `src` or `dst` is the same in all ranks, and a rank of the world, not of the group (`group_src=` "
            "counts "
            "in the group).",
            zh="各 rank 指定的根（root）不同：NCCL 会卡住，或者得到错误的值。\n"
            "怎么办：`src` 或 `dst` 在所有 rank 上必须相同，而且是全局 rank，不是组内编号（组内编号用 `group_src=`）。",
        )
    if what == "number":
        return say(
            en="They bring different numbers of tensors.\nDo: give all ranks as many, in the same order.",
            zh="各 rank 给出的张量个数不同。\n怎么办：所有 rank 给出同样多的张量，次序也相同。",
        )
    if what == "dtype":
        return say(
            en="Their types differ: NCCL would read the bytes of one as the other, without an error.\n"
            "Do: convert before the call, `.to(torch.float32)`, in all ranks.",
            zh="数据类型不同：NCCL 会把一种类型的字节当成另一种来读，而且不报错。\n"
            "怎么办：调用之前在所有 rank 上统一转换，例如 `.to(torch.float32)`。",
        )
    if first.kind in ("send", "recv"):
        return say(
            en="Their sizes differ.\nDo: let the receiver make a tensor of the sender's shape (send the shape first "
            "if it "
            "varies).",
            zh="大小不同。\n怎么办：接收方要准备与发送方形状相同的张量（形状会变时，先把形状发过去）。",
        )
    if first.kind in _UNEVEN:
        return say(
            en="What one sends is not what another has room for: NCCL would hang, or write past the end.\n"
            "Do: let all know the sizes first (all_gather of the lengths), then make tensors of these sizes; or pad to "
            "the longest.",
            zh="一方发出的大小与另一方准备的空间不符：NCCL 会卡住，或者写越界。\n"
            "怎么办：先让大家知道各自的大小（all_gather 长度），再按这些大小准备张量；或者填充到最长。",
        )
    return say(
        en="Their sizes differ: NCCL would hang, or mix up their values, without an error.\n"
        "Do: bring the same shape in all ranks: `drop_last=True` for the last batch, padding to the longest "
        "(all_reduce "
        "the length with MAX first), or sums and counts instead of the rows themselves.",
        zh="大小不同：NCCL 会卡住，或者把数据弄混，而且不报错。\n"
        "怎么办：所有 rank 使用同样的形状：最后一个批次用 `drop_last=True`，或填充到最长（先用 MAX 对长度做 "
        "all_reduce），"
        "或者只汇总总和与个数，而不是各行本身。",
    )


# Several ranks on one GPU.


def on_one_gpu(calls: Sequence[Call]) -> DistBackendError | None:
    """NCCL's error if two ranks of one node bring tensors on one GPU, with what to do; None if none do."""
    if calls[0].backend != "nccl" or calls[0].kind == "barrier":
        return None
    seen: dict[tuple[int, str], Call] = {}
    for call in calls:
        other = seen.setdefault((call.node, call.device), call)
        if other is not call:
            return _duplicate(calls, other, call)
    return None


def _duplicate(calls: Sequence[Call], one: Call, two: Call) -> DistBackendError:
    alike = [call for call in calls if (call.node, call.device) == (one.node, one.device)]
    ranks = ranks_text([call.rank for call in alike])
    # The machine's GPU k has the bus number k (NCCL: src/init.cc, initTransportsRank).
    bus = int(one.device.partition(":")[2] or 0) << 12
    last = f"Duplicate GPU detected : rank {two.at} and rank {one.at} both on CUDA device {bus:x}"
    more = say(
        en=f"\n{ranks} brought tensors on {one.device} to {one.kind} at {one.short_place}: each rank needs a GPU of "
        "its own. "
        "`cuda` and `cuda:0` are the first GPU in every rank, until one is chosen.\n"
        'Do: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` at the beginning, and '
        '`device_id=torch.device("cuda", local_rank)` in `init_process_group`; load checkpoints with '
        "`map_location` of this GPU.",
        zh=f"\n{ranks} 在 {one.short_place} 的 {one.kind} 里用的张量都在 {one.device} 上：每个 rank 要有自己的 GPU。"
        "没有选定 GPU 之前，`cuda` 和 `cuda:0` 在每个 rank 上都是第一块。\n"
        '怎么办：一开始就写 `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`，并在 `init_process_group` 里给出 '
        '`device_id=torch.device("cuda", local_rank)`；加载检查点时用 `map_location` 指定这块 GPU。',
    )
    return DistBackendError(f"{nccl_error('invalid usage', last)}{more}")


# Calls that came too late.

# torch/csrc/distributed/c10d/Work.cpp, opTypeToString; NCCL's barrier is an all-reduce of one number.
_OP_TYPES = {
    "all_reduce": "ALLREDUCE", "barrier": "ALLREDUCE", "broadcast": "BROADCAST", "reduce": "REDUCE",
    "all_gather": "ALLGATHER", "all_gather_single": "_ALLGATHER_BASE", "gather": "GATHER", "scatter": "SCATTER",
    "reduce_scatter": "REDUCE_SCATTER", "reduce_scatter_single": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL",
    "all_to_all_single": "ALLTOALL_BASE", "send": "SEND", "recv": "RECV",
}  # fmt: skip


def watchdog(call: Call, timeout: timedelta, ran: timedelta | None = None) -> str:
    """What NCCL's watchdog writes after ``timeout`` (WorkNCCL::checkTimeout in ProcessGroupNCCL.cpp)."""
    limit = round(timeout.total_seconds() * 1000)
    spent = limit if ran is None else round(ran.total_seconds() * 1000)
    numel_in, numel_out = (
        (1, 1)
        if call.kind == "barrier"
        else (
            sum(t.numel() for t in call.inputs or call.outputs),
            sum(t.numel() for t in call.outputs or call.inputs),
        )
    )
    return (
        f"[Rank {call.at}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call.seq}, "
        f"OpType={_OP_TYPES.get(call.kind, call.kind.upper())}, NumelIn={numel_in}, NumelOut={numel_out}, "
        f"Timeout(ms)={limit}) ran for {spent} milliseconds before timing out."
    )


def late(calls: Sequence[Call]) -> DistBackendError | None:
    """What is raised if the last of a collective's calls came too late for the first; None if it did not."""
    first = min(calls, key=lambda call: call.arrived)
    if first.timeout is None:
        return None
    end = first.arrived + first.timeout.total_seconds()
    away = [call.rank for call in calls if call.arrived > end]
    return timeout_error(first, first.timeout, away) if away else None


def timeout_error(call: Call, timeout: timedelta, ranks: Iterable[int] = ()) -> DistBackendError:
    """What is raised where ``call`` has waited for ``timeout`` on its rank's clock, and ``ranks`` have not come."""
    names = ranks_text(ranks) if ranks else say(en="the others", zh="其他 rank")
    return DistBackendError(
        watchdog(call, timeout)
        + say(
            en=f"\nrank {call.rank} stood in {described(call)} at {call.short_place} for the whole timeout of the "
            "group, "
            f"{timeout.total_seconds():g} s; {names} had not come.\n"
            "Do: what only some ranks do for long (download, tokenise, evaluate) needs a longer `timeout=` in "
            "`init_process_group`, or the others must not wait in a collective for it.",
            zh=f"\nrank {call.rank} 停在 {call.short_place} 的 {described(call)}，等满了组的超时 "
            f"{timeout.total_seconds():g} 秒，{names} 还没有到。\n"
            "怎么办：只有部分 rank 要做很久的事（下载、分词、评估），就在 `init_process_group` 里把 `timeout=` "
            "设得更长，"
            "或者不要让其他 rank 在集合通信里等它。",
        )
    )


# None can go on.


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
    if (
        not calls
        or any(one.what for one in standings)
        or any(call.kind in ("send", "recv") for call in calls)
    ):
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
            one.rank, "waits", call.kind, missing(call, standings), _group(call), call.seq, call.short_place
        )
    if one.what:
        return Wait(one.rank, "waits", one.what)
    if one.error is not None:
        return Wait(one.rank, "failed", type(one.error).__name__)
    return Wait(one.rank, "ended")


def missing(call: Call, standings: Sequence[Standing]) -> tuple[int, ...]:
    """The ranks that have not come to ``call``."""
    if call.kind in ("send", "recv"):
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
        if call.kind in ("send", "recv"):
            return say(en=f"waits in {what} at {call.short_place}", zh=f"停在 {call.short_place} 的 {what}")
        return say(
            en=f"waits for {whom} in {what}, call {call.seq} of group {_group(call)}, at {call.short_place}",
            zh=f"在等 {whom}：停在 {call.short_place} 的 {what}，组 {_group(call)} 的第 {call.seq} 次调用",
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
        en=f"has ended; its last call was {last.kind}, call {last.seq} of group {_group(last)}, at {last.short_place}",
        zh=f"已经结束；最后一次调用是 {last.short_place} 的 {last.kind}，组 {_group(last)} 的第 {last.seq} 次",
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
    if all(call.kind in ("send", "recv") for call in calls):
        return _meaning_of_messages(calls, standings)
    collectives = [call for call in calls if call.kind not in ("send", "recv")]
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
            + f"; rank {call.rank} stands there for the {_th(mine)} time: they have unequal numbers of batches.\n"
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
            *_table(calls),
            say(
                en="Do: pair each send with a recv, let all ranks make each collective, and wait for what is "
                "asynchronous "
                "(`work.wait()`).",
                zh="怎么办：每个 send 都要有对应的 recv，每次集合通信所有 rank 都要调用，"
                "异步的调用要等它完成（`work.wait()`）。",
            ),
        ]
    )


# Words.


def _group(call: Call) -> str:
    return call.desc if call.desc not in ("", "undefined") else call.group or "default_pg"


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 2–5``."""
    numbers = sorted(set(ranks))
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in spans)
    return say(en=f"rank{'s' * (len(numbers) != 1)} {text}", zh=f"rank {text}")


def _th(number: int) -> str:
    """``41st``."""
    last = 0 if 10 < number % 100 < 20 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
