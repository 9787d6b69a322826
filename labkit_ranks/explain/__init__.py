"""Explain why ranks hang: from the dumps of PyTorch's Flight Recorder, or from the lines of a watchdog in a log."""

from .dumps import BadDump, Dump, read_dumps
from .explanation import Explained, explain
from .logs import explain_log, read_logs

__all__ = ["BadDump", "Dump", "Explained", "explain", "explain_log", "read_dumps", "read_logs"]
