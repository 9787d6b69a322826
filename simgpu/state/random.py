"""Random numbers: each simulated GPU has its own generator, as on a real machine.

The numbers are those of the CPU's generator with the same seed. They depend only on the GPU's own seed, and leave the
other devices' generators alone.

A state is that of the CPU's generator, not CUDA's seed and offset: the CPU's Mersenne Twister has no offset. Where an
offset tells apart what must not overlap (a DTensor's shards, states of a real GPU), each offset has its own stream.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from labkit.base.language import wrong
from labkit.base.patches import Patch

from .. import hooks
from .current_machine import machine_in_use
from .errors import NotSimulated
from .gpu import Gpu, TheMachine

RealGenerator = torch.Generator
_real_device = RealGenerator.device.__get__


class DeviceRandom:
    """The generators of a machine's GPUs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self.generators: tuple[torch.Generator, ...] = ()
        self._default = torch.default_generator
        self._exchange = threading.RLock()
        # The GPU in whose place torch's default generator draws now.
        self._lent: Gpu | None = None

    def begin(self, seed: int | None = None) -> None:
        """Make the generators, once, before torch is patched.

        seed   of all generators; default: that of torch's own.
        """
        if self.generators:
            return
        # A torch.manual_seed before simulate() seeds all GPUs alike, as on a real machine (torch/random.py,
        # manual_seed; aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, set_current_seed).
        seed = torch.initial_seed() if seed is None else seed
        self.generators = tuple(Generator(gpu=gpu) for gpu in self._gpus)
        for generator in self.generators:
            generator.manual_seed(seed)

    @contextmanager
    def draw_by_default_generator(self, gpu: Gpu) -> Iterator[None]:
        """Let torch's default generator draw for ``gpu`` in a ``with`` block.

        The CPU's kernels get the default generator in C++ (aten/src/ATen/CPUGeneratorImpl.cpp, getDefaultCPUGenerator),
        where no patch reaches. So the GPU's state is lent to it. The generator belongs to the process, so one thread at
        a time may do this; nested draws (an RNN's dropout) are on the same thread.
        """
        mine, default = self.generators[gpu.index], self._default
        with self._exchange:
            if self._lent is gpu:
                yield
                return
            before, self._lent, outer = default.get_state(), gpu, self._lent
            default.set_state(RealGenerator.get_state(mine))
            try:
                yield
            finally:
                self._lent = outer
                RealGenerator.set_state(mine, default.get_state())
                default.set_state(before)

    def drawing_generator(self, gpu: Gpu) -> torch.Generator:
        """Return the generator drawing for ``gpu`` now: the GPU's own, or torch's default generator in its place."""
        return self._default if self._lent is gpu else self.generators[gpu.index]


@contextmanager
def _disable_modes() -> Iterator[None]:
    """Hide operations on tensors from all modes in a ``with`` block."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def stream_state(state: torch.Tensor, offset: int) -> torch.Tensor:
    """Return the state of the stream that ``offset`` names after ``state``: ``state`` itself for 0, or one of its own.

    The new state has the seed of ``state``, the first number in it (aten/src/ATen/CPUGeneratorImpl.cpp,
    CPUGeneratorImplStateLegacy).
    """
    if not offset:
        return state
    with _disable_modes():
        words = state.view(torch.int64)
        digest = hashlib.blake2b(repr((words.tolist(), offset)).encode(), digest_size=8).digest()
        stream = RealGenerator().manual_seed(int.from_bytes(digest, "little")).get_state()
        stream.view(torch.int64)[0] = words[0]
    return stream


class _AnyGenerator(type(RealGenerator)):  # type: ignore[misc]  # torch says which metaclass
    """Metaclass by which generators made without a machine are instances of :class:`Generator` too."""

    def __instancecheck__(cls, generator: object) -> bool:
        return isinstance(generator, RealGenerator)


class Generator(RealGenerator, metaclass=_AnyGenerator):
    """Replacement of ``torch.Generator`` that can be made for a simulated GPU.

    torch.Generator takes its device in C, for good (torch/csrc/Generator.cpp). So the object is made on the device that
    really draws, and remembers the GPU.
    """

    __module__, __qualname__ = RealGenerator.__module__, RealGenerator.__qualname__

    _labkit_gpu: Gpu | None

    def __new__(cls, device: Any = "cpu", gpu: Gpu | None = None) -> Any:
        machine = machine_in_use()
        if gpu is None and machine is not None:
            gpu = machine.resolve(device)
        make: Any = RealGenerator.__new__
        made = make(cls, "cpu" if gpu is not None else device)
        made._labkit_gpu = gpu
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # nor can torch's own be set
        return _real_device(self) if self._labkit_gpu is None else self._labkit_gpu.device

    def clone_state(self) -> Generator:
        """Return another generator on the same device with the same state."""
        made: Generator = Generator(_real_device(self), self._labkit_gpu)
        made.set_state(self.get_state())
        return made

    def set_state(self, state: torch.Tensor) -> Generator:
        """Set the state; for a GPU also that of a real one: 8 or 16 bytes, a seed and an offset."""
        if self._labkit_gpu is not None and state.dtype is torch.uint8 and state.numel() in (8, 16):
            with _disable_modes():
                seed, offset = (*state.contiguous().view(torch.int64).tolist(), 0)[:2]
            state = stream_state(RealGenerator().manual_seed(seed).get_state(), offset)
        return super().set_state(state)  # type: ignore[return-value]  # itself

    def get_offset(self) -> int:
        self._refuse_offset()
        return super().get_offset()

    def set_offset(self, offset: int) -> Generator:
        self._refuse_offset()
        return super().set_offset(offset)  # type: ignore[return-value]  # itself

    def _refuse_offset(self) -> None:
        if self._labkit_gpu is not None:
            raise wrong(
                NotSimulated,
                en="the generator of a GPU simulated by labkit has no offset: keep its state instead, "
                "by get_state() and set_state()",
                zh="labkit 模拟的 GPU 的随机数生成器没有偏移量：请改为保存它的状态，用 get_state() 和 set_state()",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        made, _, state = super().__reduce__()  # leave out its device, which really draws
        return made, (self.device,), state


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace torch.Generator, and the default generators of torch.cuda."""
    for owner in (torch, torch._C):
        yield Patch(owner, "Generator", Generator)
    yield Patch(torch.cuda, "default_generators", machine.random.generators)
