"""Run the model on one GPU and, wrapped in DataParallel, on all GPUs, in one mode, and compare the results."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import wrong
from labkit.base.tree import map_tensors, output_name, tensors

from .deep_copy import deep_copy
from .inputs import ModelInputs, open_containers
from .random_draws import Draws, UnchangedDraws, python_state, seed_python
from .rounding import difference, is_number, lowest_precision, same
from .subject import Subject

# The GPU from which DataParallel replicates: device_ids[0].
SOURCE = "cuda:0"

# A function from a vector to a number: torch.mean or torch.sum.
Reduction = Callable[[Tensor], Tensor]
Loss = Callable[[Any], Any]

# Two numbers with a smaller relative difference differ by rounding only.
_SURE = 1e-6


@dataclass
class Outcome:
    """Outputs or error of one run.

    outputs  detached.
    tensors  the tensors in the outputs by path: ``output[1]['mask']``.
    least    the least precise dtype in the computation of the outputs.
    model    the copy that ran.
    live     the outputs with their history, until a backward uses it.
    replaced names of parameters and buffers that forward replaced by new tensors.
    """

    outputs: Any = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    error: Exception | None = None
    least: torch.dtype = torch.float64
    model: Any = None
    live: Any = None
    replaced: frozenset[str] = frozenset()


class Comparison:
    """The model in one mode on 1 and on n GPUs.

    training  False: all modules in eval mode. True: each module in the user's mode, except BatchNorm, which uses
              its running statistics: statistics of the batch differ on n GPUs by design.
    draws     replaces random numbers in all runs.
    random    whether outputs are still random, so that only their shapes can be compared.
    """

    def __init__(self, subject: Subject, ids: list[int], loss: Loss | None, training: bool) -> None:
        self.subject, self.ids, self.loss, self.training = subject, ids, loss, training
        self.inputs = subject.inputs.move_to(SOURCE)
        self.draws = Draws()
        self.random = self.drew_python = False

    def copy_model(self, device: str = SOURCE) -> nn.Module:
        """Return a copy of the model on one GPU, in the compared mode."""
        model = self.subject.copied_to(device)
        if not self.training:
            model.eval()
        for _, norm in batch_norms(model):
            norm.eval()
        return self.draws.replace_draws_in_replicas(model)

    @contextmanager
    def comparable_run(self, seed: int = 0) -> Iterator[None]:
        """Enter :func:`reproducible_run`; also replace random draws, and restore outer variables afterwards."""
        try:
            with reproducible_run(seed), self.draws.replace_draws():
                yield
        finally:
            self.subject.outside.restore()

    def evaluate(self, inputs: ModelInputs, seed: int = 0) -> Any:
        """Run the model on ``inputs`` on one GPU."""
        # Keep gradients on, as in training: forward may itself call autograd.
        with self.comparable_run(seed):
            return open_containers(inputs.call(self.copy_model()))

    def outputs_of(self, make_inputs: Callable[[], ModelInputs], seed: int = 0) -> dict[str, Tensor] | None:
        """Return the outputs on one GPU for other inputs, by path; None if the model fails or returns other paths."""
        try:
            found = tensors(self.evaluate(make_inputs(), seed), output_name())
        except Exception:
            return None
        return found if found.keys() == self.one.tensors.keys() else None

    @cached_property
    def in_double(self) -> Comparison:
        """The same comparison in double precision, for decisions that rounding would blur in single precision."""
        subject = copy.copy(self.subject)
        subject.model = deep_copy(subject.model).double()
        subject.inputs = subject.inputs.replace_tensors(
            lambda _, one: one.double() if one.is_floating_point() else one
        )
        other = Comparison(subject, self.ids, self.loss, self.training)
        other.draws = self.draws
        return other

    @cached_property
    def one(self) -> Outcome:
        """The model on one GPU."""
        return self._run(lambda model: model)

    @cached_property
    def many(self) -> Outcome:
        """The model in ``nn.DataParallel`` on all GPUs."""
        return self._run(lambda model: self.subject.wrap_in_parallel(model, self.ids))

    def _run(self, wrapped: Callable[[nn.Module], Callable[..., Any]]) -> Outcome:
        try:
            if self.subject.lazy:
                self._materialise()
            model = self.copy_model()
            before = dict(_named_tensors(model))
            with self.comparable_run():
                before_draws = python_state()
                live = self.inputs.call(wrapped(model))
                self.drew_python |= python_state() != before_draws
            outputs = open_containers(live)
            found = tensors(outputs, output_name())
        except Exception as error:
            return Outcome(error=error)
        with suppress(Exception):  # (some containers cannot be rebuilt; tensors keep their history then)
            outputs = map_tensors(outputs, lambda path, tensor: tensor.detach())
        least = lowest_precision((*found.values(), *self.inputs.tensors().values()))
        ended = {path: tensor.detach() for path, tensor in found.items()}
        replaced = {name for name, tensor in _named_tensors(model) if before.get(name) is not tensor}
        return Outcome(outputs, ended, None, least, model, live, frozenset(replaced))

    def _materialise(self) -> None:
        host = self.subject.model
        modes = {module: module.training for module in host.modules()}
        with reproducible_run(0), torch.no_grad():
            self.inputs.call(host.to(SOURCE).eval())
        host.to("cpu")
        for module, training in modes.items():
            module.training = training
        self.subject.lazy = False

    @cached_property
    def agree(self) -> bool:
        """Whether 1 and n GPUs give the same values, or the same shapes if values are random."""
        if self._agree():
            return True
        if self.draws.drew and not self.draws.constant:
            # The batch may be the last dimension of a draw, so that rows got different values.
            self.draws = Draws(constant=True)
            del self.one, self.many
            if self.one.error is not None or self._agree():
                return self.one.error is None
        self.random = self._is_random()
        return self._agree()

    @cached_property
    def chance(self) -> str:
        """A fault of the model's random numbers that replaced draws hide.

        "sizes": random numbers decide the size of an output, so that pieces do not fit together. "repeated": forward
        seeds them, so that every replica draws the numbers that one GPU draws for the first rows. "": no fault.
        """
        if not (self.draws.drew or self.drew_python) or self.random:
            return ""
        plain = Comparison(self.subject, self.ids, self.loss, self.training)
        plain.draws = UnchangedDraws()
        found = []
        try:
            model = plain.copy_model()
            for seed in (1, 2, 3):
                with plain.comparable_run(seed):
                    found.append(tensors(open_containers(self.inputs.call(model)), output_name()))
        except Exception:
            return ""
        dim = self.subject.dim
        kept = [
            {path: [*one.shape[:dim], *one.shape[dim + 1 :]] for path, one in run.items()} for run in found
        ]
        if any(one != kept[0] for one in kept):
            return "sizes"
        seeded = plain.one.error is None and all(map(plain.all_same, found))
        return "repeated" if seeded and plain.many.error is None and not plain._agree() else ""

    def _agree(self) -> bool:
        return self.many.error is None and self.all_same(self.many.tensors)

    def _is_random(self) -> bool:
        """Return whether a second run gives other values, by a clock or random numbers not from torch."""
        again = self.outputs_of(lambda: self.inputs, seed=1)
        return again is None or not self.all_same(again)

    @cached_property
    def seeds_itself(self) -> bool:
        """Whether forward seeds Python or numpy: after a run from any seed, their state is the same."""
        if not self.drew_python:
            return False
        ends = []
        for seed in (1, 2):
            self.evaluate(self.inputs, seed)
            ends.append(python_state())
        return any(one is not None and one == other for one, other in zip(*ends, strict=True))

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Return whether two results agree up to rounding in the least precise dtype of the model."""
        if self.random:
            return one.shape == other.shape and one.dtype == other.dtype
        return same(one, other, self.one.least)

    def all_same(self, found: dict[str, Tensor]) -> bool:
        """Return whether ``found`` agrees with the outputs on one GPU."""
        whole = self.one.tensors
        alike = (self.same(one, found[path]) for path, one in whole.items())
        return whole.keys() == found.keys() and all(alike)

    @cached_property
    def reductions(self) -> dict[str, Reduction] | None:
        """The reduction from the vector on n GPUs to each number on one GPU; None if other outputs differ too."""
        if self.many.error is not None or self.one.tensors.keys() != self.many.tensors.keys():
            return None
        found: dict[str, Reduction] = {}
        for path, one in self.one.tensors.items():
            many = self.many.tensors[path]
            if self.same(one, many):
                continue
            if not is_number(one) or many.dim() != 1:
                return None
            if ways := self.find_reductions(path):
                found[path] = ways[0]
            elif self.loss is None:  # (the user's own loss may reduce the vector correctly)
                return None
        return found

    def find_reductions(self, path: str) -> list[Reduction]:
        """Return the reductions, mean or sum, that turn the vector on n GPUs into the number ``path`` on one GPU.

        In an untrained model every row has about the same loss, so that biased means agree to four digits. Decide such
        cases in double precision.
        """
        one, many = self.one.tensors[path].reshape(()), self.many.tensors[path]
        reduced: list[Reduction] = [torch.mean, torch.sum]
        if not (one.is_floating_point() or one.is_complex()):
            reduced = [torch.sum]
        found = [way for way in reduced if self.same(one, way(many).to(one.dtype))]
        if not found or not one.is_floating_point() or self.random:
            return found
        if difference(one, found[0](many)) <= _SURE:
            return found
        precise = self.in_double
        if path not in precise.one.tensors or path not in precise.many.tensors:
            return found
        one, many = precise.one.tensors[path].reshape(()), precise.many.tensors[path]
        return [way for way in found if difference(one.double(), way(many.double())) <= _SURE]

    @cached_property
    def pieces(self) -> Outcome:
        """The outcome of the pieces, run one after the other on a single GPU."""
        return self._run(lambda model: partial(self._in_pieces, model))

    def _in_pieces(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given, dim, found = ModelInputs(args, kwargs), self.subject.dim, []
        cut = {path: one.chunk(len(self.ids), dim) for path, one in given.tensors().items()}
        for at in range(min(map(len, cut.values()))):
            part = given.replace_tensors(lambda path, _, at=at: cut[path][at])  # type: ignore[misc]
            found.append(open_containers(model(*part.args, **part.kwargs)))
        parts = [tensors(output) for output in found]
        return map_tensors(found[0], lambda path, _: torch.cat([part[path] for part in parts], dim))

    def backward(self, outcome: Outcome) -> Tensor | None:
        """Run backward once from the outputs of a run and return the loss; None if the outputs have no gradient."""
        live, outcome.live = outcome.live, None
        with self.comparable_run():
            return loss_of(live, self.loss, self.subject, self.reductions or {})


def loss_of(
    outputs: Any, loss: Loss | None, subject: Subject, reductions: dict[str, Reduction]
) -> Tensor | None:
    """Compute the loss, run backward and return the loss; None if the outputs have no gradient."""
    if loss is None:
        value: Any = _weighted_sum(outputs, reductions)
    else:
        value = loss(map_tensors(outputs, lambda path, tensor: tensor.to(subject.inputs_at)))
        if not isinstance(value, Tensor):
            raise wrong(
                TypeError,
                en=f"loss must return a tensor of one number, but it returned {value!r}",
                zh=f"loss 必须返回只含一个数的张量，现在返回的是 {value!r}",
            )
        if not is_number(value):
            raise wrong(
                en=f"loss must return one number, but it returned a tensor of shape {list(value.shape)}",
                zh=f"loss 必须返回一个数，现在返回的张量形状是 {list(value.shape)}",
            )
    if value is None or not value.requires_grad:
        return None
    value.reshape(()).backward()
    number: Tensor = value.detach().reshape(())
    return number


def _weighted_sum(outputs: Any, reductions: dict[str, Reduction]) -> Tensor | None:
    """Return a substitute for a loss: the sum of all output values with different weights, so that no error cancels.

    If forward returns its loss, a number that needs a reduction, use this alone: the outputs would outweigh it.
    """
    total = None
    for path, tensor in tensors(open_containers(outputs), output_name()).items():
        if reductions and path not in reductions:
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.requires_grad:
            continue
        tensor = reductions[path](tensor) if path in reductions and tensor.numel() > 1 else tensor
        values = tensor.reshape(-1).abs() if tensor.is_complex() else tensor.reshape(-1)
        weights = torch.linspace(0.5, 1.5, max(tensor.numel(), 1)).to(tensor.device, tensor.real.dtype)
        part = (values * weights[: tensor.numel()]).sum().float()
        total = part if total is None else total + part
    return total


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def batch_norms(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (path, module) for all BatchNorm layers."""
    kind = nn.modules.batchnorm._BatchNorm
    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


@contextmanager
def reproducible_run(seed: int) -> Iterator[None]:
    """Seed all random generators, and hide prints and warnings inside."""
    # torch.manual_seed would format the whole stack for each device type that is missing, which is slow.
    torch.default_generator.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    seed_python(seed)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
