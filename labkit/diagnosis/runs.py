"""What was run: the model on one GPU and, wrapped in DataParallel, on all of them; each once, for all probes."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..base.language import say
from ..base.tree import mapped, tensors
from ..plans.split import Split, split
from .axes import batch_of
from .compare import least_precise, same
from .findings.kind import Kind, gap_text
from .inputs import ModelInputs
from .result import Finding, GpuMemory
from .state import move_unregistered
from .subject import Subject

if TYPE_CHECKING:
    from .probes.probe import Probe

# The GPU from which DataParallel replicates: device_ids[0].
SOURCE = "cuda:0"


@dataclass
class Outcome:
    """What one run gave: its outputs, or the error that it raised.

    tensors  those among the outputs, by the way to each: ``output[1]['mask']``.
    random   whether another seed gives other outputs.
    least    the least precise type that the outputs were computed in.
    """

    outputs: Any = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    error: Exception | None = None
    random: bool = False
    least: torch.dtype = torch.float64


class Runs:
    """The record of a check-up that its probes share.

    inputs      on the source GPU.
    batch       how many rows they have: by DataParallel's reckoning, until a probe finds the true layout.
    findings    what was found so far, in the order of the probes.
    names       the names of the findings, and of the probes that made them.
    compared    what was compared between 1 and n GPUs, as lines of text.
    memory      of each GPU during a training step, once it was measured.
    """

    def __init__(
        self, subject: Subject, gpus: int, loss: Callable[[Any], Any] | None, capacity: int | None
    ) -> None:
        self.subject, self.gpus, self.loss, self.capacity = subject, gpus, loss, capacity
        self.ids = list(range(gpus))
        self.inputs = subject.inputs.moved(SOURCE)
        self.batch = batch_of(self.inputs)
        self.findings: list[Finding] = []
        self.names: set[str] = set()
        self.compared: list[str] = []
        self.memory: tuple[GpuMemory, ...] = ()

    @property
    def plan(self) -> Split:
        """Who gets which rows."""
        return split(self.batch, self.gpus)

    @property
    def trains(self) -> bool:
        """Whether the model has anything to train."""
        return any(parameter.requires_grad for parameter in self.subject.model.parameters())

    def has(self, *what: Kind | Probe) -> bool:
        """Whether one of these kinds was found, or one of these probes has found something."""
        return not self.names.isdisjoint(one.name for one in what)

    def add(self, finding: Finding, probe: Probe) -> None:
        """Note what ``probe`` has found."""
        self.names |= {finding.name, probe.name}
        if finding not in self.findings:
            self.findings.append(finding)

    def fresh(self, training: bool, device: str = SOURCE) -> nn.Module:
        """A copy of the model on one GPU, in training or eval mode."""
        model = copy.deepcopy(self.subject.model).to(device)
        # What the model holds without registering it: where its owner would have put it.
        move_unregistered(model, device)
        return model.train(training)

    def evaluated(self, inputs: ModelInputs, seed: int = 0) -> Any:
        """What the model makes of ``inputs`` in eval mode, on one GPU."""
        # With gradients on, as in training: forward may itself call autograd.
        with quiet(seed):
            return inputs.of(self.fresh(training=False))

    @cached_property
    def one(self) -> Outcome:
        """The model in eval mode on one GPU."""
        try:
            if self.subject.lazy:
                self._materialise()
            whole = self.evaluated(self.inputs)
            again = tensors(self.evaluated(self.inputs, seed=1), "output")
            found = tensors(whole, "output")
        except Exception as error:
            return Outcome(error=error)
        least = least_precise((*found.values(), *self.inputs.tensors().values()))
        random = found.keys() != again.keys() or not all(same(found[k], again[k], least) for k in found)
        with suppress(Exception):  # a container of a class of its own keeps its graph
            whole = mapped(whole, lambda path, tensor: tensor.detach())
        return Outcome(whole, tensors(whole, "output"), random=random, least=least)

    def _materialise(self) -> None:
        host = self.subject.model
        with quiet(0), torch.no_grad():
            self.inputs.of(host.to(SOURCE).eval())
        host.to("cpu").train(self.subject.training)

    @cached_property
    def many(self) -> Outcome:
        """The model in eval mode in ``nn.DataParallel`` on all GPUs. Of its outputs only the tensors are kept."""
        wrapped = nn.DataParallel(self.fresh(training=False), self.ids)
        try:
            with quiet(0):
                outputs = self.inputs.of(wrapped)
        except Exception as error:
            return Outcome(error=error)
        return Outcome(None, {path: one.detach() for path, one in tensors(outputs, "output").items()})

    @cached_property
    def agree(self) -> bool:
        """Whether one and n GPUs give the same."""
        return self.many.error is None and self.all_same(self.many.tensors)

    @property
    def unlike(self) -> bool:
        """Whether n GPUs fail, or give something else that is not random: there is something to explain."""
        return self.many.error is not None or not (self.agree or self.one.random)

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Whether two results of the model are the same up to the rounding of the types it computes in."""
        return same(one, other, self.one.least)

    def all_same(self, found: dict[str, Tensor]) -> bool:
        """Whether ``found`` are the outputs that one GPU gives."""
        expected = self.one.tensors
        return expected.keys() == found.keys() and all(
            self.same(expected[path], found[path]) for path in expected
        )

    def step(self, model: nn.Module) -> Tensor | None:
        """One forward and backward; the loss, or None if the outputs have no gradient."""
        with quiet(0):
            outputs = self.inputs.of(model)
            value: Tensor | None
            if self.loss is None:
                value = _weighted_sum(outputs)
            else:
                value = self.loss(mapped(outputs, lambda path, tensor: tensor.to(self.subject.inputs_at)))
                if not isinstance(value, Tensor):
                    raise TypeError(f"loss must return a tensor of one number, it returned {value!r}")
            if value is None or not value.requires_grad:
                return None
            (value if value.dim() == 0 else value.mean()).backward()
            return value.detach()

    def say_compared(self, what: str, gap: float, agree: bool) -> None:
        """Note that ``what`` was compared between 1 and n GPUs."""
        self.compared.append(
            say(
                en=f"{what}: the same on 1 and on {self.gpus} GPUs, up to rounding",
                zh=f"{what}：1 块 GPU 与 {self.gpus} 块 GPU 一致（舍入误差之内）",
            )
            if agree
            else say(
                en=f"{what}: {gap_text(gap)} between 1 and {self.gpus} GPUs",
                zh=f"{what}：1 块与 {self.gpus} 块 GPU 之间{gap_text(gap)}",
            )
        )


@contextmanager
def quiet(seed: int) -> Iterator[None]:
    """Runs of the model start from the same random state; what they print and warn of is no news here."""
    torch.manual_seed(seed)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _weighted_sum(outputs: Any) -> Tensor | None:
    """Stands for a loss: every output value with a fixed weight of its own, so that none can hide."""
    total = None
    for tensor in tensors(outputs, "output").values():
        if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.requires_grad:
            continue
        values = tensor.reshape(-1).abs() if tensor.is_complex() else tensor.reshape(-1)
        weights = torch.linspace(0.5, 1.5, max(tensor.numel(), 1)).to(tensor.device, tensor.real.dtype)
        part = (values * weights[: tensor.numel()]).sum().float()
        total = part if total is None else total + part
    return total
