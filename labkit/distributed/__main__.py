"""``python -m labkit.distributed`` prints what is simulated and what is not, of one process and of ranks."""

from ..machine import fidelity as machine
from . import fidelity

print(machine.table() + fidelity.table(), end="")
