"""The GPUs that a rank sees: those that it lists in CUDA_VISIBLE_DEVICES before it uses CUDA, as CUDA reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...base.units import parse_bytes
from ...children import told as children
from ...machine.state.gpu import Gpu, TheMachine
from ...machine.state.random import DeviceRandom

_NAME: Any = os.environ.encodekey(children.VISIBLE)


class Sight(NamedTuple):
    """The GPUs that a process sees, its random generators on them, and which of the computer's GPUs they are.

    Of two processes that see one GPU, each has objects of its own for it: neither finds it filled by the other.
    """

    gpus: tuple[Gpu, ...]
    random: DeviceRandom
    numbers: tuple[int, ...]

    def show(self, machine: TheMachine) -> None:
        """From now on these are the machine's GPUs."""
        if machine.random is not self.random:
            machine.gpus, machine.random, machine.numbers = self
            torch.cuda.default_generators = self.random.generators  # type: ignore[assignment]  # as many as there are


def sight(machine: TheMachine) -> Sight:
    """Gives the GPUs that the machine shows to a process with the environment that is in use."""
    found = children.described(machine.told)
    sizes: Any = found.options(os.environ)
    memory = sizes["memory"] if isinstance(sizes["memory"], list) else [sizes["memory"]] * sizes["gpus"]
    gpus = tuple(Gpu(k, parse_bytes(size), machine) for k, size in enumerate(memory))
    random = DeviceRandom(gpus)
    before = machine.random.generators
    random.begin(machine.backing, before[0].initial_seed() if before else None)
    return Sight(gpus, random, found.visible(os.environ))


class Environment(dict[Any, Any]):
    """The variables of a process, as ``os.environ`` keeps them; ``chosen()`` is called when it has said which GPUs."""

    chosen: Callable[[], object] | None = None

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, value)
        if name == _NAME and self.chosen is not None:
            self.chosen()

    def __delitem__(self, name: Any) -> None:
        super().__delitem__(name)
        if name == _NAME and self.chosen is not None:
            self.chosen()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy of the environment is nobody's
