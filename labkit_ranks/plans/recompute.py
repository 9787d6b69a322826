"""Memory over one forward and backward, step by step, with and without recomputation, from integers only.

The unit of memory is the size of a layer's input; the unit of time is the forward of a layer. A backward takes 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from labkit.base.numbers import integer

# Of the bytes that a Transformer block keeps, the products of matrices are 10 in 16; recomputing the others (attention
# among them) takes a quarter of a forward in lesson 20's blocks.
_PRODUCTS, _OTHERS_TIME = 10 / 16, 0.25


@dataclass(frozen=True)
class Stair:
    """A step in time: ``kind`` is "F" for forward, "R" for recomputing and "B" for backward of ``layer``.

    high   the memory in use at the end of the work, before anything is freed.
    """

    kind: str
    layer: int
    start: float
    stop: float
    high: int


@dataclass(frozen=True)
class Staircase:
    """The memory of one forward and backward, as steps in order."""

    stairs: tuple[Stair, ...]

    @property
    def peak(self) -> int:
        return max(stair.high for stair in self.stairs)

    @property
    def time(self) -> float:
        return self.stairs[-1].stop


def staircase(layers: int, kept: int, every: int = 0, *, products: bool = False) -> Staircase:
    """Return the memory over one forward and backward of ``layers`` layers.

    kept       what each layer keeps for backward, in sizes of its input, which is included.
    every      0: nothing is recomputed. Otherwise neighbouring layers, so many at a time, keep only their first input.
    products   recompute only what is no product of matrices.
    """
    layers, kept, every = integer("layers", layers, 1), integer("kept", kept, 1), integer("every", every, 0)
    often = max(1, round(kept * _PRODUCTS)) if products else kept
    work: list[tuple[str, int, float, int]] = []  # kind, layer, time, memory
    if not every:
        work = [("F", at, 1, often * (at + 1)) for at in range(layers)]
        for at in reversed(range(layers)):
            high = often * at + kept
            work += [("R", at, _OTHERS_TIME, high)] * (often < kept) + [("B", at, 2, high)]
    else:
        work = [("F", at, 1, at // every + 1) for at in range(layers)]
        for first in reversed(range(0, layers, every)):
            segment = range(first, min(first + every, layers))
            held = first // every  # the inputs of the segments before
            work += [("R", at, 1, held + kept * (at - first + 1)) for at in segment]
            work += [("B", at, 2, held + kept * (at - first + 1)) for at in reversed(segment)]
    stops = accumulate(time for _, _, time, _ in work)
    return Staircase(tuple(
        Stair(kind, at, stop - time, stop, high) for (kind, at, time, high), stop in zip(work, stops, strict=True)
    ))  # fmt: skip
