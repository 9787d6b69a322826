"""``python -m labkit.machine`` prints what is simulated and what is not."""

from .fidelity import table

print(table(), end="")
