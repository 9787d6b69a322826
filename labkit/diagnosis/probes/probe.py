"""What a probe is: a question to the runs, what it may answer, and whose answers it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..findings.kind import Kind
from ..result import Finding
from ..runs import Runs

Look = Callable[[Runs], Iterable[Finding]]


@dataclass(
    frozen=True, eq=False
)  # by identity: there is one of each, and hashing all that it says takes long
class Probe:
    """One question to the runs.

    look           asks it: what was found.
    finds          the kinds that it may find.
    after          probes that it builds on.
    explained_by   kinds and probes: where one of them has found something, that says already what this one would.
    wants_outputs  whether it is asked only where the model runs on one GPU.
    asked          "first"; "each": for eval and for training mode; "last": when both are known.
    """

    look: Look
    finds: tuple[Kind, ...]
    after: tuple[Probe, ...] = ()
    explained_by: tuple[Kind | Probe, ...] = ()
    wants_outputs: bool = True
    asked: str = "first"

    @property
    def name(self) -> str:
        return self.look.__name__


def probe(
    *finds: Kind,
    after: tuple[Probe, ...] = (),
    explained_by: tuple[Kind | Probe, ...] = (),
    wants_outputs: bool = True,
    asked: str = "first",
) -> Callable[[Look], Probe]:
    """Makes a :class:`Probe` of the decorated function, which may find these kinds."""
    return lambda look: Probe(look, finds, after, explained_by, wants_outputs, asked)
