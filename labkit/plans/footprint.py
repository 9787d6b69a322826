"""Plan the memory of each GPU in a DataParallel training step: integers only, in bytes.

The model and its limits:

* Each kind is at its maximum in the step. Kinds do not all peak at once (activations are freed as gradients are made),
  so a GPU's true peak is at most about its total.
* The home device, cuda:0, holds the weights, which its replica shares. Every other GPU with work has a replica during
  a call, with its activations.
* Each replica's backward makes gradients as large as the weights; the home device holds their sum as well. Not counted:
  the buffers for that sum, each of 10 MiB or of the weights' size if that is less: one on the home device with
  labkit's engine, two with PyTorch's (torch/nn/parallel/comm.py, reduce_add_coalesced); and what CUDA and PyTorch's
  allocator keep.
* Every GPU makes the outputs of its own rows; the home device also holds the gathered outputs.
* Optimizer state is on the home device alone. GPUs without rows hold nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base.display import Drawn
from ..base.language import say, series
from ..base.numbers import integer, one_of, plural
from .split import split

# Values of state that an optimizer keeps for each parameter, in the parameters' own type.
OPTIMIZERS = {"SGD": 0, "momentum": 1, "Adam": 2}
KINDS = ("weights", "activations", "outputs", "gradients", "optimizer")


@dataclass(frozen=True)
class Footprint:
    """The bytes on a GPU, by purpose."""

    weights: int = 0
    activations: int = 0
    outputs: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Footprints(Drawn):
    """The memory of all GPUs, cuda:0 first. ``capacity``: the bytes of each GPU, None if unknown."""

    gpus: tuple[Footprint, ...]
    capacity: int | None = None

    @property
    def over_capacity(self) -> tuple[int, ...]:
        """The GPUs that need more bytes than their capacity."""
        if self.capacity is None:
            return ()
        return tuple(gpu for gpu, found in enumerate(self.gpus) if found.total > self.capacity)

    over = over_capacity  # the former name

    def __repr__(self) -> str:
        shown = [f"cuda:{gpu} {found.total:,} B" for gpu, found in enumerate(self.gpus[:4])]
        listed = series(shown + ["…"] * (len(self.gpus) > 4))
        return say(en=f"{plural(len(self.gpus), 'GPU')}: {listed}", zh=f"{len(self.gpus)} 块 GPU：{listed}")


@dataclass(frozen=True)
class Occupancy(Drawn):
    """The bytes in use and the capacity of each GPU, cuda:0 first."""

    used: tuple[int, ...]
    capacities: tuple[int, ...]
    simulated: bool = True

    def __repr__(self) -> str:
        used, there = f"{sum(self.used):,}", f"{sum(self.capacities):,} B"
        return say(
            en=f"{plural(len(self.used), 'GPU')}: {used} of {there} in use",
            zh=f"{len(self.used)} 块 GPU：共 {there}，已用 {used}",
        )


def data_parallel_memory(
    rows: int, gpus: int, *, weights: int, activations: int = 0, outputs: int = 0, optimizer: int = 0,
    capacity: int | None = None, running: bool = True,
) -> Footprints:  # fmt: skip
    """Return the bytes on each GPU in a training step of ``nn.DataParallel``, by the model in this module's text.

    rows         rows in the batch, split over ``gpus`` GPUs.
    weights      bytes of the parameters.
    activations  bytes that forward keeps for backward, per row.
    outputs      bytes of the output, per row.
    optimizer    bytes of the optimizer's state: 0 for plain SGD, ``weights`` for momentum, twice that for Adam.
    capacity     bytes that each GPU has.
    running      False: between two calls, after ``optimizer.step()``, when the replicas are gone.

    >>> data_parallel_memory(30, 2, weights=100, outputs=8)
    2 GPUs: cuda:0 660 B, cuda:1 320 B

    Raises TypeError or ValueError, naming the argument, if one is no whole number or out of range.
    """
    sizes = {"weights": weights, "activations": activations, "outputs": outputs, "optimizer": optimizer}
    weights, activations, outputs, optimizer = (integer(name, size, 0) for name, size in sizes.items())
    if capacity is not None:
        capacity = integer("capacity", capacity, 1)
    found = []
    for gpu, held in enumerate(split(rows, gpus).rows_by_gpu):
        home, working = gpu == 0, running and held > 0
        found.append(
            Footprint(
                weights=weights if home or working else 0,
                activations=activations * held * running,
                outputs=outputs * (held + (rows if home and gpus > 1 else 0)) * running,
                # cuda:0 holds the module's gradients, and each replica its own until backward has summed them.
                gradients=(weights if home else 0) + (weights if working and gpus > 1 else 0),
                optimizer=optimizer if home else 0,
            )
        )
    return Footprints(tuple(found), capacity)


def million_parameters(
    rows: int, gpus: int, parameters: int, optimizer: str = "Adam", **sizes: Any
) -> Footprints:
    """Call :func:`data_parallel_memory` for a model with ``parameters`` million float32 parameters.

    optimizer   a key of OPTIMIZERS.
    sizes       the other arguments of :func:`data_parallel_memory`.
    """
    weights = 4_000_000 * integer("parameters", parameters, 0)
    values = OPTIMIZERS[one_of("optimizer", optimizer, OPTIMIZERS)]
    return data_parallel_memory(rows, gpus, weights=weights, optimizer=values * weights, **sizes)
