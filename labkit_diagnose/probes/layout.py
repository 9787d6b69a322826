"""Probes of the batch: its dimension in inputs and outputs, the number of rows, idle GPUs, unexplained errors."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch
from torch import Tensor, nn

from labkit.base.language import series
from labkit.plans.split import split

from ..batch_layout import Fit, Layout, Search
from ..comparison import batch_norms
from ..errors import is_beyond, short_text
from ..findings import KINDS, PHRASES, gap_text, list_some
from ..result import Finding
from ..rounding import difference, is_number
from ..runs import Runs
from .one_gpu import is_explained

# Names of findings about inputs with another batch dimension.
CUT = ("input_cut", "input_axis", "hidden_state_cut", "list_cut")


def check_layout(runs: Runs) -> Iterator[Finding]:
    """Run pieces on one GPU, cut as DataParallel does and along other dimensions; compare them with the whole result.

    Skip a model that gives the same on n GPUs. The search tries only the layouts nearest to DataParallel's, for one
    minute at most (see :mod:`labkit_diagnose.batch_layout`). If it finds another layout, set :attr:`Runs.batch` to the
    number of rows in this one.
    """
    if runs.mode.agree:
        return
    if not runs.inputs.scattered_tensors():
        yield KINDS["uncut_input"](list_some(runs.inputs.objects()))
        return
    expected, found = runs.mode.one.tensors, runs.mode.many.tensors
    search = Search(runs.mode)
    fits = search.fits()
    if pairs := [path for path, fit in fits.items() if fit.how == "pairs"]:
        one, outcome = expected[pairs[0]], _describe_glued(found.get(pairs[0]))
        yield KINDS["rows_compared"](list_some(pairs), shape=list(one.shape), gpus=runs.gpus, outcome=outcome)
    elif short := [path for path, fit in fits.items() if fit.how == "short"]:
        yield KINDS["own_length"](list_some(short))
    elif (other := search.layout(numbers=not fits)) and (findings := list(_report_layout(runs, other))):
        yield from findings
        return
    for path, fit in fits.items():
        yield from _check_output(runs, path, fit)
    if not fits and runs.mode.many.error is None:  # the model fails with a piece, but only on one GPU
        for path in (path for path in expected if path in found):
            one, many = expected[path], found[path]
            if _is_full_per_replica(runs, one, many):
                yield _report_lost_batch(path, one, many)
            elif not runs.mode.same(one, many) and not _is_difference_explained(runs):
                yield _report_difference(runs, path, one, many)


def _check_output(runs: Runs, path: str, fit: Fit) -> Iterator[Finding]:
    """Yield the finding for an output with this fit."""
    one, many = runs.mode.one.tensors[path], runs.mode.many.tensors.get(path)
    if fit.axis not in (None, runs.subject.dim):
        yield _report_moved_batch(runs, path, fit.axis)
    elif fit.axis is not None or fit.how in ("short", "pairs"):
        return
    elif is_number(one):
        # With the user's own loss, check_gradients compares the losses.
        if many is not None and runs.loss is None and not _is_difference_explained(runs):
            yield from _check_number(runs, path, one, many)
    elif fit.how == "uncut" and (objects := runs.inputs.objects()):
        yield KINDS["uncut_input"](list_some(objects))
    elif fit.how in ("uncut", "over_rows"):
        yield _report_lost_batch(path, one, many)
    elif many is not None and not runs.mode.same(one, many) and not _is_difference_explained(runs):
        yield _report_difference(runs, path, one, many)


def _is_difference_explained(runs: Runs) -> bool:
    """Return whether a finding already explains the failure or difference on n GPUs."""
    error = runs.mode.many.error
    return runs.has("check_replicas", "check_devices") or (error is not None and is_explained(runs, error))


def _report_layout(runs: Runs, found: Layout) -> Iterator[Finding]:
    """Yield the findings for a layout other than DataParallel's."""
    runs.batch, dim = found.batch, runs.subject.dim
    for path in found.lists:
        yield KINDS["list_cut"](path, rows=found.batch)
    # Make one finding for inputs of the same shape and batch dimension, such as the two states of an LSTM.
    groups: dict[tuple[int | None, torch.Size], list[str]] = {}
    for path, tensor in runs.inputs.scattered_tensors().items():
        if (axis := found.inputs.get(path, dim)) != dim:
            groups.setdefault((axis, tensor.shape), []).append(path)
    for (axis, size), paths in groups.items():
        where, shape = list_some(paths), list(size)
        if axis is None and len(shape) <= dim:
            yield KINDS["input_cut.number"](where, shape=shape, dim=dim)
        elif axis is None:
            yield KINDS["input_cut"](where, shape=shape, gpus=runs.gpus, rows=shape[dim], dim=dim)
        elif axis == 1 and _is_hidden_state(runs.subject.model, shape):
            yield KINDS["hidden_state_cut"](where, shape=shape, batch=runs.batch)
        elif axis == 1 and dim == 0 and (layers := _not_batch_first(runs.subject.model)):
            yield KINDS["input_axis.batch_first"](where, shape=shape, layers=list_some(layers))
        else:
            yield KINDS["input_axis"](where, shape=shape, batch=runs.batch, axis=axis, dim=dim)
    for path, axis in found.outputs.items():
        one, many = runs.mode.one.tensors[path], runs.mode.many.tensors.get(path)
        if axis not in (None, dim):
            yield _report_moved_batch(runs, path, axis)
        elif axis is None and many is not None and not runs.mode.same(one, many):
            if not is_number(one) or not one.is_floating_point():
                yield KINDS["batch_lost.copies"](path, shape=list(one.shape), outcome=_describe_glued(many))
            else:
                yield from _check_number(runs, path, one, many)


def _is_hidden_state(model: nn.Module, shape: list[int]) -> bool:
    networks = [one for one in model.modules() if isinstance(one, nn.RNNBase)]
    return len(shape) == 3 and shape[0] in {one.num_layers * (1 + one.bidirectional) for one in networks}


def _not_batch_first(model: nn.Module) -> list[str]:
    """Return the names of recurrent and attention layers with ``batch_first=False``."""
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    found = [pair for pair in model.named_modules() if isinstance(pair[1], kinds)]
    return [name or type(one).__name__ for name, one in found if not one.batch_first]


def _report_moved_batch(runs: Runs, path: str, axis: int | None) -> Finding:
    one, many = runs.mode.one.tensors[path], runs.mode.many.tensors.get(path)
    rows = set(runs.plan.sizes)
    if many is not None:
        outcome = PHRASES["batch_moved.glued"](gpus=runs.gpus, wrong=list(many.shape))
    elif (
        axis is not None and len(rows) == 1
    ):  # pieces of one shape: another fault ended the run before gather
        joined = list(one.shape)
        joined[axis], joined[runs.subject.dim] = rows.pop(), joined[runs.subject.dim] * len(runs.plan.sizes)
        outcome = PHRASES["batch_moved.later"](gpus=runs.gpus, wrong=joined)
    else:
        outcome = PHRASES["batch_moved.unfit"]()
    facts = {"shape": list(one.shape), "batch": runs.batch, "axis": axis, "dim": runs.subject.dim}
    return KINDS["batch_moved"](path, outcome=outcome, **facts)


def _is_full_per_replica(runs: Runs, one: Tensor, many: Tensor) -> bool:
    """Return whether each replica's output had the whole shape of one GPU, so that gather joined full copies."""
    joined, dim = list(one.shape), runs.subject.dim
    if len(joined) <= dim:
        return False
    joined[dim] *= len(runs.plan.pieces)
    return list(many.shape) == joined


def _report_lost_batch(path: str, one: Tensor, many: Tensor | None) -> Finding:
    return KINDS["batch_lost"](path, shape=list(one.shape), outcome=_describe_glued(many))


def _describe_glued(many: Tensor | None) -> str:
    """Return the shape of the gathered output in words, or "" if nothing was gathered."""
    return "" if many is None else PHRASES["glued"](wrong=list(many.shape))


def _check_number(runs: Runs, path: str, one: Tensor, many: Tensor) -> Iterator[Finding]:
    """Yield the finding for a number, most likely a loss, that each replica computes for its own rows."""
    if many.dim() != 1:
        return
    ways = runs.mode.find_reductions(path)
    if ways:
        method = "mean" if torch.mean in ways else "sum"
        yield KINDS["scalar_output"](path, pieces=many.numel(), method=method, how=PHRASES[method]())
    elif one.is_floating_point():
        yield biased_loss(runs, path, float(one), float(many.mean()))
    else:  # a count or a bool
        yield _report_lost_batch(path, one, many)


def biased_loss(runs: Runs, where: str, one: float, mean: float) -> Finding:
    """Return the finding that the mean of the replicas' losses differs from the loss of the batch."""
    sizes = runs.plan.sizes
    if len(set(sizes)) == 1:
        return KINDS["biased_loss.even_pieces"](where, one=one, mean=mean)
    text = series([*sizes[:8], *["…"] * (len(sizes) > 8)])
    return KINDS["biased_loss"](where, one=one, mean=mean, sizes=text)


def _report_difference(runs: Runs, path: str, one: Tensor, many: Tensor) -> Finding:
    gap = difference(one, many)
    runs.say_compared(path, gap, False)
    if uncut := runs.inputs.uncut(runs.batch):
        return KINDS["uncut_input"](list_some(uncut))
    if untracked := [name for name, norm in batch_norms(runs.subject.model) if norm.running_mean is None]:
        return KINDS["untracked_norm"](list_some(untracked))
    if runs.mode.seeds_itself:
        return KINDS["outputs_differ.seeded"](path, gpus=runs.gpus)
    return KINDS["outputs_differ"](path, gap=gap_text(gap))


def check_row_counts(runs: Runs) -> Iterator[Finding]:
    """Run nothing new: compare the numbers of pieces of the inputs."""
    error, found, dim = runs.mode.many.error, runs.inputs.scattered_tensors(), runs.subject.dim
    sizes = {path: tensor.size(dim) for path, tensor in found.items() if tensor.dim() > dim}
    counts = {path: len(split(size, runs.gpus).pieces) for path, size in sizes.items() if size}
    if runs.mode.agree or len(set(counts.values())) < 2:
        return
    if error and (runs.has(*CUT) or _is_difference_explained(runs)):
        return  # another finding explains the error
    pieces = list_some([f"{path} {list(found[path].shape)}: {count}" for path, count in counts.items()])
    outcome = PHRASES["rows_dropped.silently"](fewest=min(counts.values()))
    if error is not None:
        outcome = PHRASES["rows_dropped.fails"](problem=short_text(error))
    yield KINDS["rows_dropped"](pieces, gpus=runs.gpus, outcome=outcome)


def check_idle_gpus(runs: Runs) -> Iterator[Finding]:
    """Run nothing: report GPUs that get no rows."""
    plan = runs.plan
    if plan.idle:
        names = series(f"cuda:{gpu}" for gpu in plan.idle)
        busy = plan.gpus - len(plan.idle)
        yield KINDS["idle_gpus"](names, batch=plan.batch, gpus=plan.gpus, chunk=plan.chunk, busy=busy)


def report_unexplained(runs: Runs) -> Iterator[Finding]:
    """Run pieces on one GPU: report an error or difference on n GPUs that no other probe explains."""
    error = runs.mode.many.error
    if (
        error is None
        and not runs.mode.agree
        and runs.mode.reductions is None
        and not runs.has("check_outputs")
    ):
        expected, found = runs.mode.one.tensors, runs.mode.many.tensors
        for path in dict.fromkeys((*expected, *found)):
            if path not in expected or path not in found or not runs.mode.same(expected[path], found[path]):
                yield KINDS["outputs_differ"](path, gap=gap_text(inf))
    if error is None or is_explained(runs, error):
        return
    layouts = [tensor.layout for tensor in runs.inputs.tensors().values()]
    if sparse := [one for one in layouts if one is not torch.strided]:
        yield KINDS["sparse_input"](str(sparse[0]).removeprefix("torch."), problem=short_text(error))
    elif uncut := runs.inputs.uncut(runs.batch):
        yield KINDS["uncut_input"](list_some(uncut))
    elif is_beyond(error):
        yield KINDS["not_simulated"].at_error(error)
    else:
        refused = Search(runs.mode).piece_refused()
        alike = KINDS["fails_on_many.piece"] if refused else KINDS["fails_on_many.replicas"]
        yield (KINDS["fails_in_training"] if runs.mode.training else alike).at_error(error, gpus=runs.gpus)
