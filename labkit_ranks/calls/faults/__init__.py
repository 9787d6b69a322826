"""Faults among ranks, in words: calls that do not fit together, ranks of which none can go on, calls that
came too late, several ranks on one GPU.

Pure: from calls to texts in the language in use. Each text says for every rank what it called, the call's number in
its group, shapes and types, and the line of the user's code; then what it means, and what to do.
"""

from .deadlock import (
    FAULT_OF,
    RankState,
    Unmet,
    cause_of_absence,
    deadlock_report,
    late_error,
    state_lines,
    timeout_error,
    unmet_error,
    wait_graph,
)
from .mismatch import Mismatch, calls_fit, early_use_error, mismatch_error, mismatch_report
from .report import Report, call_table, explain_fault, format_ranks, group_label

__all__ = [
    "FAULT_OF",
    "Mismatch",
    "Report",
    "RankState",
    "Unmet",
    "cause_of_absence",
    "deadlock_report",
    "explain_fault",
    "mismatch_error",
    "calls_fit",
    "wait_graph",
    "group_label",
    "late_error",
    "format_ranks",
    "mismatch_report",
    "state_lines",
    "call_table",
    "timeout_error",
    "unmet_error",
    "early_use_error",
]
