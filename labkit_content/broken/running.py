"""Run a model as training would, on simulated GPUs, and return results, gradients and errors as plain data.

Nothing here knows the right values. So a grader can run :func:`observe` in the student's process and keep the
expected values elsewhere.
"""

from __future__ import annotations

import io
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.tree import map_tensors, tensors
from labkit_diagnose.errors import short_text, user_line
from simgpu import simulate


@dataclass(frozen=True)
class Case:
    """The batches and GPUs that a model is run on.

    gpus    how many; on one GPU it runs without a wrapper.
    rows    of each batch.
    calls   the inputs of each call, on the CPU. All but the last are in training mode.
    state   the initial weights and buffers; None: the model's own, from seed 0.
    order   how replicas take turns: None (device order) or all their numbers.
    """

    gpus: int
    rows: int
    calls: tuple[tuple[Any, ...], ...]
    state: dict[str, Tensor] | None = None
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelFailure:
    """The error that the class raised.

    step      "init", "load", "before", "scatter", "forward", "gather", "after" or "backward".
    words     the error in one line, with its type.
    replica   the replica (and GPU) that raised it, None outside of replicas.
    line      the place in the learner's own code: "the notebook, line 3, in forward"; "" if nowhere there.
    """

    step: str
    words: str
    replica: int | None = None
    line: str = ""


@dataclass
class Observed:
    """The results of a case.

    results     of each call, on the CPU, without their history.
    states      the state_dict after each call.
    gradients   of the parameters, by name, after a backward through all calls in training mode; None where
                there is none.
    busy        the GPUs on which each layer with weights has run, by its name; layers that never ran are missing.
    returned    what each replica returned in each call, by its GPU, on the CPU; a replica that failed is missing.
    names       the keys of its state_dict and their shapes, as made.
    overwritten whether a replica has replaced or removed what another replica of the same call has on its GPU in
                a dict or list that all share.
    """

    results: list[Any] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    busy: dict[str, set[int]] = field(default_factory=dict)
    returned: dict[int, list[Any]] = field(default_factory=dict)
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    overwritten: bool = False
    failure: ModelFailure | None = None


_OF_MODULES = frozenset(vars(nn.Module()))


class _Stop(Exception):
    """A step failed; its error is noted already."""


def observe(model: type[nn.Module], case: Case) -> Observed:
    """Make a ``model`` and run it on ``case``, on a simulated machine with the case's number of GPUs.

    ``model.before(*inputs)`` and ``model.after(output)``, where the class has them, run outside of the wrapper, on
    the model itself. Whatever the class raises is in ``failure``; random states are left as they were.
    """
    seen = Observed()
    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        simulate(case.gpus, order=case.order),
        _quiet(),
        suppress(_Stop),
    ):
        _run(model, case, seen)
    return seen


def _run(model_class: type[nn.Module], case: Case, seen: Observed) -> None:
    torch.manual_seed(0)
    with _step("init", seen):
        model = model_class()
        seen.names = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if case.state is not None:
        with _step("load", seen):
            model.load_state_dict(case.state)
    with _step("load", seen):
        model.to("cuda:0")
        _watch(model, seen.busy)
        kept: dict[str, Tensor] = {}
        model.register_forward_hook(
            lambda module, given, output: _note_replica(model, given, output, seen, kept)
        )
        wrapped = nn.DataParallel(model, list(range(case.gpus))) if case.gpus > 1 else model
    losses = []
    for number, given in enumerate(case.calls):
        model.train(number + 1 < len(case.calls))
        kept.clear()
        result = _call_model(model, wrapped, given, seen)
        if model.training:
            losses += [sum_weighted(result)]
        with _step("after", seen):
            seen.results.append(map_tensors(result, lambda path, tensor: tensor.detach().cpu()))
        seen.states.append({name: value.detach().cpu().clone() for name, value in model.state_dict().items()})
    found = [loss for loss in losses if loss is not None and loss.requires_grad]
    with _step("backward", seen):
        if found:
            torch.stack(found).sum().backward()
        seen.gradients = {
            name: None if p.grad is None else p.grad.cpu() for name, p in model.named_parameters()
        }


def _call_model(model: nn.Module, wrapped: nn.Module, given: tuple[Any, ...], seen: Observed) -> Any:
    inputs: Any = map_tensors(given, lambda path, tensor: tensor.to("cuda:0"))
    before, after = getattr(model, "before", None), getattr(model, "after", None)
    if before is not None:
        with _step("before", seen):
            inputs = before(*inputs)
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    with _step("forward", seen):
        output = wrapped(*inputs)
    if after is None:
        return output
    with _step("after", seen):
        return after(output)


@contextmanager
def _step(name: str, seen: Observed) -> Iterator[None]:
    """Note an error raised inside as the failure of this step."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the learner's own code
        text = "".join(traceback.format_exception(error))
        within = re.match(r"Caught \w+ in replica (\d+)", _words(error))
        if name == "forward" and not within:
            ours = re.findall(r"in (scatter_kwargs|gather)\b", text)
            name = {"scatter_kwargs": "scatter", "gather": "gather"}[ours[0]] if ours else name
        words = short_text(error) if isinstance(error, Exception) else type(error).__name__
        line = user_line(text)
        if Path(__file__).name in line:  # the call itself failed: the method takes other arguments
            line = ""
        seen.failure = ModelFailure(name, words, int(within[1]) if within else None, line)
        raise _Stop from None


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _watch(model: nn.Module, busy: dict[str, set[int]]) -> None:
    """Note the GPUs on which each layer with weights runs; replicas share the model's hooks."""

    def ran(name: str, output: Any) -> None:
        for tensor in tensors(output, "").values():
            if tensor.device.index is not None:
                busy.setdefault(name, set()).add(tensor.device.index)

    for name, module in model.named_modules():
        if name and module._parameters:
            module.register_forward_hook(lambda module, given, output, name=name: ran(name, output))


def _note_replica(model: nn.Module, given: Any, output: Any, seen: Observed, kept: dict[str, Tensor]) -> None:
    """Note what a replica returns, and whether it has overwritten what ``model`` ``kept`` after the one before."""
    devices = [tensor.device.index for tensor in tensors(given, "").values() if tensor.is_cuda]
    if not devices:
        return
    result = map_tensors(output, lambda path, tensor: tensor.detach().cpu())
    seen.returned.setdefault(devices[0], []).append(result)
    own = {name: value for name, value in vars(model).items() if name not in _OF_MODULES}
    now = tensors({name: value for name, value in own.items() if isinstance(value, dict | list)}, "")
    seen.overwritten |= any(
        old.is_cuda and old.device.index != devices[0] and now.get(path) is not old
        for path, old in kept.items()
    )
    kept.clear()
    kept.update(now)


def sum_weighted(result: Any) -> Tensor | None:
    """Return a loss of the result: a sum in which each number has another weight, so that errors cannot cancel."""
    total: Tensor | None = None
    for tensor in tensors(result, "").values():
        if tensor.is_floating_point():
            values = tensor.cpu().reshape(-1)
            weights = torch.linspace(0.5, 1.5, len(values)) if tensor.dim() else torch.ones(1)
            part = (values * weights).sum()
            total = part if total is None else total + part
    return total


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the learner's prints and PyTorch's warnings, which the many runs would repeat."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def busy_gpus(rows: int, gpus: int) -> int:
    """Return the number of GPUs that get rows."""
    return -(-rows // -(-rows // gpus))
