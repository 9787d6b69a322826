"""The probes: each asks one thing of the runs. They are declared here, and ordered by what they wait for."""

from graphlib import TopologicalSorter

from .alone import alone, model, returned, state
from .layout import idle, layout, rows, unexplained
from .probe import Probe
from .replicas import devices, references, replicas
from .training import gradients, kept, training_step

PROBES = (
    model, alone, state, returned, references, replicas, devices, layout, rows, unexplained, idle, gradients, kept,
    training_step,
)  # fmt: skip


def in_order(probes: tuple[Probe, ...] = PROBES) -> tuple[Probe, ...]:
    """Return the probes, each after those that it builds on and those whose findings may explain its own."""
    graph = {
        probe: {
            other
            for other in probes
            if other is not probe
            and not {other.name, *other.finds}.isdisjoint((*probe.after, *probe.explained_by))
        }
        for probe in probes
    }
    return tuple(TopologicalSorter(graph).static_order())


__all__ = ["PROBES", "Probe", "in_order"]
