"""``python -m simgpu`` prints what is simulated and what is not."""

from .fidelity import table

print(table(), end="")
