"""Run the user's own model on one GPU and on several, and explain the differences.

The runs use copies of the model and its inputs, on simulated GPUs: no GPU is needed, and no object of the user changes.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, instance, integer, must
from labkit.base.units import parse_bytes
from simgpu import Machine, machine_in_use, simulate

from .findings import list_some
from .inputs import ModelInputs
from .probes import PROBES
from .result import SEVERITIES, Diagnosis, Finding
from .runs import Runs
from .subject import Subject

# Run one check-up at a time: torch's default dtype, device and random state are shared by all threads.
_alone = threading.RLock()
_log = logging.getLogger(__name__)

# Join the findings of one kind into one if there are more.
_FEW = 3
# Give each GPU more memory than any model needs: an out-of-memory error would hide other faults.
_PLENTY = "16 TiB"


def diagnose(
    model: nn.Module,
    *inputs: Any,
    gpus: int | None = None,
    loss: Callable[[Any], Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    memory: str | int | None = None,
    dim: int | None = None,
) -> Diagnosis:
    """Check whether ``model(*inputs, **kwargs)`` works under ``nn.DataParallel`` on ``gpus`` GPUs.

    Run the model on one GPU and, wrapped in ``torch.nn.DataParallel``, on ``gpus`` simulated GPUs. Compare outputs and
    gradients, and return a :class:`Diagnosis` that explains each difference, with a fix and the lesson to read.

    model    the plain model, on any device, or an ``nn.DataParallel`` of it, checked with the wrapper's ``dim``,
             ``output_device`` and number of GPUs. The check-up runs copies and never changes the model.
    inputs   a batch as in training, on any device.
    gpus     the number of GPUs, at least 2. Default: the wrapper's, or 8.
    loss     a function from the output, on the device of the inputs, to a tensor of one number. Default: a fixed
             weighted sum of the outputs.
    memory   the memory of each GPU, such as "11 GiB", to learn whether a training step with Adam fits.
    dim      the dimension of the batch, as in ``nn.DataParallel(model, dim=1)``. Default: the wrapper's, or 0. A
             wrapper made on a machine without GPUs does not keep its ``dim``.

    Raises TypeError or ValueError naming the argument that does not fit this description.
    """
    keywords = instance("kwargs", {} if kwargs is None else kwargs, dict)
    capacity = None if memory is None else parse_bytes(memory)
    with _alone:
        given = ModelInputs(inputs, dict(keywords))
        _check_arguments(model, given, loss)
        gpus, dim, output = _read_wrapper(model, gpus, dim)
        if not any(tensor.dim() > dim for tensor in given.tensors().values()):
            raise wrong(
                en=f"dim is {dim}, but no input has that dimension: dimensions are counted from 0",
                zh=f"dim 是 {dim}，但没有哪个输入有这一维（从 0 开始编号）",
            )
        with protect_user_state(gpus, lambda: Subject(model, given, dim, output)) as subject:
            try:
                return _run_check_up(Runs(subject, gpus, loss, capacity))
            finally:
                subject.outside.restore()


@contextmanager
def protect_user_state(gpus: int, make_copies: Callable[[], Subject]) -> Iterator[Subject]:
    """Yield the copies from ``make_copies`` on a machine of at least ``gpus`` GPUs, then restore the user's state.

    Restored are the random states of Python, numpy, torch and the GPUs, torch's default dtype and device, and the size,
    peak and statistics of each GPU of the machine in use. The check-up borrows those GPUs instead of replacing them, so
    that tensors on them, held by the model or its loss, stay valid.
    """
    owner = machine_in_use()
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        if numpy := sys.modules.get("numpy"):
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        stack.callback(torch.random.set_rng_state, torch.random.get_rng_state())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(_restore_default_device, torch.get_default_device())
        if owner is not None:
            stack.enter_context(Machine.open_extended(owner, gpus, _PLENTY))
        subject = make_copies()  # before simulate() hides the real GPUs, which may hold the model
        if owner is None:
            stack.enter_context(simulate(gpus, memory=_PLENTY))
        stack.enter_context(torch.enable_grad())
        yield subject


def _restore_default_device(device: torch.device) -> None:
    # Set only what differs: once a default device was set, every call of torch takes longer.
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _read_wrapper(model: nn.Module, gpus: object, dim: object) -> tuple[int, int, int | None]:
    """Return the number of GPUs, the batch dimension and the output device, from the arguments or the wrapper."""
    ids, output, own = [], None, None
    if isinstance(model, nn.DataParallel):
        # Without a GPU, DataParallel.__init__ returns early and sets neither dim nor output_device.
        ids, own = list(model.device_ids), getattr(model, "dim", None)
        output = getattr(model, "output_device", None)
        if ids != list(range(len(ids))):
            raise wrong(
                en=f"model is wrapped for device_ids={ids}, but the check-up uses the first GPUs in order: "
                "pass model.module, or wrap the model for device_ids=[0, 1, …]",
                zh=f"model 包装时用的是 device_ids={ids}，而检查会按顺序用前几块 GPU 来包装："
                "请给出它的 .module，或者用 device_ids=[0, 1, …] 包装",
            )
    gpus = integer("gpus", (len(ids) if len(ids) > 1 else 8) if gpus is None else gpus, 2, MOST_GPUS)
    if output is not None and not 0 <= output < gpus:
        raise wrong(
            en=f"model is wrapped with output_device={output}, but gpus={gpus} has no such GPU",
            zh=f"model 包装时用的是 output_device={output}，而 gpus={gpus} 里没有这块 GPU",
        )
    if dim is not None and own is not None and dim != own:
        raise wrong(
            en=f"dim is {dim}, but model is wrapped with dim={own}: leave dim out, or pass model.module",
            zh=f"dim 是 {dim}，而 model 包装时用的是 dim={own}：请去掉 dim，或者传 model.module",
        )
    dim = integer("dim", (own or 0) if dim is None else dim, 0)
    return gpus, dim, output or None


def _run_check_up(runs: Runs) -> Diagnosis:
    """Run all probes and return their findings, errors first."""
    one, gpus = runs.subject.name, runs.gpus
    _log.info(say(en=f"{one} runs on one GPU and on {gpus}", zh=f"{one} 在 1 块和 {gpus} 块 GPU 上运行"))
    _ask_probes(runs, "first", "each")
    if runs.subject.training and not any(finding.severity == "error" for finding in runs.findings):
        _log.info(say(en="the same in training mode", zh="在训练模式下再来一遍"))
        runs.mode = runs.training
        runs.names -= {probe.name for probe in PROBES if probe.asked == "each"}
        _ask_probes(runs, "each")
    _log.info(say(en="a training step, its memory, and what is left", zh="训练一步、显存，以及其余的检查"))
    _ask_probes(runs, "last")
    runs.say_how()
    findings = sorted(
        _join_similar_findings(runs.findings), key=lambda finding: SEVERITIES.index(finding.severity)
    )
    return Diagnosis(
        runs.subject.name,
        runs.plan,
        tuple(findings),
        runs.memory,
        tuple(runs.compared),
        tuple(runs.uncompared),
    )


def _join_similar_findings(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Join findings whose texts are equal, and more than `_FEW` of one kind whose texts differ in numbers or shapes."""
    same: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        same.setdefault((finding.name, finding.reason, finding.fix), []).append(finding)
    alike: dict[tuple[str, str], list[Finding]] = {}
    for (name, _, fix), group in same.items():
        where = list_some(list(dict.fromkeys(one.where for one in group if one.where)))
        alike.setdefault((name, fix), []).append(replace(group[0], where=where))
    for group in alike.values():
        all_of_them = replace(group[0], where=list_some([one.where for one in group]))
        yield from group if len(group) <= _FEW else [all_of_them]


def _ask_probes(runs: Runs, *asked: str) -> None:
    for probe in PROBES:
        if probe.asked not in asked or runs.has(*probe.explained_by):
            continue
        if probe.wants_outputs and runs.mode.one.error is not None:
            continue
        for finding in probe.look(runs):
            runs.add(finding, probe.name, in_each_mode=probe.asked == "each")
        runs.subject.outside.restore()


def _check_arguments(model: object, inputs: ModelInputs, loss: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(must("model", model, en="an nn.Module", zh="是 nn.Module", typed=True))
    if loss is not None and not callable(loss):
        raise TypeError(must("loss", loss, en="a function of the output", zh="是以输出为参数的函数"))
    for path in inputs.packed_sequences():
        raise wrong(
            en=f"{path} is a PackedSequence, which DataParallel cannot scatter: "
            "pass the padded tensor and the lengths instead",
            zh=f"{path} 是 PackedSequence，DataParallel 无法分发它：请传填充后的张量和各行的长度",
        )
    registered = {f"model: {name}": one for name, one in (*model.named_parameters(), *model.named_buffers())}
    for path, tensor in {**inputs.tensors(), **registered}.items():
        if tensor.is_meta:
            raise wrong(
                en=f"{path} is on the meta device and has no values to compare: make it on the CPU",
                zh=f"{path} 在 meta 设备上，没有可以比较的数值：请在 CPU 上创建",
            )
        if tensor.is_nested and path not in registered:
            raise wrong(
                en=f"{path} is a nested tensor, which DataParallel cannot cut: pass a padded tensor",
                zh=f"{path} 是嵌套张量，没有可以切分的维度：请传填充后的张量",
            )

    if not any(tensor.dim() for tensor in inputs.tensors().values()):
        raise wrong(
            en="inputs must hold at least one tensor with rows: pass a batch as in training, "
            "labkit.diagnose(model, batch)",
            zh="inputs 里至少要有一个带行的张量：像训练时那样给一个批次，labkit.diagnose(model, batch)",
        )
