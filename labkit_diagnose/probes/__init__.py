"""The probes: each asks one thing of the runs. They stand here in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..result import Finding
from ..runs import Runs
from .alone import alone, model, returned, state
from .layout import idle, layout, rows, unexplained
from .replicas import devices, references, replicas
from .training import gradients, kept, training_step


@dataclass(frozen=True)
class Probe:
    """One question to the runs.

    look           the function that asks it and yields findings.
    asked          "first"; "each": once in eval and once in training mode; "last": when both are known.
    explained_by   names of probes and keys of kinds before it: if one has found something, this one is not asked.
    wants_outputs  whether it is asked only if the model runs on one GPU.
    """

    look: Callable[[Runs], Iterable[Finding]]
    asked: str = "first"
    explained_by: tuple[str, ...] = ()
    wants_outputs: bool = True

    @property
    def name(self) -> str:
        return self.look.__name__


PROBES = (
    Probe(model, wants_outputs=False),
    Probe(alone, wants_outputs=False),
    Probe(state),
    Probe(returned, "each"),
    Probe(references, "each"),
    Probe(replicas, "each"),
    Probe(devices, "each", ("references", "replicas", "not_registered.parameter", "not_registered.module")),
    Probe(layout, "each", ("references",)),
    Probe(rows, "each", ("references",)),
    Probe(unexplained, "each", ("references", "replicas", "devices", "layout", "rows")),
    Probe(idle, "first", ("rows_dropped", "list_cut", "references")),
    Probe(gradients, "last"),
    Probe(kept, "last"),
    Probe(training_step, "last"),
)
