"""What is usually behind an error in a replica, and what a replica cannot keep: told with the name and the fix."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# What nn.Module itself keeps, and what replicate adds.
OWN = {*vars(nn.Module()), "_former_parameters", "_is_replica"}
_SHOWN = 5


def hint(error: BaseException, replica: nn.Module, device: torch.device, inputs: Sequence[Any]) -> str:
    """A sentence or more to add to ``error``, or nothing. Looked for only once there is an error."""
    try:
        found = [f"Hint: {text}." for text in _hints(error, replica, device, inputs)]
    except Exception:  # a module that cannot be looked through must not hide the user's error
        return ""
    return "\n" + "\n".join(found) if found else ""


def _hints(
    error: BaseException, replica: nn.Module, device: torch.device, inputs: Sequence[Any]
) -> Iterator[str]:
    if isinstance(error, StopIteration):
        names = [
            f"self.{path}.{name}" if path else f"self.{name}"
            for path, module in replica.named_modules()
            for name in getattr(module, "_former_parameters", ())
        ]
        yield (
            "a replica has no parameters of its own, so next(self.parameters()) finds none. Take the device and "
            f"type from an input or from a weight by its name ({', '.join(names[:1]) or 'self.weight'})"
        )
    if "same device" in str(error):
        for path, module in replica.named_modules():
            for name, value in vars(module).items():
                text = None if name in OWN else _left_behind(value, device)
                if text:
                    yield f"{f'{path}.{name}' if path else name!r} of {type(module).__name__} is {text}"
    for at, value in enumerate(inputs):
        if isinstance(value, list) and len(value) > 1 and all(isinstance(item, Tensor) for item in value):
            yield (
                f"input {at} is a list of {len(value)} tensors. Each of them was cut along its own first "
                "dimension, and every GPU got a piece of each. To give each GPU some of them whole, pass "
                "torch.stack(...) of them"
            )


def _left_behind(value: Any, device: torch.device) -> str | None:
    """What is wrong with an attribute that is not on ``device``, because replicate does not know it."""
    if isinstance(value, Tensor):
        if value.device != device:
            return f"a plain tensor on {value.device}: register it with register_buffer, so that each GPU has its own"
        return None
    if isinstance(getattr(value, "__self__", None), nn.Module):
        if not getattr(value.__self__, "_is_replica", False):
            return (
                "a bound method of the original module, whose weights are on another GPU: keep its name, and "
                "call getattr(self, name) in forward"
            )
        return None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    container = type(value).__name__
    for item in items:
        if isinstance(item, nn.Module) and not getattr(item, "_is_replica", False):
            kept = "nn.ModuleDict" if isinstance(value, dict) else "nn.ModuleList"
            return f"a plain {container} of modules, which all replicas share with the original: make it an {kept}"
        if isinstance(item, Tensor) and item.device != device:
            kept = "nn.ParameterDict" if isinstance(value, dict) else "nn.ParameterList"
            return (
                f"a plain {container} of tensors on {item.device}, which all replicas share: make it an {kept}, or "
                "register each as a buffer"
            )
    return None


class Attributes:
    """The attributes of ``replica`` as they are now; what forward sets after that goes with the replica."""

    def __init__(self, replica: nn.Module) -> None:
        self._before = [
            (name, module, dict(vars(module)))
            for name, module in replica.named_modules()
            if not module._forward_pre_hooks  # weight_norm's, for example, write an attribute anew for each call
        ]

    def warn_of_lost(self) -> None:
        """Warn of those that have been set meanwhile, by name."""
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


class NoParameters(dict[str, Any]):
    """The parameters of a replica: none. Who asks for them is told, for a sum over them is 0 without a word."""

    def items(self) -> Any:
        if not self:
            warnings.warn(
                "a replica has no parameters of its own, so its parameters() is empty: its weights are copies "
                "under their names. Use them by name (self.weight), or compute on the module outside forward",
                stacklevel=6,
            )
        return super().items()
