"""Explanations: the usual cause of an error in a replica, and attributes that are lost with it; each with a fix."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base.language import say

# The attributes that nn.Module itself keeps, and those that replicate adds.
OWN = {*vars(nn.Module()), "_former_parameters", "_is_replica"}
_SHOWN = 5


def hint(error: BaseException, replica: nn.Module, device: torch.device, inputs: Sequence[Any]) -> str:
    """A sentence or more to add to ``error``, or nothing. Looked for only once there is an error."""
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
        yield say(
            en="a replica has no parameters of its own, so next(self.parameters()) finds none. Take the device and "
            f"type from an input or from a weight by its name ({name})",
            zh="副本没有自己的参数，所以 next(self.parameters()) 什么也找不到。设备和类型请从输入取，"
            f"或者按名字从某个权重取（{name}）",
        )
    if "same device" in str(error):
        for path, module in replica.named_modules():
            for name, value in vars(module).items():
                text = None if name in OWN else _left_behind(value, device)
                if text:
                    where, kind = f"{path}.{name}" if path else repr(name), type(module).__name__
                    yield say(en=f"{where} of {kind} is {text}", zh=f"{kind} 的 {where} 是{text}")
    for at, value in enumerate(inputs):
        if isinstance(value, list) and len(value) > 1 and all(isinstance(item, Tensor) for item in value):
            yield say(
                en=f"input {at} is a list of {len(value)} tensors. Each of them was cut along its own first "
                "dimension, and every GPU got a piece of each. To give each GPU some of them whole, pass "
                "torch.stack(...) of them",
                zh=f"输入 {at} 是有 {len(value)} 个张量的列表。每个张量都沿各自的第 0 维切分，每块 GPU 拿到的是"
                "每个张量的一块。想让每块 GPU 拿到其中几个完整的张量，请传 torch.stack(...)",
            )


def _left_behind(value: Any, device: torch.device) -> str | None:
    """The text about an attribute that is not on ``device`` because replicate does not know it; None if it is fine."""
    if isinstance(value, Tensor):
        if value.device != device:
            return say(
                en=f"a plain tensor on {value.device}: register it with register_buffer, so that each GPU has its own",
                zh=f"{value.device} 上的普通张量：用 register_buffer 注册，这样每块 GPU 都有自己的一份",
            )
        return None
    if isinstance(getattr(value, "__self__", None), nn.Module):
        if not getattr(value.__self__, "_is_replica", False):
            return say(
                en="a bound method of the original module, whose weights are on another GPU: keep its name, and "
                "call getattr(self, name) in forward",
                zh="原模块的绑定方法，而原模块的权重在另一块 GPU 上：只保存方法名，"
                "在 forward 里用 getattr(self, name) 调用",
            )
        return None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    container = type(value).__name__
    for item in items:
        if isinstance(item, nn.Module) and not getattr(item, "_is_replica", False):
            kept = "nn.ModuleDict" if isinstance(value, dict) else "nn.ModuleList"
            return say(
                en=f"a plain {container} of modules, which all replicas share with the original: make it an {kept}",
                zh=f"装着模块的普通 {container}，所有副本都和原模块共用它：改成 {kept}",
            )
        if isinstance(item, Tensor) and item.device != device:
            kept = "nn.ParameterDict" if isinstance(value, dict) else "nn.ParameterList"
            return say(
                en=f"a plain {container} of tensors on {item.device}, which all replicas share: make it an {kept}, or "
                "register each as a buffer",
                zh=f"装着 {item.device} 上的张量的普通 {container}，所有副本共用它：改成 {kept}，"
                "或者把每个张量注册为 buffer",
            )
    return None


class Attributes:
    """The attributes of ``replica`` as they are now. Those that forward sets are lost with the replica."""

    def __init__(self, replica: nn.Module) -> None:
        self._before = [
            (name, module, dict(vars(module)))
            for name, module in replica.named_modules()
            if not module._forward_pre_hooks  # weight_norm's, for example, write an attribute anew for each call
        ]

    def warn_of_lost(self) -> None:
        """Warn, by name, of those that have been set meanwhile."""
        lost = [
            f"{name}.{key}" if name else key
            for name, module, before in self._before
            for key, value in vars(module).items()
            if key not in OWN and before.get(key, before) is not value and not _private(module, key)
        ]
        if lost:
            listed = ", ".join(map(repr, lost[:_SHOWN])) + (", ..." if len(lost) > _SHOWN else "")
            warnings.warn(
                say(
                    en=f"forward has set {listed} on the replicas, which are thrown away after each call: the module "
                    "itself does not change. Return the value from forward, or register a buffer and write into it "
                    "in place (the first GPU's is kept)",
                    zh=f"forward 在副本上设置了 {listed}，而副本在每次调用后就被丢弃：模块本身并没有变。"
                    "让 forward 返回这个值，或者注册一个 buffer 并原地写入（第一块 GPU 上的会保留）",
                ),
                stacklevel=5,
            )


def _private(module: nn.Module, name: str) -> bool:
    return name.startswith("_") and type(module).__module__.startswith("torch.")  # an LSTM's list of weights


class NoParameters(dict[str, Any]):
    """The parameters of a replica: none. Asking for them warns, because a sum over them would silently be 0."""

    def items(self) -> Any:
        if not self:
            warnings.warn(
                say(
                    en="a replica has no parameters of its own, so its parameters() is empty: its weights are copies "
                    "under their names. Use them by name (self.weight), or compute on the module outside forward",
                    zh="副本没有自己的参数，所以它的 parameters() 是空的：权重是各个名字下的拷贝。"
                    "请按名字使用（self.weight），或者在 forward 之外对模块本身计算",
                ),
                stacklevel=6,
            )
        return super().items()
