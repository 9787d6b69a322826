"""Faults among ranks, in words: calls that do not fit together, ranks of which none can go on, calls that
came too late, several ranks on one GPU.

Pure: from calls to texts in the language in use. Each text says for every rank what it called, the call's number in
its group, shapes and types, and the line of the user's code; then what it means, and what to do.
"""

from .deadlock import Standing, Unmet, deadlock, graph, unmet
from .lateness import late, timeout_error
from .mismatch import Mismatch, fault, fit
from .report import Report
from .words import ranks_text

__all__ = [
    "Mismatch",
    "Report",
    "Standing",
    "Unmet",
    "deadlock",
    "fault",
    "fit",
    "graph",
    "late",
    "ranks_text",
    "timeout_error",
    "unmet",
]
