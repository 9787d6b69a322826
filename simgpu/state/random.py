"""Random numbers: each simulated GPU has its own generator, as on a real machine.

The numbers are those of the CPU's generator with the same seed. They depend only on the GPU's own seed, and leave the
other devices' generators alone.

A state has CUDA's 16 bytes, a seed and an offset. The CPU's Mersenne Twister has no offset. To get one, count the words
from the last known place by drawing until the state matches; to reach one, draw that many words. An offset is four
times the number of words, since CUDA's are multiples of 4. Places that must not overlap (those of a DTensor's shards)
are on separate streams of random numbers, and so is an offset of a real GPU that is too far to draw.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from labkit.base.patches import Patch

from .. import hooks
from .current_machine import machine_in_use
from .gpu import Gpu, TheMachine

RealGenerator = torch.Generator
_real_device = RealGenerator.device.__get__
# How many (seed, offset) to remember; each state of the Twister takes 5 kB.
_MOST_PLACES = 100
_places: dict[tuple[int, int], torch.Tensor] = {}
# An offset below _NEAR counts the words of the seed's own stream. One with the bit _OURS has 24 bits for the number of
# a stream and 38 for the words on it. Any other is a real GPU's.
_NEAR, _OURS, _STREAM, _STREAMS = 2**30, 2**62, 38, 2**24
# The Twister's state in words of 8 bytes (aten/src/ATen/CPUGeneratorImpl.cpp, CPUGeneratorImplStateLegacy): the seed,
# the rest of the block, the next word in the block, the block of 624; then normal numbers kept for the next call.
_NEXT, _BLOCK, _NORMALS, _WORDS = 2, 3, 627, 624
_LOW = 2**24  # random_ draws a single word for numbers below
_FAR = 2**31  # how many words to search for a state


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
    def draw_by_default_generator(self, gpu: Gpu, *, normals: bool = True) -> Iterator[None]:
        """Let torch's default generator draw for ``gpu`` in a ``with`` block.

        normals   whether normal numbers are drawn, of which the CPU may keep one for the next call

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
                after = default.get_state()
                RealGenerator.set_state(mine, _without_normals(after) if normals else after)
                default.set_state(before)

    def drawing_generator(self, gpu: Gpu) -> torch.Generator:
        """Return the generator drawing for ``gpu`` now: the GPU's own, or torch's default generator in its place."""
        return self._default if self._lent is gpu else self.generators[gpu.index]


def _hash_numbers(*numbers: int) -> int:
    """Hash ``numbers`` to 64 bits."""
    value = b"".join((number % 2**64).to_bytes(8, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _place_of(offset: int) -> tuple[int, int]:
    """Split ``offset`` into the number of the stream and the words on it."""
    if 0 <= offset < _NEAR:
        return 0, offset // 4
    if offset >= _OURS:
        return (offset >> _STREAM) % _STREAMS, offset % 2**_STREAM // 4
    return _stream_of(offset), 0


def _offset_of(stream: int, words: int) -> int:
    return 4 * words if not stream and 4 * words < _NEAR else _OURS + (stream << _STREAM) + 4 * words


def _stream_of(*numbers: int) -> int:
    """Return the number of a stream, a hash of ``numbers``."""
    return 1 + _hash_numbers(*numbers) % (_STREAMS - 1)


@contextmanager
def _disable_modes() -> Iterator[None]:
    """Hide operations on tensors from all modes in a ``with`` block."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def _without_normals(twister: torch.Tensor) -> torch.Tensor:
    with _disable_modes():
        twister.view(torch.int64)[_NORMALS:].zero_()
    return twister


def _draw(generator: torch.Generator, words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int64).random_(0, _LOW, generator=generator)


def _state_at(seed: int, offset: int) -> torch.Tensor:
    """Return the Twister's state at ``offset`` of ``seed``."""
    if (seed, offset) not in _places:
        stream, words = _place_of(offset)
        generator = RealGenerator().manual_seed(_hash_numbers(seed, stream) if stream else seed)
        while words:
            words -= len(_draw(generator, min(words, 2**20)))
        state = generator.get_state()
        state.view(torch.int64)[0] = seed
        _remember(seed, offset, state)
    return _places[seed, offset]


def _remember(seed: int, offset: int, state: torch.Tensor) -> None:
    _places[seed, offset] = state
    if len(_places) > _MOST_PLACES:
        del _places[next(iter(_places))]


def _words_between(first: torch.Tensor, second: torch.Tensor) -> int | None:
    """Return how many words a Twister draws from state ``first`` to ``second``; None if it never gets there."""
    a, b = first.view(torch.int64), second.view(torch.int64)
    ahead = int(b[_NEXT]) - int(a[_NEXT])
    if ahead >= 0 and torch.equal(a[_BLOCK:_NORMALS], b[_BLOCK:_NORMALS]):
        return ahead
    wanted = b[_BLOCK : _BLOCK + 4]
    for shift, mask in (
        (-11, -1),
        (7, 0x9D2C5680),
        (15, 0xEFC60000),
        (-18, -1),
    ):  # the Twister's tempering of a word
        wanted = wanted ^ ((wanted << shift if shift > 0 else wanted >> -shift) & mask)
    generator = RealGenerator()
    generator.set_state(first)
    passed = int(first.view(torch.int32)[2]) - 1  # the rest of its block
    _draw(generator, passed)
    blocks = 4
    while passed < _FAR:
        found = (
            (_draw(generator, blocks * _WORDS).view(blocks, _WORDS)[:, :4] == wanted % _LOW).all(1).nonzero()
        )
        if len(found):
            return passed + int(found[0]) * _WORDS + int(b[_NEXT])
        passed, blocks = passed + blocks * _WORDS, min(4 * blocks, 2048)
    return None


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

    _labkit_seen: tuple[torch.Tensor, int] | None

    def __new__(cls, device: Any = "cpu", gpu: Gpu | None = None) -> Any:
        machine = machine_in_use()
        if gpu is None and machine is not None:
            gpu = machine.resolve(device)
        make: Any = RealGenerator.__new__
        made = make(cls, "cpu" if gpu is not None else device)
        # _labkit_seen: the last known Twister's state, and its offset; None: the seed.
        made._labkit_gpu, made._labkit_seen = gpu, None
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # nor can torch's own be set
        gpu: Gpu | None = self._labkit_gpu  # type: ignore[attr-defined]  # the machine's own
        return _real_device(self) if gpu is None else gpu.device

    def clone_state(self) -> Generator:
        """Return another generator on the same device with the same state."""
        gpu: Gpu | None = self._labkit_gpu  # type: ignore[attr-defined]  # the machine's own
        made: Generator = Generator(_real_device(self), gpu)
        made.set_state(self.get_state())
        return made

    def manual_seed(self, seed: int) -> Generator:
        self._labkit_seen = None
        return super().manual_seed(seed)  # type: ignore[return-value]  # itself

    def seed(self) -> int:
        self._labkit_seen = None
        return super().seed()

    def get_state(self) -> torch.Tensor:
        """Return the state: for a GPU, CUDA's 16 bytes, seed and offset."""
        return self.as_cuda(super().get_state())

    def set_state(self, state: torch.Tensor) -> Generator:
        """Set the state: for a GPU, 16 bytes, of a real GPU too, or 8, the seed alone."""
        return super().set_state(self.as_twister(state))  # type: ignore[return-value]  # itself

    def as_cuda(self, twister: torch.Tensor) -> torch.Tensor:
        """Return the state of 16 bytes for ``twister``, the Twister's state of this generator or of its stand-in."""
        if not self._has_offset():
            return twister
        with _disable_modes():
            seed = int(twister.view(torch.int64)[0])
            if self._labkit_seen is None:
                offsets = (at for (_, at), there in _places.items() if torch.equal(there, twister))
                offset = next(offsets, None)
                first = RealGenerator().manual_seed(seed).get_state()
                self._labkit_seen = (first, 0) if offset is None else (twister, offset)
            before, offset = self._labkit_seen
            words = _words_between(before, twister)
            if words is None:  # the state was set from outside
                offset = _offset_of(_stream_of(*twister.view(torch.int64).tolist()), 0)
            elif words:
                stream, passed = _place_of(offset)
                offset = _offset_of(stream, passed + words)
            self._labkit_seen = twister, offset
            _remember(seed, offset, twister)
            return torch.tensor((seed - 2**64 if seed >= 2**63 else seed, offset)).view(torch.uint8)

    def as_twister(self, state: torch.Tensor) -> torch.Tensor:
        """Return the Twister's state for ``state`` of 16 bytes, which this generator is about to take."""
        if not self._has_offset():
            return state
        # aten/src/ATen/core/Generator.h, check_rng_state; cuda/CUDAGeneratorImpl.cpp, set_state
        if state.device.type != "cpu" or state.dtype is not torch.uint8 or state.layout is not torch.strided:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() not in (8, 16):
            raise RuntimeError("RNG state is wrong size")
        with _disable_modes():
            seed, offset = (*state.contiguous().view(torch.int64).tolist(), 0)[:2]
            if offset % 4:  # set_philox_offset_per_thread there
                raise RuntimeError("offset must be a multiple of 4")
            twister = _state_at(seed, offset)
        self._labkit_seen = twister, offset
        return twister

    def advance_state(self, state: torch.Tensor, offset: int) -> torch.Tensor:
        """Return ``state`` advanced by ``offset``: CUDA adds it; the Twister takes another stream for each offset."""
        state = state.clone()
        seed, before = state.view(torch.int64).tolist()
        if offset and self._has_offset():
            before, offset = _offset_of(_stream_of(seed, before, offset), 0), 0
        state.view(torch.int64)[1] = before + offset
        return state

    def get_offset(self) -> int:
        return int(self.get_state().view(torch.int64)[1]) if self._has_offset() else super().get_offset()

    def set_offset(self, offset: int) -> Generator:
        if not self._has_offset():
            return super().set_offset(offset)  # type: ignore[return-value]  # itself
        state = self.get_state()
        state.view(torch.int64)[1] = offset
        return self.set_state(state)

    def forget_normals(self) -> None:
        """Drop the normal number that the CPU keeps for the next call: CUDA keeps none, and a state has no room."""
        if self._has_offset():
            super().set_state(_without_normals(super().get_state()))

    def _has_offset(self) -> bool:
        """Whether a CPU generator draws for a GPU here."""
        return self._labkit_gpu is not None and _real_device(self).type == "cpu"  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        made, _, state = super().__reduce__()  # leave out its device, which really draws
        if self._has_offset():
            state = state[0], self.get_offset(), self.get_state()
        return made, (self.device,), state

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        if self._has_offset():
            self.set_state(state[2])
        else:
            super().__setstate__(state)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace torch.Generator, and the default generators of torch.cuda."""
    for owner in (torch, torch._C):
        yield Patch(owner, "Generator", Generator)
    yield Patch(torch.cuda, "default_generators", machine.random.generators)
