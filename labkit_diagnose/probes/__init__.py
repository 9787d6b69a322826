"""The probes, in the order of their execution. Each examines the runs for one group of faults."""

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
    """A function that yields findings, and the conditions for a call of it.

    look           the function.
    asked          "first": before the modes are compared; "each": in eval and in training mode; "last": afterwards.
    explained_by   names of earlier probes and keys of kinds: findings of these make the probe unnecessary.
    wants_outputs  whether the probe needs a model that runs on one GPU.
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
