"""Random numbers per simulated GPU: each has its own generator, as each real GPU has.

The numbers are those of the CPU generator with the same seed (or the backing GPU's); that they depend only on
the GPU's own seed, and leave the other devices' generators alone, is as on the real machine.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager

import torch
from torch import Tensor

from .gpu import Gpu
from .mode import HANDLERS, handles
from .placement import gpu_of, tensors_in

_SETTABLE = {
    torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial,
    torch.poisson, Tensor.bernoulli, Tensor.multinomial, Tensor.normal_, Tensor.uniform_, Tensor.random_,
    Tensor.bernoulli_, Tensor.exponential_, Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_,
}  # fmt: skip


class DeviceRandom:
    """The generators of a machine's GPUs."""

    def __init__(self, gpus) -> None:
        self._gpus = gpus
        self.generators: tuple[torch.Generator, ...] = ()
        self._default = torch.default_generator
        self._exchange = threading.RLock()

    def begin(self, backing: torch.device) -> None:
        """Make the generators, on the device that draws, while torch is as it really is; once."""
        if self.generators:
            return
        # torch.manual_seed before the machine existed would have seeded its GPUs too.
        seed = torch.initial_seed()
        self.generators = tuple(torch.Generator(device=backing) for _ in self._gpus)
        for generator in self.generators:
            generator.manual_seed(seed)
        if backing.type == "cuda":
            self._default = torch.cuda.default_generators[backing.index or 0]

    @contextmanager
    def drawing(self, func, gpu: Gpu | None, kwargs: dict):
        """The keywords for a call of ``func`` that draws on ``gpu``: its generator, unless one is given."""
        if gpu is None or func not in _SETTABLE or kwargs.get("generator") is not None:
            yield kwargs
        else:
            yield {**kwargs, "generator": self.generators[gpu.index]}

    @contextmanager
    def instead_of_default(self, gpu: Gpu):
        """Inside, torch's default generator continues where that of ``gpu`` stands."""
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
def _draw_with_generator(mode, func, args, kwargs):
    tensors = tensors_in(args, kwargs)
    gpu = gpu_of(tensors[0]) if tensors else None
    with mode.machine.random.drawing(func, gpu, kwargs) as kwargs:
        return mode.general(func, args, kwargs)


def _functions_that_draw():
    """Functions that draw from the default generator and take none."""
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
def _draw(mode, func, args, kwargs):
    tensors = tensors_in(args, kwargs)
    device = kwargs.get("device")
    gpu = mode.machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    if gpu is None:
        return mode.general(func, args, kwargs)
    with mode.machine.random.instead_of_default(gpu):
        return mode.general(func, args, kwargs)


def generator_class(machine_in_use):
    """A ``torch.Generator`` that can be made for a simulated GPU."""
    real = torch.Generator

    class Generator(real):
        def __new__(cls, device="cpu"):
            machine = machine_in_use()
            gpu = machine.resolve(device) if machine is not None else None
            made = real.__new__(cls, machine.backing if gpu is not None else device)
            made._labkit_gpu = gpu
            return made

        @property
        def device(self):
            return real.device.__get__(self) if self._labkit_gpu is None else self._labkit_gpu.device

    Generator.__qualname__ = "Generator"
    Generator.__module__ = real.__module__
    return Generator
