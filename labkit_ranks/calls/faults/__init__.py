"""Faults among ranks, in words: calls that do not fit together, ranks of which none can go on, calls that
came too late, several ranks on one GPU.

Pure: from calls to texts in the language in use. Each text says for every rank what it called, the call's number in
its group, shapes and types, and the line of the user's code; then what it means, and what to do.
"""

from .deadlock import (
    FAULT_OF,
    Standing,
    Unmet,
    cause,
    deadlock,
    graph,
    late,
    standing_lines,
    timeout_error,
    unmet,
)
from .mismatch import Mismatch, fault, fit, report_of, used_before
from .report import Report, explained, group_of, ranks_text, table

__all__ = [
    "FAULT_OF",
    "Mismatch",
    "Report",
    "Standing",
    "Unmet",
    "cause",
    "deadlock",
    "explained",
    "fault",
    "fit",
    "graph",
    "group_of",
    "late",
    "ranks_text",
    "report_of",
    "standing_lines",
    "table",
    "timeout_error",
    "unmet",
    "used_before",
]
