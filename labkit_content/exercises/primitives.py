"""Exercises of lesson 04: gather, replicas that are made, weights that travel, and the whole call by four functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from threading import current_thread
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch import nn

from labkit.base.texts import Text
from labkit.plans.split import split
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named, Praise
from labkit_course.kinds import a_function, read_returned, wrong_return

from .gpus import some_gpus

_BYTES = 136  # of the weights of the lesson's model


@judge("04.gather", a_function("gather"))
def _judge_gather(answer: Callable[..., Any]) -> Hints:
    with some_gpus() as devices:
        last = devices[-1]
        for wanted, home in (((2, 2), devices[0]), ((3, 3, 1), "cpu"), ((3, 3, 1), last), ((4,), devices[0])):
            sizes = wanted[: len(devices)]
            rows = torch.arange(2.0 * sum(sizes)).reshape(-1, 2)
            parts = rows.split(list(sizes))
            places = devices[::-1] if home == last else devices
            outputs = [part.to(at).requires_grad_() for part, at in zip(parts, places, strict=False)]
            case = {"case": Named("case"), "sizes": list(sizes), "home": home}
            try:
                got = read_returned(answer(list(outputs), home))
            except RuntimeError as error:
                yield Named("apart" if "same device" in str(error) else "raised", error=error, **case)
                return
            if not isinstance(got, torch.Tensor):
                raise wrong_return(got, Text("a tensor", "一个张量"))
            shape = list(got.shape)
            if len(sizes) > 1 and got.shape != rows.shape:
                yield Named(
                    "stacked" if got.dim() > 2 else "sideways" if shape == [2, 4] else "other",
                    shape=shape,
                    **case,
                )
            if str(got.device) != home:
                yield Named("elsewhere", got=got.device, **case)
            found = got.detach().cpu()
            if found.shape != rows.shape or not torch.equal(found, rows):
                same = found.shape == rows.shape and torch.equal(found.flatten().sort()[0], rows.flatten())
                yield Named("order" if same else "other", **case)
            if got.requires_grad:
                got.sum().backward()
            if any(output.grad is None for output in outputs):
                yield Named("cut_off")


@judge("04.call", a_function("one_call"))
def _judge_calls(answer: Callable[..., Any]) -> Hints:
    in_turn: list[bool] = []  # for each run of forward, whether it was in the caller's thread
    with some_gpus() as devices:
        for rows in (7, 1, 4):
            yield from _judge_call(answer, rows, devices, in_turn)
        for count in (3, 2):  # the first device is not cuda:0
            yield from _judge_call(answer, 7, devices[::-1][:count], in_turn, "in_order")
    if all(in_turn):
        yield Praise("in_turn")


def _judge_call(
    answer: Callable[..., Any], rows: int, devices: list[str], in_turn: list[bool], part: str = "case"
) -> Hints:
    """Yield hints on one call with ``rows`` rows, seen from inside the module."""
    caller = current_thread()
    seen: list[tuple[str, int]] = []
    ready: list[str] = []  # parallel_apply or replicate of torch or labkit, where it ran or copied the model
    made: list[nn.Module] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((str(x.device), len(x)))
            in_turn.append(current_thread() is caller)
            ready.extend(filter(_is_ready_made, map(_module_name, walk_stack(sys._getframe()))))
            return x * self.weight

        def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
            made.append(Model().to(self.weight.device))
            return made[-1]

        def _replicate_for_data_parallel(self) -> nn.Module:
            ready.append("replicate")
            replica: nn.Module = super()._replicate_for_data_parallel()
            return replica

    model = Model().to(devices[0])
    batch = torch.arange(float(rows)).reshape(rows, 1)
    case: dict[str, Any] = {"case": Named(part), "rows": rows, "gpus": len(devices)}
    case["devices"] = ", ".join(devices)
    try:
        got = read_returned(answer(model, batch, list(devices)))
    except RuntimeError as error:
        yield Named("not_scattered" if ("cpu", rows) in seen else "raised", error=error, **case)
        return
    except (AttributeError, TypeError) as error:
        if "'NoneType' object has no attribute 'to'" in str(error):
            yield Named("no_output", **case)
        if "got (list)" in str(error):
            yield Named("all_devices", home=devices[0], **case)
        raise
    if isinstance(got, (list, tuple)):
        yield Named("not_gathered", pieces=len(got), **case)
    if not isinstance(got, torch.Tensor):
        raise wrong_return(got, Text("a tensor", "一个张量"))
    if not seen:
        yield Named("not_called", **case)
    if ready:
        yield Named("ready_made")
    if stray := next((device for device, _ in seen if device not in devices), None):
        yield Named("stray", device=stray, **case)
    if rows > 1 and len({device for device, _ in seen}) == 1:
        yield Named("one_device", device=seen[0][0], **case)
    if rows > 1 and max(count for _, count in seen) == rows:
        yield Named("whole_batch", **case)
    sizes = split(rows, len(devices)).sizes
    if len(made) > len(sizes):
        yield Named("too_many", made=len(made), pieces=len(sizes), **case)
    if (counts := sorted((count for _, count in seen), reverse=True)) != list(sizes):
        yield Named("other_pieces", counts=counts, sizes=list(sizes), **case)
    if str(got.device) != devices[0]:
        yield Named("not_home", device=got.device, home=devices[0], **case)
    if got.shape != batch.shape or not torch.equal(got.detach().cpu(), batch * 2):
        yield Named("other", **case)
    if got.requires_grad:
        got.sum().backward()
    if model.weight.grad is None:
        yield Named("copies")


def _module_name(frame: tuple[FrameType, int]) -> str:
    return str(frame[0].f_globals.get("__name__"))


def _is_ready_made(module: str) -> bool:
    """Return whether a module belongs to PyTorch's or labkit's own data parallelism."""
    return module.startswith(("torch.nn.parallel.", "labkit.engine."))


def _draw_call(random: Random) -> dict[str, int]:
    gpus = random.randint(4, 9)
    return {"rows": random.randint(gpus - 2, 2 * gpus), "gpus": gpus}


@derive_facts("04.replicas", rows=(9, 1, 1_000_000), gpus=(4, 0, 64), fresh=_draw_call)
def _derive_replicas(rows: int, gpus: int) -> dict[str, object]:
    if gpus < 2:
        return {"pieces": 0, "original": 1, "runs": Named("alone")}
    pieces = len(split(rows, gpus).sizes)
    return {"chunk": -(-rows // gpus), "pieces": pieces, "original": -1, "runs": Named("shared")}


@derive_facts(
    "04.travel",
    gpus=(3, 1, 64),
    calls=(10, 1, 1000),
    fresh=lambda random: {"gpus": random.randint(2, 8), "calls": random.randint(2, 20)},
)
def _derive_travel(gpus: int, calls: int) -> dict[str, int]:
    others = gpus - 1
    one_call = _BYTES * others
    return {
        "others": others,
        "one_call": one_call,
        "bytes": one_call * calls,
        "one_gpu": _BYTES * calls,
        "home_too": _BYTES * gpus * calls,
    }
