"""The model on one GPU and, wrapped in DataParallel, on all of them, in eval or in training mode: each run once."""

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

# What makes one number of a vector: torch.mean, torch.sum.
Reduction = Callable[[Tensor], Tensor]
Loss = Callable[[Any], Any]

# Numbers no further apart than this, in units of the larger, are one but for rounding.
_SURE = 1e-6


@dataclass
class Outcome:
    """The result of one run: its outputs, or the error that it raised.

    outputs  without their history.
    tensors  those among the outputs, by the way to each: ``output[1]['mask']``.
    least    the least precise type that the outputs were computed in.
    model    the copy that ran, and what it keeps after the run.
    live     the outputs with their history, until a backward has used it.
    replaced parameters and buffers of which forward has made others.
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

    training  False: everything in eval mode. True: each module in the mode in which it was given, but BatchNorm is
              held to its running statistics, since by its nature it computes something else on n GPUs.
    draws     how random numbers are drawn in all runs.
    random    whether outputs are random nevertheless, so that only their shapes can be compared.
    """

    def __init__(self, subject: Subject, ids: list[int], loss: Loss | None, training: bool) -> None:
        self.subject, self.ids, self.loss, self.training = subject, ids, loss, training
        self.inputs = subject.inputs.move_to(SOURCE)
        self.draws = Draws()
        self.random = self.drew_python = False

    def copy_model(self, device: str = SOURCE) -> nn.Module:
        """Return a copy of the model on one GPU, in this mode."""
        model = self.subject.copied_to(device)
        if not self.training:
            model.eval()
        for _, norm in batch_norms(model):
            norm.eval()
        return self.draws.replace_draws_in_replicas(model)

    @contextmanager
    def comparable_run(self, seed: int = 0) -> Iterator[None]:
        """Do as the function of this name; also draw random numbers alike, and put outer variables back."""
        try:
            with reproducible_run(seed), self.draws.replace_draws():
                yield
        finally:
            self.subject.outside.restore()

    def evaluate(self, inputs: ModelInputs, seed: int = 0) -> Any:
        """Run the model on ``inputs`` on one GPU."""
        # With gradients on, as in training: forward may itself call autograd.
        with self.comparable_run(seed):
            return open_containers(inputs.call(self.copy_model()))

    @cached_property
    def in_double(self) -> Comparison:
        """The same comparison in double precision, for decisions that rounding would make here."""
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
        with suppress(Exception):  # a container of a class of its own keeps its graph
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
        """Whether one and n GPUs give the same values; where values are random, the same shapes."""
        if self._agree():
            return True
        if self.draws.drew and not self.draws.constant:
            # Drawn for [..., batch], say: the sequence ran over the rows.
            self.draws = Draws(constant=True)
            del self.one, self.many
            if self.one.error is not None or self._agree():
                return self.one.error is None
        self.random = self._is_random()
        return self._agree()

    @cached_property
    def chance(self) -> str:
        """What random numbers do that are left as they are, where those made alike for every row hide it.

        "sizes": they say how large an output is, so that pieces do not fit together; "repeated": forward itself seeds
        them, so that every replica draws those that one GPU draws for the first rows. "" if they do neither.
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
        """Whether another run gives other values, by random numbers that are not torch's, or by a clock."""
        try:
            return not self.all_same(tensors(self.evaluate(self.inputs, seed=1), output_name()))
        except Exception:
            return True

    @cached_property
    def seeds_itself(self) -> bool:
        """Whether forward seeds Python's or numpy's random numbers: they end alike, however they begin."""
        if not self.drew_python:
            return False
        ends = []
        for seed in (1, 2):
            self.evaluate(self.inputs, seed)
            ends.append(python_state())
        return any(one is not None and one == other for one, other in zip(*ends, strict=True))

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Whether two results of the model are the same up to the rounding of the types it computes in."""
        if self.random:
            return one.shape == other.shape and one.dtype == other.dtype
        return same(one, other, self.one.least)

    def all_same(self, found: dict[str, Tensor]) -> bool:
        """Whether ``found`` are the outputs that one GPU gives."""
        whole = self.one.tensors
        alike = (self.same(one, found[path]) for path, one in whole.items())
        return whole.keys() == found.keys() and all(alike)

    @cached_property
    def reductions(self) -> dict[str, Reduction] | None:
        """Return the reductions of the vectors that numbers became on n GPUs; None if other outputs differ too."""
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
            elif self.loss is None:  # a loss of the user's own may know how
                return None
        return found

    def find_reductions(self, path: str) -> list[Reduction]:
        """Return which of mean and sum makes the number ``path`` again of the vector that it became on n GPUs.

        Before it is trained, a model loses as much by every row: means that are biased agree to four digits. What is
        so near, but no nearer than rounding explains, double precision decides.
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
        """The model on one GPU, given the pieces one after the other."""
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
        """Compute a run's loss, once, and leave gradients in the parameters; None if the outputs have no gradient."""
        live, outcome.live = outcome.live, None
        with self.comparable_run():
            return loss_of(live, self.loss, self.subject, self.reductions or {})


def loss_of(
    outputs: Any, loss: Loss | None, subject: Subject, reductions: dict[str, Reduction]
) -> Tensor | None:
    """Compute the loss and run its backward; None if the outputs have no gradient."""
    if loss is None:
        value: Any = _weighted_sum(outputs, reductions)
    else:
        value = loss(map_tensors(outputs, lambda path, tensor: tensor.to(subject.inputs_at)))
        if not isinstance(value, Tensor):
            raise wrong(
                TypeError,
                en=f"loss must return a tensor of one number, it returned {value!r}",
                zh=f"loss 必须返回只含一个数的张量，现在返回的是 {value!r}",
            )
        if not is_number(value):
            raise wrong(
                en=f"loss must return one number, it returned a tensor of shape {list(value.shape)}",
                zh=f"loss 必须返回一个数，现在返回的张量形状是 {list(value.shape)}",
            )
    if value is None or not value.requires_grad:
        return None
    value.reshape(()).backward()
    number: Tensor = value.detach().reshape(())
    return number


def _weighted_sum(outputs: Any, reductions: dict[str, Reduction]) -> Tensor | None:
    """Stand for a loss: add up all output values, each with a weight of its own, so that no difference is lost.

    Where forward computes the loss, a number among its outputs, that alone is it: beside the outputs it would hide.
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
    """Yield the BatchNorms of all sorts, with the way to each."""
    kind = nn.modules.batchnorm._BatchNorm
    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


@contextmanager
def reproducible_run(seed: int) -> Iterator[None]:
    """Start a run from the same random state as every other, and hide its prints and warnings."""
    # Not torch.manual_seed, which writes down the whole stack for each kind of device that is not there.
    torch.default_generator.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    seed_python(seed)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
