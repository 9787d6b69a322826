"""Probes of replicas: whether they, and the model on another GPU, give the same results for the whole batch."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labkit.base.tree import output_name, tensors, tensors_in

from ..attributes import everything_held, unregistered_tensors
from ..errors import is_mix, line_of, short_text, user_line, words
from ..findings import KINDS, PHRASES, list_some
from ..inputs import open_containers
from ..references import find_reference
from ..result import Finding
from ..runs import Runs


def check_replicas(runs: Runs) -> Iterator[Finding]:
    """Run the whole batch in a replica on the source GPU, and in the model itself on cuda:1; compare the outputs.

    Skip a model that gives the same on n GPUs. A fault that needs a third GPU is not found.
    """
    if runs.mode.agree or runs.mode.random:
        return
    lines: list[str] = []
    try:
        with runs.mode.comparable_run():
            replica = nn.parallel.replicate(runs.mode.copy_model(), [0])[0]
            lines = _lines_that_ask_for_parameters(replica)
            found = tensors(open_containers(runs.inputs.call(replica)), output_name())
    except Exception as error:
        if "modified by an inplace" in words(error) or "modified inplace" in words(error):
            yield KINDS["replica_weights"].at_error(error)
        elif not is_mix(error) and lines:
            outcome = PHRASES["replica_parameters.fails"](problem=short_text(error))
            yield KINDS["replica_parameters"](line_of(error), outcome=outcome)
        return
    if not runs.mode.all_same(found):
        outcome = PHRASES["replica_parameters.differs"]()
        yield KINDS["replica_parameters"]("".join(lines[:1]), outcome=outcome)
        return
    other = runs.mode.copy_model("cuda:1")
    try:
        with runs.mode.comparable_run(), torch.cuda.device(1):
            there = tensors(open_containers(runs.inputs.move_to("cuda:1").call(other)), output_name())
    except Exception:
        return  # forward names a device: check_devices reports it
    if not runs.mode.all_same(there):
        yield KINDS["device_dependent"]()


def check_references(runs: Runs) -> Iterator[Finding]:
    """Run the model on one GPU with rows reordered or left out, to find inputs that hold indices of rows.

    Skip a model that gives the same on n GPUs. Indices into tables of the model itself are not found.
    """
    if runs.mode.agree or runs.mode.random:
        return
    if found := find_reference(runs.mode):
        meaning = PHRASES[f"rows_refer.{found.kind}"](of=found.of)
        yield KINDS["rows_refer"](found.path, meaning=meaning, gpus=runs.gpus)


def check_devices(runs: Runs) -> Iterator[Finding]:
    """Run nothing new, if replicas mix devices: report the tensors that scatter and replicate did not move.

    For a tensor from outside the model only the line with the error is known.
    """
    error = runs.mode.many.error
    if error is None or not is_mix(error):
        return
    objects = runs.inputs.objects()
    # Unregistered parameters are reported before; tensors that stay on the CPU cause no such error.
    left = [name for name in unregistered_tensors(runs.subject.model) if name not in runs.subject.staying]
    if objects:
        yield KINDS["uncut_input"](list_some(objects))
    for where in left:
        yield KINDS["not_registered.tensor"](where)
    if not objects and not left:
        yield _run_replica_alone(runs) or KINDS["fixed_device"].at_error(error)


def _run_replica_alone(runs: Runs) -> Finding | None:
    """Return the finding if a replica on cuda:1 computes with a weight of the original model, which something kept, or
    if it fails only after another replica.
    """
    model, calls = runs.mode.copy_model(), _LastCall()
    try:
        with runs.mode.comparable_run():
            replica = nn.parallel.replicate(model, [0, 1])[1]
            with calls:
                runs.inputs.move_to("cuda:1").call(replica)
    except Exception as error:
        last = tensors_in(calls.arguments) if is_mix(error) else []
        used = {one.untyped_storage().data_ptr() for one in last if one.layout is torch.strided}
        for name, weight in model.named_parameters():
            if weight.numel() and weight.untyped_storage().data_ptr() in used:
                keepers = (pair for pair in everything_held(model) if _reaches(pair[1], weight))
                path, keeper = next(keepers, ("", None))
                if isinstance(keeper, (nn.Module, Tensor)):
                    return KINDS["not_registered.partner"](path, weight=name, problem=short_text(error))
                where = ", ".join(filter(None, (path, line_of(error))))
                return KINDS["fixed_device.kept"](where, weight=name, problem=short_text(error))
        return None
    # Alone it works, so a replica has met what another one left in an object that they share.
    shared = next((one for one in runs.findings if one.name == "shared_state"), None)
    mixed = runs.mode.many.error
    if shared is None or mixed is None:
        return None
    where = ", ".join(filter(None, (shared.where, line_of(mixed))))
    return KINDS["shared_state.device"](where, problem=short_text(mixed))


def _reaches(value: object, weight: Tensor, depth: int = 3) -> bool:
    """Return whether ``value`` is ``weight``, a module with ``weight``, or a function with a reference to either."""
    kept: list[object] = []
    if isinstance(value, nn.Module):
        return any(weight is one for one in value.parameters())
    if isinstance(value, partial):
        kept = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        kept = [value.__self__, value.__func__]
    elif isinstance(value, FunctionType):
        kept = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
    return value is weight or (depth > 0 and any(_reaches(one, weight, depth - 1) for one in kept))


class _LastCall(TorchFunctionMode):
    """Remembers the arguments of the last call of a torch function."""

    arguments: object = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.arguments = args, kwargs
        return func(*args, **(kwargs or {}))


def _lines_that_ask_for_parameters(replica: nn.Module) -> list[str]:
    """Return a list that the next forward fills with the lines of user code that ask ``replica`` for parameters."""
    lines: list[str] = []

    def noting(module: nn.Module, name: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            lines.append(user_line("".join(traceback.format_stack())))
            return getattr(type(module), name)(module, *args, **kwargs)

        return method

    for module in replica.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            for name in ("named_parameters", "state_dict"):
                module.__dict__[name] = noting(module, name)
    return lines
