"""The probes: each asks one thing of the runs. They stand here in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..result import Finding
from ..runs import Runs
from .layout import check_idle_gpus, check_layout, check_row_counts, report_unexplained
from .one_gpu import check_forward, check_module, check_outputs, check_state
from .replicas import check_devices, check_references, check_replicas
from .training import check_gradients, check_kept_values, measure_training_step


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
    Probe(check_module, wants_outputs=False),
    Probe(check_forward, wants_outputs=False),
    Probe(check_state),
    Probe(check_outputs, "each"),
    Probe(check_references, "each"),
    Probe(check_replicas, "each"),
    Probe(
        check_devices,
        "each",
        ("check_references", "check_replicas", "not_registered.parameter", "not_registered.module"),
    ),
    Probe(check_layout, "each", ("check_references",)),
    Probe(check_row_counts, "each", ("check_references",)),
    Probe(
        report_unexplained,
        "each",
        ("check_references", "check_replicas", "check_devices", "check_layout", "check_row_counts"),
    ),
    Probe(check_idle_gpus, "first", ("rows_dropped", "list_cut", "check_references")),
    Probe(check_gradients, "last"),
    Probe(check_kept_values, "last"),
    Probe(measure_training_step, "last"),
)
