"""Print the table of simulated features: ``python -m simgpu``."""

from .fidelity import table

print(table(), end="")
