"""Note a rank's calls of torch: random draws, losses, and uses of tensors whose collective is still pending."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit import turns
from labkit.base.tree import tensors_in
from simgpu import gpu_of
from simgpu.handlers import HANDLERS, functions_in_row, functions_named

from ..calls.call import CollectiveCall
from ..group.slot import PlainTensors
from ..group.works import SlotWork
from .records import LossRecord, RandomDraw, RankRecord, UnwaitedCall, user_line

_Here = Callable[[], RankRecord | None]
# Leave out randperm: ranks must draw the same order of rows.
_DRAWING = {*functions_in_row("with a generator"), *functions_in_row("from the default generator")}
_DRAWING -= {torch.randperm}
# Functions that use a tensor's shape and no values.
_SHAPES = set(functions_in_row("beside a tensor"))
_SHAPES |= set(functions_named("rand_like randn_like Tensor.record_stream Tensor.register_hook"))


def note_operation(
    here: _Here, answer: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Return the machine's ``answer`` to a function of torch, and note the call in the record ``here()``."""
    record = here()
    if record is not None and func in _DRAWING and record.trains():
        return _note_draw(
            record, mode, func, args, kwargs or {}, partial(answer, mode, func, types, args, kwargs)
        )
    if record is not None and record.pending and HANDLERS.get(func, func) is not None:
        return _note_use(record, func, args, kwargs, partial(answer, mode, func, types, args, kwargs))
    return answer(mode, func, types, args, kwargs)


# Random numbers.


def _note_draw(
    record: RankRecord, mode: Any, func: Any, args: Any, kwargs: dict[str, Any], run: Callable[[], Any]
) -> Any:
    tensors, device = tensors_in(args, kwargs), kwargs.get("device")
    gpu = mode.machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    generator = torch.default_generator if gpu is None else mode.machine.random.drawing_generator(gpu)
    before, backward = _generator_digest(generator), torch._C._current_graph_task_id() != -1
    result: Any = None
    try:
        result = run()
    finally:  # checkpoint leaves a recomputed draw by an exception once it has all that backward needs
        ended = isinstance(sys.exc_info()[1], turns.TaskEnded)  # the generator's state is now another rank's
        drew = not ended and before != _generator_digest(generator)  # attention without dropout draws nothing
        record.drew = record.drew or bool(record.depth) and (drew or kwargs.get("generator") is not None)
        # With another generator, the script chooses. A single number is a decision, which ranks must make alike.
        shapes = [tuple(tensor.shape) for tensor in tensors_in(result) if tensor.numel() > 1]
        if (shapes or backward) and drew:
            place, call = user_line()
            if not any(f"utils{sep}data" in code.co_filename for code in call.codes for sep in "/\\"):
                shape = () if tensors or record.depth else (*shapes, ())[0]
                record.drew = True
                draw = RandomDraw(len(record.steps) + 1, place, func.__name__, before, shape, backward)
                record.draws.append((draw, place))
    return result


def _generator_digest(generator: Any) -> int:
    with PlainTensors():
        return zlib.crc32(generator.get_state().numpy().tobytes())


# Tensors of pending calls.


def add_pending(record: RankRecord, call: CollectiveCall) -> None:
    """Keep the tensors of the script's own ``call`` as pending until a wait for the call."""
    tensors = [*call.inputs, *call.outputs]
    with PlainTensors():
        kept = [(tensor, _version(tensor)) for tensor in tensors]
    used, written = _storage_pointers(tensors), _storage_pointers(call.outputs)
    record.pending.append(UnwaitedCall(call, kept, used, written))


def settle(record: RankRecord, work: SlotWork) -> None:
    """Remove the call of a finished ``work``, and earlier collectives of the same group."""
    done, left = work.call, []
    for one in record.pending:
        apart = one.call.is_message or done.is_message or one.call.group != done.group
        if one.call is not done if apart else one.call.seq > done.seq:
            left.append(one)
    record.pending = left


def _note_use(record: RankRecord, func: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
    # Properties and functions that only take the shape read no values.
    asks = getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__") or func in _SHAPES
    places = set() if asks else _storage_pointers(tensors_in(args, kwargs))
    met = [one for one in record.pending if places & one.used]
    result = run()
    for one in met:
        with PlainTensors():
            changed = any(_version(tensor) != version for tensor, version in one.tensors)
        views = _storage_pointers(tensors_in(result)) & one.written
        if changed or (places & one.written and not views):
            place, call = user_line()
            if not any("distributed" in code.co_filename for code in call.codes):
                record.early.append((place, changed, one.call))
                record.pending.remove(one)  # report each call once
    return result


def _storage_pointers(tensors: Iterable[Tensor]) -> set[int]:
    found = set()
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            with suppress(RuntimeError):  # a tensor without storage
                if type(tensor) in (Tensor, nn.Parameter):
                    found.add(tensor.untyped_storage().data_ptr())
    return found - {0}


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


# Losses.


def note_loss(here: _Here, lost: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return torch's loss, and note in the record ``here()`` how much each row counts in its gradient."""
    record, how = here(), kwargs.get("reduction", "mean")
    if record is None or record.losing:  # the machine's mode calls the function again from within
        return lost(*args, **kwargs)
    record.losing = True
    try:
        loss = lost(*args, **kwargs)
    finally:
        record.losing = False
    trains = isinstance(loss, Tensor) and loss.requires_grad and how in ("mean", "sum")
    if trains and (number := LOSSES[lost.__name__](*args, **kwargs)):
        record.step.losses.append(LossRecord(number))
        loss.register_hook(partial(_note_weight, record.step.losses[-1], how))
    return loss


def _note_weight(record: LossRecord, how: str, gradient: Tensor) -> None:
    if gradient.numel() == 1:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            record.weight = float(gradient) / (record.count if how == "mean" else 1.0)


def _count_targets(
    _: Any = None, target: Any = None, weight: Any = None, *__: Any, **named: Any
) -> float | None:
    """Return how many targets count in a cross entropy; None for weighted targets and probabilities."""
    if weight is not None or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return float((target != named.get("ignore_index", -100)).sum())


def _count_numbers(input: Any = None, *_: Any, weight: Any = None, **__: Any) -> float | None:
    return float(input.numel()) if weight is None and isinstance(input, Tensor) else None


# Loss function -> the number of elements it averages over.
LOSSES: dict[str, Callable[..., float | None]] = dict.fromkeys(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits".split(),
    _count_numbers,
) | dict.fromkeys(("cross_entropy", "nll_loss"), _count_targets)


# Files, clipping, BatchNorm.


def note_save(record: RankRecord, obj: Any, f: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(f, (str, os.PathLike)):
        record.saved.append(((os.path.abspath(f), record.met), user_line()[0]))


def note_open(record: RankRecord, file: Any, mode: str = "r", *_: Any, **__: Any) -> None:
    if "w" in mode and isinstance(file, (str, os.PathLike)):
        note_save(record, None, file)


def note_load(record: RankRecord, loaded: Any, *_: Any) -> None:
    gpus = {gpu_of(tensor) for tensor in tensors_in(loaded)} - {None}
    record.loaded += [(gpu, user_line()[0]) for gpu in gpus]


def note_clip(record: RankRecord, norm: Any, *_: Any) -> None:
    if not hasattr(norm, "_local_tensor"):  # a DTensor's norm is that of the whole gradient
        record.clips.append((user_line()[0], float(norm)))


def note_batch_norm(record: RankRecord, input: Tensor, running_mean: Any, *more: Any, **named: Any) -> None:
    training = named.get("training", more[3] if len(more) > 3 else False)
    if training and input.dim() > 1 and input.size(1):
        record.norms.append((input.numel() // input.size(1), input.size(0)))
        if record.running is None:
            record.running = running_mean
