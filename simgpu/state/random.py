"""Random numbers per simulated GPU: each has its own generator, as each real GPU has.

The numbers are those of the CPU generator with the same seed; that they depend only on the GPU's own seed, and leave
the other devices' generators alone, is as on the real machine.

A state is what CUDA's is, 16 bytes: a seed and an offset. The Mersenne Twister has no offset: how many words it gave
since its seed is found by drawing on from the last known place until its state comes, and a place is reached by drawing
so many words. An offset is four times that number, for CUDA's are multiples of 4. Places that are not to overlap, as
those of a DTensor's shards, are on streams of their own; so is one that a real GPU reached and that is too far to draw.
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
# So many of the last places are remembered; the Twister's state of each takes 5 kB.
_MOST_PLACES = 100
_places: dict[tuple[int, int], torch.Tensor] = {}
# An offset below _NEAR counts the words of the seed's own stream. With _OURS it has 24 bits for the number of a stream
# and 38 for the words on it; any other is a real GPU's.
_NEAR, _OURS, _STREAM, _STREAMS = 2**30, 2**62, 38, 2**24
# The Twister's state in words of 8 bytes (aten/src/ATen/CPUGeneratorImpl.cpp, CPUGeneratorImplStateLegacy): the seed,
# what is left of the block, the next word in it, the block of 624; then normal numbers kept for the next call.
_NEXT, _BLOCK, _NORMALS, _WORDS = 2, 3, 627, 624
_LOW = 2**24  # random_ draws a word for each number below this
_FAR = 2**31  # words after which a state is not looked for any more


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
        """Make the generators, while torch is as it really is; once.

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

    @contextmanager
    def draw_by_default_generator(self, gpu: Gpu, *, normals: bool = True) -> Iterator[None]:
        """Inside, torch's default generator continues where that of ``gpu`` stands.

        normals   whether normal numbers are drawn, of which the CPU may keep one for the next call

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
            default.set_state(RealGenerator.get_state(mine))
            try:
                yield
            finally:
                self._lent = outer
                after = default.get_state()
                RealGenerator.set_state(mine, _without_normals(after) if normals else after)
                default.set_state(before)

    def drawing_generator(self, gpu: Gpu) -> torch.Generator:
        """The generator that draws for ``gpu`` now: its own, or torch's default one in its place."""
        return self._default if self._lent is gpu else self.generators[gpu.index]


def _hash_numbers(*numbers: int) -> int:
    """Return 64 bits that depend on all bits of ``numbers``."""
    value = b"".join((number % 2**64).to_bytes(8, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _place_of(offset: int) -> tuple[int, int]:
    """Return the number of the stream, and the words on it."""
    if 0 <= offset < _NEAR:
        return 0, offset // 4
    if offset >= _OURS:
        return (offset >> _STREAM) % _STREAMS, offset % 2**_STREAM // 4
    return _stream_of(offset), 0


def _offset_of(stream: int, words: int) -> int:
    return 4 * words if not stream and 4 * words < _NEAR else _OURS + (stream << _STREAM) + 4 * words


def _stream_of(*numbers: int) -> int:
    """Return the number of the stream that depends on ``numbers``."""
    return 1 + _hash_numbers(*numbers) % (_STREAMS - 1)


@contextmanager
def _disable_modes() -> Iterator[None]:
    """Inside, no mode sees operations on tensors."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def _without_normals(twister: torch.Tensor) -> torch.Tensor:
    with _disable_modes():
        twister.view(torch.int64)[_NORMALS:].zero_()
    return twister


def _draw(generator: torch.Generator, words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int64).random_(0, _LOW, generator=generator)


def _state_at(seed: int, offset: int) -> torch.Tensor:
    """Return the Twister's state at a place."""
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
    """Return how many words a Twister gives from the state ``first`` to ``second``; None if it never gets there."""
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
    ):  # what the Twister does to a word
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


# torch.Generator says for which device it was made, in C (torch/csrc/Generator.cpp), and cannot be told otherwise: the
# class that stands for it makes one on the device that really draws, and remembers the GPU.


class _AnyGenerator(type(RealGenerator)):  # type: ignore[misc]  # torch says which metaclass
    """Generators that were made without a machine are ``torch.Generator`` objects too."""

    def __instancecheck__(cls, generator: object) -> bool:
        return isinstance(generator, RealGenerator)


class Generator(RealGenerator, metaclass=_AnyGenerator):
    """Stands for ``torch.Generator``: one that can be made for a simulated GPU."""

    __module__, __qualname__ = RealGenerator.__module__, RealGenerator.__qualname__

    _labkit_seen: tuple[torch.Tensor, int] | None

    def __new__(cls, device: Any = "cpu", gpu: Gpu | None = None) -> Any:
        machine = machine_in_use()
        if gpu is None and machine is not None:
            gpu = machine.resolve(device)
        make: Any = RealGenerator.__new__
        made = make(cls, "cpu" if gpu is not None else device)
        # Where it was seen last: the Twister's state there, and the offset; None: at its seed.
        made._labkit_gpu, made._labkit_seen = gpu, None
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

    def manual_seed(self, seed: int) -> Generator:
        self._labkit_seen = None
        return super().manual_seed(seed)  # type: ignore[return-value]  # itself

    def seed(self) -> int:
        self._labkit_seen = None
        return super().seed()

    def get_state(self) -> torch.Tensor:
        """16 bytes for a GPU's, as CUDA gives: the seed and the offset."""
        return self.as_cuda(super().get_state())

    def set_state(self, state: torch.Tensor) -> Generator:
        """Take a state of 16 bytes for a GPU's, one of a real GPU too; of 8: the seed alone."""
        return super().set_state(self.as_twister(state))  # type: ignore[return-value]  # itself

    def as_cuda(self, twister: torch.Tensor) -> torch.Tensor:
        """Return the state of 16 bytes for the Twister's in which this generator, or another in its place, now is."""
        if not self._counts():
            return twister
        with _disable_modes():
            seed = int(twister.view(torch.int64)[0])
            if self._labkit_seen is None:
                known = (at for (_, at), there in _places.items() if torch.equal(there, twister))
                offset = next(known, None)
                first = RealGenerator().manual_seed(seed).get_state()
                self._labkit_seen = (first, 0) if offset is None else (twister, offset)
            before, offset = self._labkit_seen
            words = _words_between(before, twister)
            if words is None:  # set by somebody else
                offset = _offset_of(_stream_of(*twister.view(torch.int64).tolist()), 0)
            elif words:
                stream, passed = _place_of(offset)
                offset = _offset_of(stream, passed + words)
            self._labkit_seen = twister, offset
            _remember(seed, offset, twister)
            return torch.tensor((seed - 2**64 if seed >= 2**63 else seed, offset)).view(torch.uint8)

    def as_twister(self, state: torch.Tensor) -> torch.Tensor:
        """Return the Twister's state for one of 16 bytes, at which this generator is from now on."""
        if not self._counts():
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
        """Return ``state`` as ``offset`` further: CUDA adds it, the Twister goes to another stream for each offset."""
        state = state.clone()
        seed, before = state.view(torch.int64).tolist()
        if offset and self._counts():
            before, offset = _offset_of(_stream_of(seed, before, offset), 0), 0
        state.view(torch.int64)[1] = before + offset
        return state

    def get_offset(self) -> int:
        return int(self.get_state().view(torch.int64)[1]) if self._counts() else super().get_offset()

    def set_offset(self, offset: int) -> Generator:
        if not self._counts():
            return super().set_offset(offset)  # type: ignore[return-value]  # itself
        state = self.get_state()
        state.view(torch.int64)[1] = offset
        return self.set_state(state)

    def forget_normals(self) -> None:
        """Drop the normal number that the CPU keeps for the next call: CUDA keeps none, and a state has no room."""
        if self._counts():
            super().set_state(_without_normals(super().get_state()))

    def _counts(self) -> bool:
        """Whether it is a CPU's generator that stands for a GPU's, which has an offset."""
        return self._labkit_gpu is not None and _real_device(self).type == "cpu"  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        made, _, state = super().__reduce__()  # whose device is the one that really draws
        if self._counts():
            state = state[0], self.get_offset(), self.get_state()
        return made, (self.device,), state

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        if self._counts():
            self.set_state(state[2])
        else:
            super().__setstate__(state)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Generators that can be made for a simulated GPU, and the machine's own."""
    for owner in (torch, torch._C):
        yield Patch(owner, "Generator", Generator)
    yield Patch(torch.cuda, "default_generators", machine.random.generators)
