"""Hints for wrong answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit_classroom.judging import NoAnswer, read, same
from labkit_classroom.messages import listed, text_maker
from labkit_classroom.verdict import Hint
from labkit_course.kinds import SOME_WHOLE_NUMBERS

hint = text_maker(Hint, __file__)


def wrong_sizes(rows: int, gpus: int, got: object, right: Sequence[int]) -> Iterator[Hint]:
    """Checks the sizes ``got`` for a split; nothing if they are ``right``."""
    if isinstance(got, Tensor) and got.ndim == 1 and not got.is_floating_point():
        got = got.tolist()
    if isinstance(got, (list, tuple)) and got and all(type(size) is int for size in got):
        sizes = list(got[:2000])  # of any size; what reads other answers has a most
    else:
        sizes = list(read(SOME_WHOLE_NUMBERS, got, en="`split`", zh="`split` "))
    right = list(right)
    if sizes == right:
        return
    known = "sizes"
    if [size for size in sizes if size] == right:
        known = "zeros"
    elif rows > 2**50 and 0 < abs(sizes[0] - right[0]) < 999:
        known = "float"
    elif sizes and len(sizes) <= gpus and max(sizes) - min(sizes) <= 1 and sum(sizes) == rows:
        known = "balanced"
    elif sum(sizes) < rows:
        known = "dropped"
    elif sum(sizes) > rows:
        known = "doubled"
    elif rows // gpus in sizes:
        known = "floor"
    shown = f"{sizes[:12]}".replace("]", ", …]") if len(sizes) > 12 else f"{sizes}"
    yield hint(known, rows=rows, gpus=gpus, shown=shown)


def wrong_entries(got: object, right: list[Any]) -> Iterator[Hint]:
    """Check scatter's entries for one tensor, each (device, values)."""
    entries = pairs(got, "scatter")
    counts, wanted = [len(values) for _, values in entries], [len(values) for _, values in right]
    rows = sum(wanted)
    if same(entries, right):
        return
    if len(counts) > 1 and counts == [rows] * len(counts):
        yield hint("whole", rows=rows, counts=counts)
    if sum(counts) < rows:
        yield hint("dropped", "entries", rows=rows, counts=counts)
    if counts != wanted:
        yield hint("rule", rows=rows, counts=counts, wanted=wanted)
    devices = [device for device, _ in entries]
    if devices != [device for device, _ in right]:
        yield hint("device", devices=listed(devices))
    yield hint("order")


def wrong_structure(got: object, right: list[Any]) -> Iterator[Hint]:
    """Checks the entries for a nested input."""
    if not isinstance(got, (list, tuple)):
        yield hint("kind", name="scatter")
    elif not same(list(got), right):
        if len(got) != len(right):
            yield hint("nested-count", count=len(got), wanted=len(right))
        if type(got[0]) is not type(right[0]):
            yield hint("nested-type", wanted=type(right[0]).__name__, kind=type(got[0]).__name__)
        yield hint("nested")


def wrong_replicas(got: Any, right: list[Tensor], *, tied: bool) -> Iterator[Hint]:
    """Checks replicas and their outputs, without the gradient."""
    yield from wrong_device(got)
    if len(got["replicas"]) != len(right):
        yield hint("count", wanted=len(right), count=len(got["replicas"]))
    if not got["unchanged"]:
        yield hint("moved")
    for at, ((place, values), weights, _) in enumerate(got["replicas"]):
        if weights != [f"cuda:{at}"] or place != f"cuda:{at}":
            yield hint("place", at=at, places=listed(weights))
        if not same(values, right[at], 1e-4):
            yield hint("values", at=at)
    if tied and not all(shared for *_, shared in got["replicas"]):
        yield hint("tied")


def wrong_device(got: Any) -> Iterator[Hint]:
    """Checks that the model itself was not made to be several replicas."""
    if not got["distinct"]:
        yield hint("moved", "device")


def wrong_gradient(got: Tensor | None, right: Tensor) -> Iterator[Hint]:
    if got is None:
        yield hint("no-gradient")
    elif not same(got, right, 1e-3):
        yield hint("gradient")


def wrong_joined(got: object, right: Any) -> Iterator[Hint]:
    """Checks what gather gave; both as (device, values), nested perhaps."""
    if same(got, right, 1e-6):
        return
    if isinstance(right, tuple) and len(right) == 2 and isinstance(right[0], str):
        (place, values), (device, wanted) = (pairs([got], "gather")[0], right)
        if values.shape != wanted.shape:
            yield hint("joined-shape", shape=list(values.shape), wanted=list(wanted.shape))
        if place != device:
            yield hint("joined-place", place=place, device=device)
        yield hint("joined-order")
    if type(got) is not type(right):
        yield hint("joined-type", wanted=type(right).__name__, kind=type(got).__name__)
    yield hint("joined-inside")


def wrong_call(got: Any, right: Tensor, sizes: Sequence[int]) -> Iterator[Hint]:
    """Check the output of one call, and that the GPU of each row agrees with ``sizes``."""
    place, values, where = _row_places(got, right)
    if not same(values, right, 1e-5):
        yield hint("output", shape=list(values.shape), wanted=list(right.shape))
    if place != "cuda:0":
        yield hint("home", place=place)
    if where[:, :2].tolist() != [[gpu, size] for gpu, size in enumerate(sizes) for _ in range(size)]:
        pairs_of = dict.fromkeys((int(gpu), int(rows)) for gpu, rows in where[:, :2].tolist())
        told = ", ".join(f"{rows} on {f'cuda:{gpu}' if gpu >= 0 else 'cpu'}" for gpu, rows in pairs_of)
        yield hint("spread", told=told)


def wrong_count(got: Any, right: Tensor, pieces: int) -> Iterator[Hint]:
    """Checks that no more replicas were made than there are pieces."""
    made = int(_row_places(got, right)[2][:, 2].amax())
    if made != pieces:
        yield hint("too-many", made=made, pieces=pieces)


def _row_places(got: Any, right: Tensor) -> tuple[str, Tensor, Tensor]:
    """The device of the output of a call, what the model computed, and where, row by row."""
    ((place, values),) = pairs([got["output"]], "data_parallel")
    if values.dim() == 2 and values.shape[1] == right.shape[1] + 3 and len(values):
        return place, values[:, :-3], values[:, -3:]
    return place, values, torch.full((1, 3), -1.0)


def pairs(got: object, name: str) -> list[tuple[str, Tensor]]:
    """Reads ``got`` as a list of (device, tensor), as drivers tell of tensors; ends the judging if it is something else."""
    if got is None or got is ...:
        raise NoAnswer(hint("nothing", name=name))
    if not isinstance(got, (list, tuple)):
        raise NoAnswer(hint("kind", name=name))
    for entry in got:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Tensor)):
            raise NoAnswer(hint("kind", "pairs", name=name))
    return [(str(device), values) for device, values in got]


def plain_pairs(got: object) -> list[tuple[int, int]]:
    """``got``, if it is a list of two whole numbers each; else []."""
    entries = list(got) if isinstance(got, (list, tuple)) else []
    fit = all(
        isinstance(one, tuple) and len(one) == 2 and all(type(n) is int for n in one) for one in entries
    )
    return entries if fit else []


def cut(lengths: object, rows: int) -> list[int] | None:
    """The lengths of an answer's own pieces, if it cuts all rows into several; else None."""
    if (
        not isinstance(lengths, list)
        or len(lengths) < 2
        or not all(type(n) is int and n > 0 for n in lengths)
    ):
        return None
    return lengths if sum(lengths) == rows else None


def pieces_of(batch: Tensor, sizes: Sequence[int]) -> list[tuple[str, Tensor]]:
    return [(f"cuda:{gpu}", piece) for gpu, piece in enumerate(batch.split(list(sizes)))]


def scale_weights(weights: Tensor) -> Tensor:
    """Return weights that do not saturate tanh."""
    return weights / 8


def wrong_outputs(got: Sequence[Any], pieces: list[Tensor]) -> Iterator[Hint]:
    """Check the outputs of replicas: replica k adds 100 k."""
    right = [piece + 100 * at for at, piece in enumerate(pieces)]
    if same(got, right):
        return
    if len(got) != len(right):
        yield hint("outputs", wanted=len(right), count=len(got))
    if any(output is None for output in got):
        yield hint("early")
    if all(any(same(output, wanted) for wanted in right) for output in got):
        yield hint("apply-order")
    yield hint("apply-values")


def wrong_meeting(got: object, met: list[int], count: int) -> Iterator[Hint]:
    """Check that the outputs are the numbers given at the meeting, in any order."""
    outputs = got if isinstance(got, (list, tuple)) else []
    numbers = {one.item() for one in outputs if isinstance(one, Tensor) and one.numel() == 1}
    if len(met) != count or not numbers <= set(met):
        yield hint("in-turn")
