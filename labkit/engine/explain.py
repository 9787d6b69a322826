"""Explain the usual cause of an error in a replica, and warn of attributes lost with a replica; each with a fix."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base.language import say, series
from ..base.texts import texts_beside

# Attributes of nn.Module itself, and those added by replicate.
OWN = {*vars(nn.Module()), "_former_parameters", "_is_replica"}
_SHOWN = 5
_TEXTS = texts_beside(__file__)


def hint(error: BaseException, replica: nn.Module, device: torch.device, inputs: Sequence[Any]) -> str:
    """Return sentences to add to ``error``, or "". Called only after an error."""
    try:
        found = [
            say(en=f"Hint: {text}.", zh=f"提示：{text}。") for text in _hints(error, replica, device, inputs)
        ]
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
        name = names[0] if names else "self.weight"
        yield _TEXTS["no-parameters"](name=name)
    if "same device" in str(error):
        for path, module in replica.named_modules():
            for name, value in vars(module).items():
                text = None if name in OWN else _describe_wrong_device(value, device)
                if text:
                    where, kind = f"{path}.{name}" if path else repr(name), type(module).__name__
                    yield say(en=f"{where} of {kind} is {text}", zh=f"{kind} 的 {where} 是{text}")
    for at, value in enumerate(inputs):
        if isinstance(value, list) and len(value) > 1 and all(isinstance(item, Tensor) for item in value):
            yield _TEXTS["list"](at=at, count=len(value))


def _describe_wrong_device(value: Any, device: torch.device) -> str | None:
    """Describe an attribute left on another device because replicate cannot see it; None if there is none."""
    if isinstance(value, Tensor):
        if value.device != device:
            return _TEXTS["tensor"](device=value.device)
        return None
    if isinstance(getattr(value, "__self__", None), nn.Module):
        if not getattr(value.__self__, "_is_replica", False):
            return str(_TEXTS["method"])
        return None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    container = type(value).__name__
    for item in items:
        if isinstance(item, nn.Module) and not getattr(item, "_is_replica", False):
            kept = "nn.ModuleDict" if isinstance(value, dict) else "nn.ModuleList"
            return _TEXTS["modules"](container=container, kept=kept)
        if isinstance(item, Tensor) and item.device != device:
            kept = "nn.ParameterDict" if isinstance(value, dict) else "nn.ParameterList"
            return _TEXTS["tensors"](container=container, device=item.device, kept=kept)
    return None


class Attributes:
    """The attributes of ``replica`` now, to find those set by forward, which are lost with the replica."""

    def __init__(self, replica: nn.Module) -> None:
        self._before = [
            (name, module, dict(vars(module)))
            for name, module in replica.named_modules()
            if not module._forward_pre_hooks  # weight_norm's, for example, set an attribute at each call
        ]

    def warn_of_lost(self) -> None:
        """Warn, by name, of the attributes set since."""
        lost = [
            f"{name}.{key}" if name else key
            for name, module, before in self._before
            for key, value in vars(module).items()
            if key not in OWN
            and before.get(key, before) is not value
            # An LSTM of torch's has a list of weights.
            and not (key.startswith("_") and type(module).__module__.startswith("torch."))
        ]
        if lost:
            listed = series([*map(repr, lost[:_SHOWN]), *["..."] * (len(lost) > _SHOWN)])
            warnings.warn(_TEXTS["lost"](listed=listed), stacklevel=5)


class NoParameters(dict[str, Any]):
    """The empty parameters of a replica. Reading them warns, because a sum over them would silently be 0."""

    def items(self) -> Any:
        if not self:
            warnings.warn(str(_TEXTS["empty"]), stacklevel=6)
        return super().items()
