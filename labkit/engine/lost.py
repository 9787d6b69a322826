"""What a replica cannot keep or does not have, told by name: attributes written in forward, and parameters()."""

from __future__ import annotations

import warnings

from torch import nn

# What nn.Module itself keeps, and what replicate adds.
OWN = {*vars(nn.Module()), "_former_parameters", "_is_replica"}
_SHOWN = 5


class Watch:
    """Warns of attributes that ``replica`` is given between now and :meth:`report`: they go with the replica."""

    def __init__(self, replica: nn.Module) -> None:
        self._before = [
            (name, module, dict(vars(module)))
            for name, module in replica.named_modules()
            if not module._forward_pre_hooks  # weight_norm's, for example, write an attribute anew for each call
        ]

    def report(self) -> None:
        lost = [
            f"{name}.{key}" if name else key
            for name, module, before in self._before
            for key, value in vars(module).items()
            if key not in OWN and before.get(key, before) is not value and not _private(module, key)
        ]
        if lost:
            listed = ", ".join(map(repr, lost[:_SHOWN])) + (", ..." if len(lost) > _SHOWN else "")
            warnings.warn(
                f"forward has set {listed} on the replicas, which are thrown away after each call: the module "
                "itself does not change. Return the value from forward, or register a buffer and write into it "
                "in place (the first GPU's is kept)",
                stacklevel=5,
            )


def _private(module: nn.Module, name: str) -> bool:
    return name.startswith("_") and type(module).__module__.startswith("torch.")  # an LSTM's list of weights


class NoParameters(dict):
    """The parameters of a replica: none. Who asks for them is told, for a sum over them is 0 without a word."""

    def items(self):
        if not self:
            warnings.warn(
                "a replica has no parameters of its own, so its parameters() is empty: its weights are copies "
                "under their names. Use them by name (self.weight), or compute on the module outside forward",
                stacklevel=6,
            )
        return super().items()
