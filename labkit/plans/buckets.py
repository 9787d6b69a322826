"""The buckets in which DDP sends gradients: sizes in, groups of them out."""

from __future__ import annotations

from collections.abc import Iterable

MIB = 2**20
# DDP's own, in bytes: a bucket is sent once it has as many; the first, which is to leave early, has fewer.
BUCKET, FIRST = 25 * MIB, MIB


def buckets(
    sizes: Iterable[int], most: int = BUCKET, first: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Gradients of ``sizes`` bytes, in the order in which backward makes them, in buckets as DDP fills them.

    A bucket is full once it has ``most`` bytes (the first: ``first``, by default as many): a gradient is never cut, so
    a bucket may have more.
    """
    found: list[list[int]] = [[]]
    for size in sizes:
        limit = most if first is None or len(found) > 1 else first
        if found[-1] and sum(found[-1]) >= limit:
            found.append([])
        found[-1].append(size)
    return tuple(tuple(bucket) for bucket in found if bucket)
