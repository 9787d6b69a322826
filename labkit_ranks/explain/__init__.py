"""Explain why ranks hang, from the dumps of PyTorch's Flight Recorder (of a real cluster or a simulated one)."""

from .dumps import BadDump, Dump, read_dumps
from .explanation import Explained, explain

__all__ = ["BadDump", "Dump", "Explained", "explain", "read_dumps"]
