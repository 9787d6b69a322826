"""``python -m labkit.engine`` prints where the engine differs from PyTorch's on purpose."""

from .differences import table

print(table(), end="")
