"""Calls that meet and do not fit together; several ranks on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch.distributed import DistBackendError

from ....base.language import say
from ..call import Call
from ..checks.nccl import nccl_error
from .words import group_of, ranks_text, table


class Mismatch(RuntimeError):
    """Ranks that meet in one collective called different things.

    what   in what they differ: "kind", "op", "root", "number", "dtype" or "shape".
    """

    what = ""


def fault(calls: Sequence[Call]) -> Exception | None:
    """What is raised in the ranks that made these calls, if they do not fit together."""
    what = _difference(calls)
    if not what:
        return on_one_gpu(calls)
    error = Mismatch(_told(calls, what))
    error.what = what
    return error


def fit(a: Call, b: Call) -> bool:
    """Whether nothing would be raised in the ranks that made two calls, as :func:`fault` says."""
    return not _conflict(a, b) and ((a.device, a.node) != (b.device, b.node) or on_one_gpu((a, b)) is None)


def _difference(calls: Sequence[Call]) -> str:
    first = calls[0]
    return next((what for other in calls[1:] if (what := _conflict(first, other))), "")


def _conflict(a: Call, b: Call) -> str:
    """In what two calls differ, "kind", "op", "root", "number", "dtype" or "shape"; "" if they fit."""
    if a.kind != b.kind:
        return "" if {a.kind, b.kind} == {"send", "recv"} and _lengths(a) == _lengths(b) else _of_kinds(a, b)
    if a.op != b.op:
        return "op"
    if a.root != b.root and not a.is_message:
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
    message = first.is_message
    if message:
        head = say(
            en="a message and its receiver do not fit together:",
            zh="发送（send）和接收（recv）对不上：",
        )
    else:
        head = say(
            en=f"ranks that meet in call {first.seq} of group {group_of(first)} do not call the same:",
            zh=f"各 rank 在组 {group_of(first)} 的第 {first.seq} 次调用里碰面，调用的内容却不一样：",
        )
    return "\n".join([head, *table(calls), _reason(calls, what)])


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
    if first.is_message:
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


def on_one_gpu(calls: Sequence[Call]) -> DistBackendError | None:
    """NCCL's error if two ranks of one node bring tensors on one GPU, with what to do; None if none do."""
    if calls[0].backend != "nccl" or calls[0].kind == "barrier":
        return None
    seen: dict[tuple[int, str], Call] = {}
    for call in calls:
        other = seen.setdefault((call.node, call.device), call)
        if other.rank != call.rank:  # a message to oneself
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
