"""``python -m labkit.distributed`` prints what of torch.distributed is simulated and what is not."""

from .fidelity import table

print(table(), end="")
