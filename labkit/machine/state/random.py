"""Random numbers per simulated GPU: each has its own generator, as each real GPU has.

The numbers are those of the CPU generator with the same seed (or the backing GPU's); that they depend only on
the GPU's own seed, and leave the other devices' generators alone, is as on the real machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...base.patches import Patch
from .. import hooks
from .gpu import Gpu, TheMachine
from .in_use import machine_in_use

RealGenerator = torch.Generator
_real_device = RealGenerator.device.__get__
# So many of a generator's last offsets can be gone back to; the state of each takes 5 kB.
_MOST_OFFSETS = 100


class DeviceRandom:
    """The generators of a machine's GPUs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self.generators: tuple[torch.Generator, ...] = ()
        self._default = torch.default_generator
        self._exchange = threading.RLock()
        # The GPU in whose place torch's default generator draws now.
        self._lent: Gpu | None = None

    def begin(self, backing: torch.device, seed: int | None = None) -> None:
        """Make the generators, on the device that draws, while torch is as it really is; once.

        seed   of all of them; default: that of torch's own generator.
        """
        if self.generators:
            return
        # torch.manual_seed before the machine existed would have seeded its GPUs too (torch/random.py, manual_seed),
        # all alike: the generator of a GPU takes a seed as it is (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp,
        # set_current_seed).
        seed = torch.initial_seed() if seed is None else seed
        self.generators = tuple(Generator(gpu=gpu) for gpu in self._gpus)
        for generator in self.generators:
            generator.manual_seed(seed)
        if backing.type == "cuda":
            self._default = torch.cuda.default_generators[backing.index or 0]

    @contextmanager
    def instead_of_default(self, gpu: Gpu) -> Iterator[None]:
        """Inside, torch's default generator continues where that of ``gpu`` stands.

        The CPU's kernels ask for the default generator in C++ (aten/src/ATen/CPUGeneratorImpl.cpp,
        getDefaultCPUGenerator), which no patch reaches: its state is lent and taken back. It is the process's, so that
        one thread at a time may; a draw within a draw (an RNN's dropout) is the same thread's.
        """
        mine, default = self.generators[gpu.index], self._default
        with self._exchange:
            if self._lent is gpu:
                yield
                return
            before, self._lent, outer = default.get_state(), gpu, self._lent
            default.set_state(mine.get_state())
            try:
                yield
            finally:
                self._lent = outer
                mine.set_state(default.get_state())
                default.set_state(before)

    def drawing(self, gpu: Gpu) -> torch.Generator:
        """The generator that draws for ``gpu`` now: its own, or torch's default one in its place."""
        return self._default if self._lent is gpu else self.generators[gpu.index]


def moved_on(state: torch.Tensor, offset: int) -> torch.Tensor:
    """A generator's state ``offset`` further. CUDA's has an offset in it; the CPU's becomes another for each offset."""
    if state.numel() == 16:  # seed and offset (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)
        state = state.clone()
        state.view(torch.int64)[1] += offset
        return state
    if not offset:
        return state
    with torch._C.DisableTorchFunction():
        drawn = RealGenerator()
        drawn.set_state(state)
        number = int(torch.empty((), dtype=torch.int64).random_(generator=drawn))
        other = drawn.manual_seed((number + offset) % 2**64).get_state()
        other[:8] = state[:8]  # its seed (aten/src/ATen/CPUGeneratorImpl.cpp, CPUGeneratorImplStateLegacy)
        return other


# torch.Generator says for which device it was made, in C (torch/csrc/Generator.cpp), and cannot be told otherwise: the
# class that stands for it makes one on the device that really draws, and remembers the GPU.


class _AnyGenerator(type(RealGenerator)):  # type: ignore[misc]  # torch says which metaclass
    """Generators that were made without a machine are ``torch.Generator`` objects too."""

    def __instancecheck__(cls, generator: object) -> bool:
        return isinstance(generator, RealGenerator)


class Generator(RealGenerator, metaclass=_AnyGenerator):
    """Stands for ``torch.Generator``: one that can be made for a simulated GPU."""

    __module__, __qualname__ = RealGenerator.__module__, RealGenerator.__qualname__

    def __new__(cls, device: Any = "cpu", gpu: Gpu | None = None) -> Any:
        machine = machine_in_use()
        if gpu is None and machine is not None:
            gpu = machine.resolve(device)
        make: Any = RealGenerator.__new__
        made = make(cls, gpu.machine.backing if gpu is not None else device)
        made._labkit_gpu, made._labkit_offsets = gpu, {}
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # nor can torch's own be set
        gpu: Gpu | None = self._labkit_gpu  # type: ignore[attr-defined]  # the machine's own
        return _real_device(self) if gpu is None else gpu.device

    def clone_state(self) -> Generator:
        """Another generator on the same device, which goes on from the same state."""
        gpu: Gpu | None = self._labkit_gpu  # type: ignore[attr-defined]  # the machine's own
        made: Generator = Generator(_real_device(self), gpu)
        made.set_state(self.get_state())
        return made

    def get_offset(self) -> int:
        """The number of a GPU generator's state, counted as Philox does; :meth:`set_offset` goes back to it."""
        if not self._counts():
            return super().get_offset()
        known = self._known()
        state = self.get_state()
        for offset, other in known.items():
            if torch.equal(other, state):
                return offset
        known[(offset := max(known) + 4)] = state
        if len(known) > _MOST_OFFSETS:
            del known[next(iter(known))]
        return offset

    def set_offset(self, offset: int) -> Generator:
        """Go back to the state at which :meth:`get_offset` gave ``offset``. Any other offset has a state of its own.

        The CPU's generator has no offset, so the numbers that follow such a state are not CUDA's.
        """
        if not self._counts():
            return super().set_offset(offset)  # type: ignore[return-value]  # itself
        if offset % 4:  # aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, set_philox_offset_per_thread
            raise RuntimeError("offset must be a multiple of 4")
        known = self._known()
        if offset not in known:
            other = self._fresh((self.initial_seed() + offset) % 2**64)
            # A state begins with its seed (aten/src/ATen/CPUGeneratorImpl.cpp, CPUGeneratorImplStateLegacy).
            other[:8] = self.get_state()[:8]
            known[offset] = other
        self.set_state(known[offset])
        return self

    def _known(self) -> dict[int, torch.Tensor]:
        """The states of this seed, by the offsets that :meth:`get_offset` gave."""
        seed = self.initial_seed()
        known: dict[int, dict[int, torch.Tensor]] = self._labkit_offsets  # type: ignore[attr-defined]
        if seed not in known:
            known.clear()
            known[seed] = {0: self._fresh(seed)}
        return known[seed]

    def _fresh(self, seed: int) -> torch.Tensor:
        return RealGenerator(_real_device(self)).manual_seed(seed).get_state()

    def _counts(self) -> bool:
        """Whether it is a CPU's generator that stands for a GPU's, which has an offset."""
        return self._labkit_gpu is not None and _real_device(self).type == "cpu"  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        made, _, state = super().__reduce__()  # whose device is the one that really draws
        if self._counts():
            state = state[0], self.get_offset(), state[2]
        return made, (self.device,), state

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        seed, offset, values = state
        super().__setstate__((seed, None, values) if self._counts() else state)
        if self._counts() and offset is not None:
            self._known()[offset] = self.get_state()


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Generators that can be made for a simulated GPU, and the machine's own."""
    for owner in (torch, torch._C):
        yield Patch(owner, "Generator", Generator)
    yield Patch(torch.cuda, "default_generators", machine.random.generators)
