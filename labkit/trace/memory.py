"""How much memory ranks' GPUs had in use, moment by moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The bytes that live on a rank's GPU at one moment.

    device   the rank's GPU: ``"cuda:1"``.
    at       seconds on the rank's clock.
    nbytes   the bytes in use now.
    peak     the most that were in use since the sample before; at least ``nbytes``.
    label    what goes on: a collective's kind, a module's name. May be "".
    """

    rank: int
    device: str
    at: float
    nbytes: int
    peak: int
    label: str = ""
