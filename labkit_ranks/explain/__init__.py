"""The dumps of PyTorch's Flight Recorder, of a real cluster or a simulated one: what the ranks hang in, and why."""

from .dumps import BadDump, Dump, read_dumps
from .explanation import Explained, explain

__all__ = ["BadDump", "Dump", "Explained", "explain", "read_dumps"]
