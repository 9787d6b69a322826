"""``python -m labkit_ranks`` prints what is simulated and what is not, of one process and of ranks."""

from simgpu import fidelity as machine

from . import fidelity

print(machine.table() + fidelity.table(), end="")
