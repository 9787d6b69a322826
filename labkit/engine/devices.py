"""Device arguments, in every form that torch.nn.parallel accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..base.numbers import must

Device = int | str | torch.device


def as_device(device: Device, argument: str = "device_ids") -> torch.device:
    """``device`` as a torch.device with a number; -1 and "cpu" are the CPU."""
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(must(argument, device, en="a GPU number or a device", zh="是 GPU 编号或设备"))
    if isinstance(device, int):
        return torch.device("cpu") if device == -1 else torch.device("cuda", device)
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def as_devices(devices: Sequence[Device], argument: str = "device_ids") -> list[torch.device]:
    """Each of ``devices`` as a torch.device."""
    return [as_device(device, argument) for device in devices]
