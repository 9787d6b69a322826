"""Print what is simulated and what is not: ``python -m simgpu``."""

from .fidelity import table

print(table(), end="")
