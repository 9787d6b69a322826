"""Reports of faults among ranks: mismatched calls, deadlocks, timeouts, several ranks on one GPU.

Pure functions from calls to texts in the current language. Each text lists every rank's call, with its number in the
group, its shapes and dtypes, and the user's line, and then says what they mean and what to do.
"""

from .deadlock import (
    FAULT_OF,
    RankState,
    Unmet,
    cause_of_absence,
    deadlock_report,
    late_error,
    state_lines,
    store_timeout_error,
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
    "store_timeout_error",
    "timeout_error",
    "unmet_error",
    "early_use_error",
]
