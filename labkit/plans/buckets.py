"""Fill DDP's buckets with gradients: sizes in, groups of sizes out."""

from __future__ import annotations

from collections.abc import Iterable

MIB = 2**20
# DDP's bucket sizes in bytes; the first is smaller, to be sent early.
BUCKET, FIRST = 25 * MIB, MIB


def buckets(
    sizes: Iterable[int], most: int = BUCKET, first: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Put gradients of ``sizes`` bytes, in the order of backward, into buckets as DDP does.

    A bucket is full once it has ``most`` bytes (the first: ``first``, by default ``most``). A gradient is never cut, so
    a bucket may have more.
    """
    found: list[list[int]] = [[]]
    for size in sizes:
        limit = most if first is None or len(found) > 1 else first
        if found[-1] and sum(found[-1]) >= limit:
            found.append([])
        found[-1].append(size)
    return tuple(tuple(bucket) for bucket in found if bucket)
