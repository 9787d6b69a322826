"""Where the batch is, if it is not where DataParallel takes it to be, and what that does to rows and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch
from torch import Tensor, nn

from ...base.language import say
from ...plans.split import split
from ..axes import Layout, Search
from ..compare import difference, is_number
from ..errors import is_beyond, short_text
from ..findings import failures, inputs, outputs
from ..findings.kind import gap_text, listed
from ..result import Finding
from ..runs import Runs
from .alone import known, returned, state
from .probe import probe
from .replicas import devices, references, replicas

CUT = (inputs.INPUT_CUT, inputs.INPUT_AXIS, inputs.HIDDEN_STATE_CUT, inputs.LIST_CUT)


@probe(
    *CUT, inputs.UNCUT_INPUT,
    outputs.OWN_LENGTH, outputs.ROWS_COMPARED, outputs.BATCH_MOVED, outputs.BATCH_LOST, outputs.COPIES,
    outputs.SCALAR_OUTPUT, outputs.BIASED_LOSS, outputs.BIASED_LOSS_OF_EVEN_PIECES, outputs.UNTRACKED_NORM,
    outputs.OUTPUTS_DIFFER,
    after=(state, returned, replicas, devices), explained_by=(references,), asked="each",
)  # fmt: skip
def layout(runs: Runs) -> Iterator[Finding]:
    """Runs pieces on one GPU, cut as DataParallel cuts and in other ways; compares them with the whole result.

    Asked only where n GPUs fail or differ. Of many ways to cut many inputs only the nearest are tried, for a
    minute at most (see :mod:`labkit.diagnosis.axes`). Where another way is found, :attr:`Runs.batch` is its batch
    from now on: ``state`` has looked before.
    """
    if not runs.unlike:
        return
    if not runs.inputs.scattered():
        yield inputs.UNCUT_INPUT(listed(runs.inputs.objects()))
        return
    expected, found = runs.one.tensors, runs.many.tensors
    explained = _explained(runs)
    search = _search(runs)
    fits = search.fits()
    if pairs := [path for path, fit in fits.items() if fit.pairs]:
        shape = list(found[pairs[0]].shape) if pairs[0] in found else None
        outcome = outputs.answers(shape)
        yield outputs.ROWS_COMPARED(
            listed(pairs), shape=list(expected[pairs[0]].shape), gpus=runs.gpus, outcome=outcome
        )
    elif short := [path for path, fit in fits.items() if fit.short]:
        yield outputs.OWN_LENGTH(listed(short))
    elif (other := search.layout()) and (said := list(_elsewhere(runs, other))):
        yield from said
        return
    for path, fit in fits.items():
        one, many = expected[path], found.get(path)
        if fit.axis not in (None, runs.subject.dim):
            yield _moved(runs, path, fit.axis)
        elif fit.axis is not None or fit.short or fit.pairs:
            continue
        elif is_number(one):
            if (
                many is not None and not explained and runs.loss is None
            ):  # or the loss is held against one GPU's
                yield from _number(runs, path, one, many)
        elif fit.uncut and (objects := runs.inputs.objects()):
            yield inputs.UNCUT_INPUT(listed(objects))
        elif fit.over_rows:
            yield _lost(path, one, many)
        elif many is not None and not explained and not runs.same(one, many):
            yield _differs(runs, path, one, many)
    if not fits and runs.many.error is None:
        for path in expected.keys() & found.keys():
            one, many = expected[path], found[path]
            if _is_lost(runs, one, many):
                yield _lost(path, one, many)
            elif not runs.same(one, many) and not explained:
                yield _differs(runs, path, one, many)


def _search(runs: Runs) -> Search:
    return Search(runs.evaluated, runs.inputs, runs.one.outputs, runs.gpus, runs.same, runs.subject.dim)


def _explained(runs: Runs) -> bool:
    """Whether it is said already why n GPUs fail or differ."""
    error = runs.many.error
    return runs.has(replicas, devices) or (error is not None and known(runs, error))


def _elsewhere(runs: Runs, found: Layout) -> Iterator[Finding]:
    """What a layout other than DataParallel's says."""
    runs.batch, dim = found.batch, runs.subject.dim
    for path in found.lists:
        yield inputs.LIST_CUT(path, rows=found.batch)
    # Inputs of one shape that are cut alike, such as the two states of an LSTM, are one finding.
    alike: dict[tuple[int | None, torch.Size], list[str]] = {}
    for path, tensor in runs.inputs.scattered().items():
        if (axis := found.inputs.get(path, dim)) != dim:
            alike.setdefault((axis, tensor.shape), []).append(path)
    for (axis, size), paths in alike.items():
        where, shape = listed(paths), list(size)
        if axis is None:
            yield inputs.INPUT_CUT(
                where, shape=shape, gpus=runs.gpus, rows=shape[dim] if len(shape) > dim else 0, dim=dim
            )
        elif axis == 1 and _is_hidden_state(runs.subject.model, shape):
            yield inputs.HIDDEN_STATE_CUT(where, shape=shape, batch=runs.batch)
        else:
            yield inputs.INPUT_AXIS(where, shape=shape, batch=runs.batch, axis=axis, dim=dim)
    for path, axis in found.outputs.items():
        one, many = runs.one.tensors[path], runs.many.tensors.get(path)
        if axis not in (None, dim):
            yield _moved(runs, path, axis)
        elif axis is None and many is not None and not runs.same(one, many):
            if not is_number(one) or not one.is_floating_point():
                outcome = outputs.answers(list(many.shape))
                yield outputs.COPIES(path, shape=list(one.shape), outcome=outcome)
            else:
                yield from _number(runs, path, one, many)


def _is_hidden_state(model: nn.Module, shape: list[int]) -> bool:
    layers = {
        module.num_layers * (2 if module.bidirectional else 1)
        for module in model.modules()
        if isinstance(module, nn.RNNBase)
    }
    return len(shape) == 3 and shape[0] in layers


def _moved(runs: Runs, path: str, axis: int | None) -> Finding:
    many = runs.many.tensors.get(path)
    outcome = outputs.glued(None if many is None else list(many.shape), runs.gpus)
    return outputs.BATCH_MOVED(
        path,
        shape=list(runs.one.tensors[path].shape),
        batch=runs.batch,
        axis=axis,
        dim=runs.subject.dim,
        outcome=outcome,
    )


def _is_lost(runs: Runs, one: Tensor, many: Tensor) -> bool:
    """Whether each replica has given a result of the shape that one GPU gives."""
    glued, dim = list(one.shape), runs.subject.dim
    if len(glued) <= dim:
        return False
    glued[dim] *= len(runs.plan.pieces)
    return list(many.shape) == glued


def _lost(path: str, one: Tensor, many: Tensor | None) -> Finding:
    return outputs.BATCH_LOST(
        path, shape=list(one.shape), outcome=outputs.answers(None if many is None else list(many.shape))
    )


def _number(runs: Runs, path: str, one: Tensor, many: Tensor) -> Iterator[Finding]:
    """A number computed in forward, a loss most likely, that became a number for each replica."""
    if many.dim() != 1:
        return
    ways = runs.mode.ways(path)
    if torch.mean in ways:
        yield outputs.SCALAR_OUTPUT(path, pieces=many.numel(), method="mean", how=say(en="mean", zh="平均"))
    elif torch.sum in ways:
        yield outputs.SCALAR_OUTPUT(path, pieces=many.numel(), method="sum", how=say(en="sum", zh="和"))
    elif one.is_floating_point():
        yield biased_loss(runs, path, float(one), float(many.mean()))
    else:  # a count, or whether something is so
        yield _lost(path, one, many)


def biased_loss(runs: Runs, where: str, one: float, mean: float) -> Finding:
    """That the mean of the replicas' losses is not the loss of the batch."""
    sizes = runs.plan.sizes
    if len(set(sizes)) == 1:
        return outputs.BIASED_LOSS_OF_EVEN_PIECES(where, one=one, mean=mean)
    text = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
    return outputs.BIASED_LOSS(where, one=one, mean=mean, sizes=text)


def _differs(runs: Runs, path: str, one: Tensor, many: Tensor) -> Finding:
    gap = difference(one, many)
    runs.say_compared(path, gap, False)
    if uncut := runs.inputs.uncut(runs.batch):
        return inputs.UNCUT_INPUT(listed(uncut))
    untracked = [
        name
        for name, module in runs.subject.model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None
    ]
    return (
        outputs.UNTRACKED_NORM(listed(untracked))
        if untracked
        else outputs.OUTPUTS_DIFFER(path, gap=gap_text(gap))
    )


@probe(inputs.ROWS_DROPPED, after=(layout,), explained_by=(references,), asked="each")
def rows(runs: Runs) -> Iterator[Finding]:
    """Runs nothing new: counts the pieces that each input is cut into."""
    error, found, dim = runs.many.error, runs.inputs.scattered(), runs.subject.dim
    counts = {
        path: len(split(tensor.size(dim), runs.gpus).pieces)
        for path, tensor in found.items()
        if tensor.dim() > dim and tensor.size(dim)
    }
    # An error that a wrong cut explains drops nothing.
    if not runs.unlike or len(set(counts.values())) < 2 or (error and (runs.has(*CUT) or _explained(runs))):
        return
    pieces = listed([f"{path} {list(found[path].shape)}: {count}" for path, count in counts.items()])
    outcome = inputs.paired(min(counts.values()), None if error is None else short_text(error))
    yield inputs.ROWS_DROPPED(pieces, gpus=runs.gpus, outcome=outcome)


@probe(inputs.IDLE_GPUS, after=(layout,), explained_by=(inputs.ROWS_DROPPED, inputs.LIST_CUT, references))
def idle(runs: Runs) -> Iterator[Finding]:
    """Runs nothing: counts the GPUs that get no rows."""
    plan = runs.plan
    if plan.idle:
        names = ", ".join(f"cuda:{gpu}" for gpu in plan.idle)
        busy = plan.gpus - len(plan.idle)
        yield inputs.IDLE_GPUS(names, batch=plan.batch, gpus=plan.gpus, chunk=plan.chunk, busy=busy)


@probe(
    inputs.SPARSE_INPUT,
    inputs.UNCUT_INPUT,
    failures.NOT_SIMULATED,
    failures.FAILS_ON_A_PIECE,
    failures.FAILS_IN_REPLICAS,
    failures.FAILS_IN_TRAINING,
    outputs.OUTPUTS_DIFFER,
    explained_by=(references, replicas, devices, layout, rows),
    asked="each",
)
def unexplained(runs: Runs) -> Iterator[Finding]:
    """Runs pieces on one GPU: names an error or a difference on n GPUs for which no other probe has a reason."""
    error = runs.many.error
    if error is None and runs.unlike and runs.mode.reductions is None and not runs.has(returned):
        expected, found = runs.one.tensors, runs.many.tensors
        for path in expected.keys() | found.keys():
            if path not in expected or path not in found or not runs.same(expected[path], found[path]):
                yield outputs.OUTPUTS_DIFFER(path, gap=gap_text(inf))
    if error is None or known(runs, error):
        return
    sparse = [
        tensor.layout for tensor in runs.inputs.tensors().values() if tensor.layout is not torch.strided
    ]
    if sparse:
        yield inputs.SPARSE_INPUT(str(sparse[0]).removeprefix("torch."), problem=short_text(error))
    elif uncut := runs.inputs.uncut(runs.batch):
        yield inputs.UNCUT_INPUT(listed(uncut))
    elif is_beyond(error):
        yield failures.NOT_SIMULATED.of(error)
    else:
        refused = _search(runs).piece_refused()
        alike = failures.FAILS_ON_A_PIECE if refused else failures.FAILS_IN_REPLICAS
        yield (failures.FAILS_IN_TRAINING if runs.mode.training else alike).of(error, gpus=runs.gpus)
