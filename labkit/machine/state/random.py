"""Random numbers per simulated GPU: each has its own generator, as each real GPU has.

The numbers are those of the CPU generator with the same seed (or the backing GPU's); that they depend only on
the GPU's own seed, and leave the other devices' generators alone, is as on the real machine.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...base.patches import Patch
from ..handlers import HANDLERS, handles
from ..in_use import machine_in_use
from .gpu import Gpu
from .placement import gpu_of, tensors_in

if TYPE_CHECKING:
    from ..machine import Machine
    from ..ops.mode import MachineMode

# Functions that take a generator (at::Generator? in native_functions.yaml): they are given the GPU's own.
_SETTABLE = {
    torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial,
    torch.poisson, Tensor.bernoulli, Tensor.multinomial, Tensor.normal_, Tensor.uniform_, Tensor.random_,
    Tensor.bernoulli_, Tensor.exponential_, Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_,
}  # fmt: skip


_RealGenerator = torch.Generator
_real_device = _RealGenerator.device.__get__


class DeviceRandom:
    """The generators of a machine's GPUs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self.generators: tuple[torch.Generator, ...] = ()
        self._default = torch.default_generator
        self._exchange = threading.RLock()

    def begin(self, backing: torch.device) -> None:
        """Make the generators, on the device that draws, while torch is as it really is; once."""
        if self.generators:
            return
        # torch.manual_seed before the machine existed would have seeded its GPUs too (torch/random.py, manual_seed).
        seed = torch.initial_seed()
        self.generators = tuple(Generator(gpu=gpu) for gpu in self._gpus)
        for generator in self.generators:
            generator.manual_seed(seed)
        if backing.type == "cuda":
            self._default = torch.cuda.default_generators[backing.index or 0]

    @contextmanager
    def drawing(
        self, func: Callable[..., Any], gpu: Gpu | None, kwargs: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The keywords for a call of ``func`` that draws on ``gpu``: its generator, unless one is given."""
        if kwargs.get("generator") is not None:
            if gpu is not None or func in _SETTABLE:
                check_generator(kwargs["generator"], gpu)
            yield kwargs
        elif gpu is None or func not in _SETTABLE:
            yield kwargs
        else:
            yield {**kwargs, "generator": self.generators[gpu.index]}

    @contextmanager
    def instead_of_default(self, gpu: Gpu) -> Iterator[None]:
        """Inside, torch's default generator continues where that of ``gpu`` stands.

        The CPU's kernels ask for the default generator in C++ (aten/src/ATen/CPUGeneratorImpl.cpp,
        getDefaultCPUGenerator), which no patch reaches: its state is lent and taken back. It is the process's, so that
        one thread at a time may; a draw within a draw (an RNN's dropout) is the same thread's.
        """
        mine, default = self.generators[gpu.index], self._default
        with self._exchange:
            before = default.get_state()
            default.set_state(mine.get_state())
            try:
                yield
            finally:
                mine.set_state(default.get_state())
                default.set_state(before)


@handles(*(func for func in _SETTABLE if func not in HANDLERS))
def _draw_with_generator(
    mode: MachineMode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    tensors = tensors_in(args, kwargs)
    gpu = gpu_of(tensors[0]) if tensors else None
    with mode.machine.random.drawing(func, gpu, kwargs) as kwargs:
        return mode.general(func, args, kwargs)


def _functions_that_draw() -> Iterator[Callable[..., Any] | None]:
    """Functions that draw from the default generator and take none, or hand none on to what draws inside them."""
    F = torch.nn.functional
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
                 "rrelu", "rrelu_", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d",
                 "scaled_dot_product_attention", "multi_head_attention_forward"):  # fmt: skip
        yield getattr(F, name, None)
    for name in ("dropout", "dropout_", "native_dropout", "feature_dropout", "feature_dropout_",
                 "alpha_dropout", "alpha_dropout_", "feature_alpha_dropout",
                 "rrelu", "rrelu_", "rand_like", "randn_like",
                 "randint_like", "binomial", "lstm", "gru", "rnn_tanh", "rnn_relu",
                 "_standard_gamma", "_sample_dirichlet"):  # fmt: skip
        yield getattr(torch, name, None)
    for name, function in inspect.getmembers(torch.nn.init, inspect.isfunction):
        if name.endswith("_") and not name.startswith("_"):
            yield function


@handles(*(func for func in _functions_that_draw() if func not in HANDLERS))
def _draw(mode: MachineMode, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = tensors_in(args, kwargs)
    device = kwargs.get("device")
    gpu = mode.machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    check_generator(kwargs.get("generator"), gpu)
    if gpu is None:
        return mode.general(func, args, kwargs)
    with mode.machine.random.instead_of_default(gpu):
        return mode.general(func, args, kwargs)


class _AnyGenerator(type(_RealGenerator)):  # type: ignore[misc]  # torch says which metaclass
    """Generators that were made without a machine are ``torch.Generator`` objects too."""

    def __instancecheck__(cls, generator: object) -> bool:
        return isinstance(generator, _RealGenerator)


class Generator(_RealGenerator, metaclass=_AnyGenerator):
    """Stands for ``torch.Generator``: one that can be made for a simulated GPU."""

    __module__, __qualname__ = _RealGenerator.__module__, _RealGenerator.__qualname__

    def __new__(cls, device: Any = "cpu", gpu: Gpu | None = None) -> Any:
        machine = machine_in_use()
        if gpu is None and machine is not None:
            gpu = machine.resolve(device)
        make: Any = _RealGenerator.__new__
        made = make(cls, gpu.machine.backing if gpu is not None else device)
        made._labkit_gpu = gpu
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # nor can torch's own be set
        gpu: Gpu | None = self._labkit_gpu  # type: ignore[attr-defined]  # the machine's own
        return _real_device(self) if gpu is None else gpu.device

    def __reduce__(self) -> tuple[Any, ...]:
        made, _, state = super().__reduce__()
        return made, (self.device,), state


def check_generator(generator: object, gpu: Gpu | None) -> None:
    """Raise, as torch does, if ``generator`` is for the host and draws on a GPU, or the other way round."""
    if isinstance(generator, _RealGenerator) and (generator.device.type == "cpu") != (gpu is None):
        raise RuntimeError(
            f"Expected a '{'cpu' if gpu is None else 'cuda'}' device type for generator but found "
            f"'{generator.device.type}'"
        )


def patches(machine: Machine) -> Iterator[Patch]:
    """Generators that can be made for a simulated GPU, and the machine's own."""
    for owner in (torch, torch._C):
        yield Patch(owner, "Generator", Generator)
    yield Patch(torch.cuda, "default_generators", machine.random.generators)
