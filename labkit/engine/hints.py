"""hint: what is usually behind an error in a replica, and its cure. Looked for only once there is an error."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .lost import OWN


def hint(error: BaseException, replica: nn.Module, device: torch.device, inputs) -> str:
    """A sentence or more to add to ``error``, or nothing."""
    try:
        found = [f"Hint: {text}." for text in _hints(error, replica, device, inputs)]
    except Exception:  # a module that cannot be looked through must not hide the user's error
        return ""
    return "\n" + "\n".join(found) if found else ""


def _hints(error: BaseException, replica: nn.Module, device: torch.device, inputs) -> Iterator[str]:
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


def _left_behind(value, device: torch.device) -> str | None:
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
