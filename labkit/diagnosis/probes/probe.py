"""A probe asks one question of the runs. It declares what it may answer, and whose answers it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..result import Finding
from ..runs import Runs

Look = Callable[[Runs], Iterable[Finding]]


# Compared by identity: there is one of each, and to hash all that it says would take long.
@dataclass(frozen=True, eq=False)
class Probe:
    """One question to the runs.

    look           the function that asks it and yields findings.
    finds          the keys of the kinds that it may find.
    after          names of probes that it builds on.
    explained_by   keys of kinds and names of probes: if one of them has found something, this one is not asked.
    wants_outputs  whether it is asked only if the model runs on one GPU.
    asked          "first"; "each": once in eval and once in training mode; "last": when both are known.
    """

    look: Look
    finds: tuple[str, ...]
    after: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    wants_outputs: bool = True
    asked: str = "first"

    @property
    def name(self) -> str:
        return self.look.__name__


def probe(
    *finds: str,
    after: tuple[str, ...] = (),
    explained_by: tuple[str, ...] = (),
    wants_outputs: bool = True,
    asked: str = "first",
) -> Callable[[Look], Probe]:
    """Makes a :class:`Probe` of the decorated function, which may find these kinds."""
    return lambda look: Probe(look, finds, after, explained_by, wants_outputs, asked)
