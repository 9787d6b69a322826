"""Plan the devices of a call of ``nn.DataParallel``: of the module, the input, the replicas, the output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ..base.display import Drawn
from ..base.language import say, series
from ..base.numbers import MOST_GPUS, integer, must
from .split import Split, split


@dataclass(frozen=True)
class Placement(Drawn):
    """The devices of a call by name, ``"cpu"`` or ``"cuda:1"``.

    replicas   the devices named by ``device_ids``, in their order; the first is :attr:`home`. Replica k gets piece k.
    module     where the module is, or the first part of it that is not at home.
    batch      where the input is.
    output     where the gathered output will be.
    plan       who gets which rows; its GPU k is ``replicas[k]``.
    gpus       how many GPUs the machine has, those without work among them.
    """

    replicas: tuple[str, ...]
    module: str
    batch: str
    output: str
    plan: Split
    gpus: int

    @property
    def home(self) -> str:
        """``device_ids[0]``; where the module is if there is no GPU."""
        return self.replicas[0] if self.replicas else self.module

    @property
    def error(self) -> str:
        """PyTorch's message if the module is not at home; "" if all is well."""
        if self.module == self.home:
            return ""
        return (
            f"module must have its parameters and buffers on device {self.home} (device_ids[0]) "
            f"but found one of them on device: {self.module}"
        )

    def __repr__(self) -> str:
        if self.error:
            return f"RuntimeError: {self.error}"
        pairs = zip(self.replicas, self.plan.pieces, strict=False)
        rows = series(f"{name} {piece.rows}" for name, piece in pairs) or f"{self.module} {self.plan.batch}"
        return say(
            en=f"home {self.home}; rows: {rows}; output on {self.output}",
            zh=f"主设备 {self.home}；行数：{rows}；输出在 {self.output} 上",
        )


def placement(
    model: Any, batch: Any = "cpu", *, rows: int = 7, output_device: int | str | None = None,
    module: int | str | None = None, gpus: int | None = None,
) -> Placement:  # fmt: skip
    """Plan the devices of ``model(batch)`` without calling the model.

    model          a model wrapped in ``DataParallel``, or its ``device_ids``, such as ``[1, 0]``.
    batch          the input tensor, or the name of its device.
    rows           the rows of the input, if ``batch`` is a name.
    output_device  with ids: the device of the output; by default ``device_ids[0]``.
    module         with ids: the device of the module; by default ``device_ids[0]``.
    gpus           GPUs of the machine, to show those without work; by default up to the last one named.

    >>> placement([1, 0], rows=7)
    home cuda:1; rows: cuda:1 4, cuda:0 3; output on cuda:1

    Raises TypeError if ``model`` is neither, or ``batch`` is no tensor and no name; ValueError for a device that
    ``gpus`` GPUs do not have.
    """
    if hasattr(model, "device_ids") and hasattr(model, "module"):
        ids, wrapped = list(model.device_ids), model.module
        output_device = getattr(model, "output_device", None)
        places = [str(tensor.device) for tensor in chain(wrapped.parameters(), wrapped.buffers())]
    elif isinstance(model, (list, tuple, range)):
        ids, places = list(model), [] if module is None else [_name("module", module)]
    else:
        en, zh = (
            "a model wrapped in DataParallel, or a list of GPU numbers",
            "是 DataParallel 包装的模型，或 GPU 编号的列表",
        )
        raise TypeError(must("model", model, en=en, zh=zh, typed=True))
    replicas = tuple(_name("device_ids", number) for number in ids)
    if len(set(replicas)) != len(replicas) or "cpu" in replicas:
        raise ValueError(must("device_ids", ids, en="GPUs, each named once", zh="是 GPU，每块只写一次"))
    home = replicas[0] if replicas else next(iter(places), "cpu")
    if not isinstance(batch, str):
        if not getattr(batch, "shape", None) or not hasattr(batch, "device"):
            en, zh = "a tensor with rows, or the name of a device", "是带有行的张量，或设备名"
            raise TypeError(must("batch", batch, en=en, zh=zh, typed=True))
        rows, batch = batch.shape[0], str(batch.device)
    output = home if output_device is None else _name("output_device", output_device)
    found = Placement(
        replicas, next((place for place in places if place != home), home), _name("batch", batch),
        output, split(rows, max(len(replicas), 1)), 0,
    )  # fmt: skip
    named = {*replicas, found.module, found.batch, found.output} - {"cpu"}
    least = max((int(name.partition(":")[2]) for name in named), default=-1) + 1
    count = least if gpus is None else integer("gpus", gpus, least, MOST_GPUS)
    return replace(found, gpus=count)


def _name(argument: str, device: object) -> str:
    """Return ``device`` as ``"cpu"`` or ``"cuda:1"``; -1 is the CPU, as in PyTorch."""
    text = str(device)
    if isinstance(device, bool):
        text = "?"
    elif text in ("-1", "cpu"):
        return "cpu"
    number = text.removeprefix("cuda:") if text != "cuda" else "0"
    if not (number.isascii() and number.isdigit()):
        raise ValueError(must(argument, device, en="a device such as 'cuda:1'", zh="是设备，例如 'cuda:1'"))
    return f"cuda:{integer(argument, int(number), 0, MOST_GPUS - 1)}"
