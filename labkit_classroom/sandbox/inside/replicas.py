"""Prove that every GPU computes with a replica: multiply the weights on each GPU by a factor that the judge has drawn.

The outputs then tell which GPU computed a row. An answer that runs on one GPU, by whatever means, gives other outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


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
