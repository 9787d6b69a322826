"""The arithmetic of collectives: from the calls of all members, the outputs of each.

Pure: tensors in, tensors out, no group and no waiting. Sums are taken in the order of the ranks, element by element
in the tensors' own type, so that ranks in one process and ranks in several get the same bits. (NCCL's rings and trees
take them in other orders: last bits may differ from the real machine.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .call import CollectiveCall

Pairs = list[tuple[Tensor, Tensor]]


def compute_outputs(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    """Return (output tensor, values) pairs for member ``at``; values have as many elements as the tensor.

    calls   one of each member, by group rank; of a message, the sender's and the receiver's. Results that several
            members need are kept in the first call's ``memo``.
    """
    kind, root = calls[0].kind, calls[0].root
    if kind in _WITHOUT_TENSORS or (kind in ("reduce", "gather") and at != root):
        return []
    return _KINDS[kind](calls, at)


def reduce_tensors(tensors: Sequence[Tensor], op: str, factor: Any = None) -> Tensor:
    """Reduce ``tensors`` of the same shape and dtype by ``op``, a name of ``torch.distributed.ReduceOp``."""
    if tensors[0].is_floating_point() and tensors[0].itemsize == 1:  # float8: CPUs cannot add it
        return reduce_tensors([tensor.half() for tensor in tensors], op, factor).to(tensors[0].dtype)
    if op == "AVG" and (tensors[0].is_floating_point() or tensors[0].is_complex()):
        # NCCL multiplies each summand by 1/n, in the tensors' dtype (src/enqueue.cc, hostToDevRedOp: ncclAvg).
        return reduce_tensors(tensors, "PREMUL_SUM", 1.0 / len(tensors))
    if op == "AVG":
        return reduce_tensors(tensors, "SUM").div_(len(tensors), rounding_mode="floor")
    if op == "PREMUL_SUM":
        return reduce_tensors([tensor * factor for tensor in tensors], "SUM")
    if len(tensors) == 1:
        return tensors[0].clone()
    if any(tensor.shape != tensors[0].shape for tensor in tensors):  # equal sizes in other shapes
        tensors = [tensor.reshape(tensors[0].shape) for tensor in tensors]
    total: Tensor = _PAIR[op](tensors[0], tensors[1])
    for tensor in tensors[2:]:
        total = total.add_(tensor) if op == "SUM" else _PAIR[op](total, tensor)
    return total


_PAIR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _all_reduce(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    first = calls[0]
    if "total" not in first.memo:
        first.memo["total"] = [
            reduce_tensors(tensors, first.op, first.factor)
            for tensors in zip(*(call.inputs for call in calls), strict=True)
        ]
    return list(zip(calls[at].outputs, first.memo["total"], strict=True))


def _broadcast(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    root = calls[0].root
    assert root is not None
    return [] if at == root else list(zip(calls[at].outputs, calls[root].inputs, strict=True))


def _all_gather(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    memo = calls[0].memo
    if "brought" not in memo:
        memo["brought"] = [_gathered_tensor(call, own) for own, call in enumerate(calls)]
    return list(zip(calls[at].outputs, memo["brought"], strict=True))


def _gathered_tensor(call: CollectiveCall, own: int) -> Tensor:
    """Return one member's gathered tensor, copied if it shares memory with an output for another member's tensor."""
    tensor = call.inputs[0]
    place = tensor.untyped_storage().data_ptr()
    others = [out for at, out in enumerate(call.outputs) if at != own]
    return tensor.clone() if any(out.untyped_storage().data_ptr() == place for out in others) else tensor


def _all_gather_single(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    pairs: Pairs = []
    for k, out in enumerate(calls[at].outputs):
        pieces = out.view(-1).chunk(len(calls)) if out.numel() else ()
        pairs += zip(pieces, [call.inputs[k] for call in calls], strict=False)
    return pairs


def _scatter(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    root = calls[0].root
    assert root is not None
    return [(calls[at].outputs[0], calls[root].inputs[at])]


def _reduce_scatter(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    pieces = [call.inputs[at] for call in calls]
    return [(calls[at].outputs[0], reduce_tensors(pieces, calls[0].op, calls[0].factor))]


def _reduce_scatter_single(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    pairs: Pairs = []
    for k, out in enumerate(calls[at].outputs):
        size = out.numel()
        if size:
            pieces = [call.inputs[k].reshape(-1)[at * size : (at + 1) * size] for call in calls]
            pairs.append((out, reduce_tensors(pieces, calls[0].op, calls[0].factor)))
    return pairs


def _all_to_all(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    return list(zip(calls[at].outputs, [call.inputs[at] for call in calls], strict=True))


def _all_to_all_single(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    mine = calls[at]
    places = _split_rows(mine.outputs[0], mine.splits and mine.splits[1], len(calls))
    values = [_split_rows(call.inputs[0], call.splits and call.splits[0], len(calls))[at] for call in calls]
    return list(zip(places, values, strict=True))


def _split_rows(tensor: Tensor, sizes: list[int] | None, members: int) -> list[Tensor]:
    """Split ``tensor`` along dimension 0 into one piece for each member."""
    if not sizes:
        sizes = [tensor.size(0) // members] * members
    return list(tensor.split(sizes))


def _message(calls: Sequence[CollectiveCall], at: int) -> Pairs:
    send, recv = calls
    return list(zip(recv.outputs, send.inputs, strict=True)) if at else []


_KINDS = {
    "send": _message,
    "all_reduce": _all_reduce,
    "reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "gather": _all_gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
_WITHOUT_TENSORS = {"barrier", "new_group", "split_group"}
KINDS = frozenset(_KINDS) | _WITHOUT_TENSORS | {"recv"}


def write_results(calls: Sequence[CollectiveCall], *members: int) -> None:
    """Write the results of ``members``; of a message, 1 is the receiver."""
    for at in members:
        write_outputs(compute_outputs(calls, at))


def write_outputs(pairs: Pairs) -> None:
    """Copy the values into the output tensors."""
    for out, value in pairs:
        if out is not value:
            out.copy_(value if value.shape == out.shape else value.reshape(out.shape))
