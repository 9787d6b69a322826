"""Whether a replica, and another GPU, compute what the model does on the source GPU; nothing is cut there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...base.tree import tensors
from ..errors import is_mix, line_of, short_text, user_line, words
from ..findings import failures, inputs, modules
from ..findings.kind import listed
from ..references import reference
from ..result import Finding
from ..runs import Runs
from ..state import unregistered_tensors
from .probe import probe


@probe(modules.REPLICA_PARAMETERS, modules.REPLICA_WEIGHTS, modules.DEVICE_DEPENDENT, asked="each")
def replicas(runs: Runs) -> Iterator[Finding]:
    """Runs the whole batch in a replica on the source GPU, and in the model itself on the next; compares the outputs.

    Asked only where n GPUs fail or differ. A replica that asks for what only later GPUs lack is not seen.
    """
    if not runs.unlike or runs.random:
        return
    lines: list[str] = []
    try:
        with runs.quiet():
            replica = nn.parallel.replicate(runs.fresh(), [0])[0]
            lines = _lines_that_ask_for_parameters(replica)
            found = tensors(runs.inputs.of(replica), "output")
    except Exception as error:
        if "modified by an inplace" in words(error) or "modified inplace" in words(error):
            yield modules.REPLICA_WEIGHTS.of(error)
        elif not is_mix(error) and lines:
            yield modules.REPLICA_PARAMETERS(line_of(error), outcome=modules.asked(short_text(error)))
        return
    if not runs.all_same(found):
        yield modules.REPLICA_PARAMETERS(lines[0] if lines else "", outcome=modules.asked(None))
        return
    other = runs.fresh("cuda:1")
    try:
        with runs.quiet(), torch.cuda.device(1):
            there = tensors(runs.inputs.moved("cuda:1").of(other), "output")
    except Exception:
        return  # a device that forward names: said elsewhere
    if not runs.all_same(there):
        yield modules.DEVICE_DEPENDENT()


@probe(inputs.ROWS_REFER, asked="each")
def references(runs: Runs) -> Iterator[Finding]:
    """Runs the model on one GPU with rows in another order, or some of them; compares that with the whole result.

    Asked only where n GPUs fail or differ, and an input of whole numbers could be places in another one. What refers
    to rows of the model's own tables is not seen.
    """
    if not runs.unlike or runs.random:
        return
    if found := reference(runs.evaluated, runs.inputs, runs.one.outputs, runs.same):
        meaning = inputs.meaning(found.kind, found.of)
        yield inputs.ROWS_REFER(found.path, meaning=meaning, gpus=runs.gpus)


@probe(
    inputs.UNCUT_INPUT, modules.TENSOR_NOT_REGISTERED, failures.FIXED_DEVICE,
    explained_by=(references, replicas, modules.PARAMETER_NOT_REGISTERED, modules.MODULE_NOT_REGISTERED),
    asked="each",
)  # fmt: skip
def devices(runs: Runs) -> Iterator[Finding]:
    """Runs nothing new: where replicas mix devices, looks for what scatter and replicate left behind.

    Of a tensor that forward gets from elsewhere only the line where the devices met is known.
    """
    error = runs.many.error
    if error is None or not is_mix(error):
        return
    objects = runs.inputs.objects()
    # No parameters, which would have explained the error, and nothing that is not on a GPU.
    left = [name for name in unregistered_tensors(runs.subject.model) if name not in runs.subject.staying]
    if objects:
        yield inputs.UNCUT_INPUT(listed(objects))
    for where in left:
        yield modules.TENSOR_NOT_REGISTERED(where)
    if not objects and not left:
        yield failures.FIXED_DEVICE.of(error)


def _lines_that_ask_for_parameters(replica: nn.Module) -> list[str]:
    """Fills with the lines of the user's code that ask ``replica`` or its children for their parameters."""
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
