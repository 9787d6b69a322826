"""Random numbers of ``DTensor`` differ between shards and agree between copies; afterwards all ranks go on alike.

PyTorch counts in CUDA's generator: each shard draws from an offset of its own, and afterwards every rank's stands
behind the whole tensor (torch/distributed/tensor/_random.py). The generators of simulated GPUs cannot be wound to an
offset; from where they are, each offset leads to a place of its own, which depends on nothing else. So a replicated
tensor gets the numbers of one GPU, and a sharded one others than on CUDA.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ....base.patches import Patch
from ...state.in_use import machine_here, machine_in_use, seeing
from ...state.random import moved_on


@contextmanager
def drawing_apart(start: int, end: int, given: Any = None) -> Iterator[None]:
    """Inside, the current GPU draws from ``start`` on; afterwards its generator stands at ``end`` (counted from now).

    given   the user's generator, which stands for the GPU's.
    """
    own, drawing = _generators()
    source = given or drawing
    base = source.get_state()
    before = {generator: generator.get_state() for generator in {own, drawing}}
    for generator in before:
        generator.set_state(moved_on(base, start))
    try:
        yield
    finally:
        for generator, state in before.items():
            generator.set_state(state)
        source.set_state(moved_on(base, end))


def _generators() -> tuple[Any, Any]:
    """The current GPU's own generator, and the one that draws for it now."""
    machine = machine_here()
    gpu = machine.gpu(None)
    return machine.random.generators[gpu.index], machine.random.drawing(gpu)


@functools.cache
def _tracker(base: Any) -> Any:
    """The class that stands for ``base``, OffsetBasedRNGTracker."""

    class Tracker(base):  # type: ignore[misc]
        def __init__(self, mesh: Any, run_state_sync: bool = True) -> None:
            seeing(super().__init__, mesh, run_state_sync)

        def _get_device_state(self) -> Tensor:
            # In words of 8 bytes: torch compares it with the first rank's one by one, in Python.
            state: Tensor = _generators()[1].get_state()
            return state.view(torch.int64).to(self._device)

        def _set_device_state(self, state: Tensor) -> None:
            _generators()[1].set_state(state.to("cpu").view(torch.uint8))

        def _distribute_region(self, spec: Any, generator: Any = None) -> AbstractContextManager[None]:
            if not self.distribute_region_enabled:
                return nullcontext()
            start, end = self._compute_rng_offsets(spec)
            return drawing_apart(start, end, generator)

    return Tracker


def rows() -> Iterator[Patch]:
    """The class that tracks DTensor's offsets, and the operator that uses them, once DTensor has been imported."""
    tracker: Any = sys.modules["torch.distributed.tensor._random"].OffsetBasedRNGTracker

    def new(cls: Any, mesh: Any, *_: Any, **__: Any) -> Any:
        simulated = machine_in_use() is not None and mesh.device_type == "cuda"
        return object.__new__(_tracker(cls) if simulated and cls is tracker else cls)

    yield Patch(tracker, "__new__", staticmethod(new))
    dispatch: Any = importlib.import_module("torch.distributed.tensor._dispatch")
    name = "run_dtensor_rng_op"
    run: Any = getattr(dispatch, name, None)
    if run is not None:  # from torch 2.13 on

        def run_apart(start: int, end: int, operator: Any, *args: Any, **kwargs: Any) -> Any:
            if machine_in_use() is None:
                return run(start, end, operator, *args, **kwargs)
            with drawing_apart(start, end):
                return operator(*args, **kwargs)

        yield Patch(dispatch, name, run_apart)
