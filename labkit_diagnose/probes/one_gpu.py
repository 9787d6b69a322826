"""Probes of the model on one GPU: modules, errors, outputs, and state changed by forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from labkit.base.language import series
from labkit.base.tree import is_dataclass, leaves, output_name

from ..attributes import ModelState, unregistered_modules, unregistered_tensors
from ..comparison import batch_norms
from ..deep_copy import is_library
from ..errors import in_replica, is_beyond, is_mix, words
from ..findings import KINDS, list_some
from ..outer_variables import OuterVariables
from ..result import Finding
from ..runs import Runs

# BatchNorm's statistics over fewer values per channel and GPU are noise.
FEW = 16


def check_module(runs: Runs) -> Iterator[Finding]:
    """Run nothing: check the kinds, devices and attributes of modules.

    Parameters held only by a closure or a global variable are not found.
    """
    subject = runs.subject
    if subject.compiled:
        yield KINDS["compiled_model"](list_some(subject.compiled))
    if len(subject.places) > 1:
        yield KINDS["several_devices"](series(subject.places))
    if subject.wrapped:
        yield KINDS["nested_parallel"](list_some(subject.wrapped))
    for where, tensor in unregistered_tensors(subject.model).items():
        if isinstance(tensor, nn.Parameter):
            yield KINDS["not_registered.parameter"](where)
    if subject.lazy:
        yield KINDS["lazy_modules"]()


def check_forward(runs: Runs) -> Iterator[Finding]:
    """Run the model in eval mode on one GPU, and report an error."""
    if runs.mode.one.error is not None:
        yield _failure(runs, runs.mode.one.error)


def check_state(runs: Runs) -> Iterator[Finding]:
    """Run the model on one GPU in the user's mode; compare its state before and after, and count values per BatchNorm.

    A second run with other rows tells results from caches, which stay the same. A model with a cache then runs on n
    GPUs, to find out whether the cache works on one GPU only.

    Not found are in-place changes deeper than three containers, in-place changes of buffers (``check_kept_values``
    reports these), and changes outside the module, except variables of its hooks and other functions.
    """
    model = runs.as_given()
    outside, registered = OuterVariables(model), dict(model.named_parameters())
    before = ModelState(model, outside.values())
    used: list[str] = []
    for where, held in unregistered_modules(model).items():
        held.register_forward_pre_hook(lambda *_, where=where: used.append(where))
    norm_values = _count_norm_values(model)
    if (error := runs.error_of(model)) is not None:
        yield _failure(runs, error)
        return
    after = ModelState(model, outside.values())
    lost, changed = before.reassigned(after), before.changed(after)
    if made := [name for name, _ in model.named_parameters() if name not in registered]:
        yield KINDS["lazy_modules.made"](list_some(made))
    written = _find_written(runs, model, outside, after, changed)
    around, buffers = outside.values(), dict(model.named_buffers())
    if kept := outside.select_function_names([name for name in written if name in around]):
        yield KINDS["shared_state.function"](list_some(kept))
    mixed = runs.mode.many.error is not None and is_mix(runs.mode.many.error)
    if lost_then := [name for name in lost if name in written and not _is_internal(model, name)]:
        yield KINDS["attributes_lost"](list_some(lost_then))
    # DataParallel keeps in-place changes of the first replica's buffers; only a new tensor is lost.
    inside = [name for name in dict.fromkeys([*changed, *written]) if name not in {*lost, *kept, *buffers}]
    if shared := [name for name in inside if name in written or (mixed and name not in around)]:
        yield KINDS["shared_state"](list_some(shared))
    caches = [name for name in (*lost, *inside) if name not in written and name not in around]
    if (cached := [name for name in caches if after.holds_tensors(name)]) and not mixed:
        error = runs.error_of(runs.subject.wrap_in_parallel(model, runs.ids))
        if error is not None and is_mix(error):
            yield KINDS["cache_on_one_gpu"](list_some(cached))
    if used:
        yield KINDS["not_registered.module"](list_some(list(dict.fromkeys(used))))
    if norm_values and runs.batch:
        name, values = min(norm_values.items(), key=lambda pair: pair[1])
        rows = min(runs.plan.sizes)
        values = values * rows // runs.batch
        kind = KINDS["batch_norm.few"] if values < FEW else KINDS["batch_norm"]
        yield kind(name, rows=rows, batch=runs.batch, values=values)


def _find_written(
    runs: Runs, model: nn.Module, outside: OuterVariables, before: ModelState, changed: list[str]
) -> list[str]:
    """Return the attributes and outer variables whose contents depend on the rows, so that they are no caches.

    Return those that the first run ``changed`` if a second run cannot tell.
    """

    def first_row_only(path: str, tensor: Tensor) -> Tensor:
        dim = runs.subject.dim
        if tensor.shape[dim : dim + 1] != (runs.batch,) or tensor.layout is not torch.strided:
            return tensor
        return tensor.narrow(dim, 0, 1).expand_as(tensor).clone()

    given = runs.inputs.replace_tensors(first_row_only)
    others, inputs = given.tensors(), runs.inputs.scattered_tensors().items()
    if all(others[path] is tensor or torch.equal(others[path], tensor) for path, tensor in inputs):
        return changed  # all rows are equal
    if runs.error_of(model, given, seed=1) is not None:
        return changed
    return before.changed(ModelState(model, outside.values()))


def _is_internal(model: nn.Module, name: str) -> bool:
    """Return whether the attribute ``name`` is private to a library's module, so that its loss does no harm."""
    owner, _, attribute = name.rpartition(".")
    return attribute.startswith("_") and is_library(type(model.get_submodule(owner)))


def check_outputs(runs: Runs) -> Iterator[Finding]:
    """Run nothing new: report outputs that cannot be gathered; compare the tensors of 1 and n GPUs."""
    whole = runs.mode.one.outputs
    # Accept None: PyTorch's gather passes it through.
    kinds = [(path, type(leaf)) for path, leaf in leaves(whole, output_name())]
    odd = [f"{path} ({kind.__name__})" for path, kind in kinds if not issubclass(kind, (Tensor, type(None)))]
    if odd:
        yield KINDS["not_tensors"](series(odd[:4]), gpus=runs.gpus)
    elif is_dataclass(whole) and not isinstance(whole, dict):
        yield KINDS["dataclass_output"](type(whole).__name__)
    if runs.mode.agree and runs.mode.random:
        yield KINDS["random_outputs"]()
    if runs.mode.agree and runs.mode.chance == "sizes":
        yield KINDS["own_length.drawn"](output_name())
    elif runs.mode.agree and runs.mode.chance == "repeated":
        yield KINDS["outputs_differ.seeded"](output_name(), gpus=runs.gpus)
    elif runs.mode.agree:
        runs.say_outputs()


def is_explained(runs: Runs, error: Exception) -> bool:
    """Return whether a finding already explains ``error``."""
    if is_mix(error):
        return runs.has("not_registered")
    # Outputs that cannot be gathered explain no error in a replica.
    ungathered = not in_replica(error) and runs.has("not_tensors", "dataclass_output", "own_length")
    return ungathered or runs.has("uncut_input", "loss_fails")


def _failure(runs: Runs, error: Exception) -> Finding:
    """Return the finding for an error of forward on one GPU."""
    if is_beyond(error):
        return KINDS["not_simulated"].at_error(error)
    if _takes_names(runs.subject.model, runs.inputs.args):
        return KINDS["fails_on_one.of_names"].at_error(error)
    if "with arguments from the 'CUDA' backend" in words(error):
        return KINDS["fails_on_one.of_the_cpu"].at_error(error)
    return (KINDS["fixed_device.on_one"] if is_mix(error) else KINDS["fails_on_one"]).at_error(error)


def _count_norm_values(model: nn.Module) -> dict[str, int]:
    """Return a dict that the next forward fills with the values per channel of each BatchNorm in training mode."""
    counts: dict[str, int] = {}

    def count(name: str, module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        counts[name] = given[0].numel() // max(given[0].size(1), 1)

    for name, norm in batch_norms(model):
        # `check_layout` reports layers without running statistics, which are the same in both modes.
        if norm.running_mean is not None and norm.training:
            norm.register_forward_hook(partial(count, name))
    return counts


def _takes_names(model: nn.Module, args: tuple[Any, ...]) -> bool:
    """Return whether the only input is a dict of forward's parameters, as tokenizers and data collators return."""
    if len(args) != 1 or not isinstance(args[0], Mapping) or not args[0]:
        return False
    return args[0].keys() <= signature(model.forward).parameters.keys()
