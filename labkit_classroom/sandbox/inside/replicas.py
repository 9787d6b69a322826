"""Prove that every GPU computes with a replica: multiply the weights on each GPU by a factor that the judge has drawn.

The outputs then tell which GPU computed a row. An answer that runs on one GPU, by whatever means, gives other outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import labkit
from labkit.base.tree import map_tensors


class ScaledDataParallel(nn.DataParallel):  # type: ignore[type-arg]  # of any module
    """A DataParallel that multiplies the weights of replica k by ``factors[k]``; without factors, an ordinary one."""

    def __init__(self, module: nn.Module, gpus: int, factors: Sequence[float], names: Sequence[str]) -> None:
        super().__init__(module, list(range(gpus)))
        self.factors, self.names = factors, [name.rpartition(".") for name in names]

    def replicate(self, module: nn.Module, device_ids: Any) -> list[nn.Module]:
        replicas: list[nn.Module] = super().replicate(module, device_ids)
        for replica, factor in zip(replicas, self.factors, strict=False):
            layers = dict(replica.named_modules())
            for layer, _, name in self.names:
                if layer in layers:  # else the layer is not registered, and was not copied either
                    weight = getattr(layers[layer], name)
                    scaled = weight * factor
                    # Under no_grad, replicas have parameters instead of tensors.
                    setattr(
                        layers[layer],
                        name,
                        nn.Parameter(scaled) if isinstance(weight, nn.Parameter) else scaled,
                    )
        return replicas


def use_gpus(gpus: int) -> AbstractContextManager[Any]:
    """Simulate so many GPUs within the context; none for 0."""
    return labkit.simulate(gpus=gpus) if gpus else nullcontext()


def wrap_model(
    model: nn.Module, gpus: int, factors: Sequence[float], names: Iterable[str], restore: Callable[[], object]
) -> Callable[..., Any]:
    """Return a function that calls the model on ``gpus`` GPUs. For 1, use the last GPU; for 0, the CPU.

    restore   the driver's ``restore_names``: the model's methods may have replaced DataParallel.
    """
    if gpus == 0:
        return model
    if gpus == 1:
        last = f"cuda:{torch.cuda.device_count() - 1}"
        model.to(last)
        return lambda *inputs: model(*[item.to(last) for item in inputs])
    model = model.to("cuda:0")
    restore()
    wrapped = ScaledDataParallel(model, gpus, factors, list(names))
    return lambda *inputs: (restore(), wrapped(*inputs))[1]


def plain(value: Any) -> Any:
    """Return ``value`` with copies of its tensors on the CPU, without graphs."""
    return map_tensors(value, lambda _, tensor: tensor.detach().cpu().clone())


def draw_factors(draw: Any, gpus: int) -> list[float]:
    """Draw a factor for each GPU's weights; none for a single device."""
    return [draw.integer(5, 15) / 10 for _ in range(gpus)] if gpus > 1 else []


def compute_by_pieces(
    compute: Callable[..., Any], state: Mapping[str, Tensor], factors: Sequence[float], *inputs: Tensor
) -> Any:
    """Return ``compute(weights, *pieces)`` of all GPUs, joined: the right outputs of a :class:`ScaledDataParallel`.

    ``compute`` returns a tensor or a tuple of tensors. Without factors, it is called once with ``state``.
    """
    pieces = zip(*(each.chunk(len(factors) or 1) for each in inputs), strict=True)
    found = [
        compute({name: value * factor for name, value in state.items()}, *piece)
        for factor, piece in zip(factors or [1.0], pieces, strict=False)
    ]
    if isinstance(found[0], Tensor):
        return torch.cat(found)
    return tuple(map(torch.cat, zip(*found, strict=True)))
