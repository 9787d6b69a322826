"""Exercises of lesson 02: forward's input and output, moving batches, unwrapping models, any computer."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import nn

from labkit.base.texts import Text
from labkit.plans.split import split
from labkit_course.exercise import Fact, derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, quote_value, read_returned, wrong_return
from simgpu import Machine

from .gpus import some_gpus


@derive_facts(
    "02.inside",
    rows=(30, 1, 1_000_000),
    gpus=(2, 1, 64),
    fresh=lambda random: {"rows": random.randint(10, 60), "gpus": random.randint(2, 5)},
)
def _derive_inside(rows: int, gpus: int) -> dict[str, int]:
    return {"chunk": -(-rows // gpus), "gpus_times": rows * gpus}


def _count_replicas(rows: int, gpus: int) -> int:
    return len(split(rows, gpus).sizes) if gpus > 1 else 1


def _draw_run(random: Random) -> dict[str, int]:
    gpus = random.randint(2, 6)
    # A full batch reaches every GPU; what happens otherwise is lesson 03's.
    size = random.choice([size for size in range(8, 41) if _count_replicas(size, gpus) == gpus])
    rows = size * random.randint(2, 4) + random.randint(1, size - 1)
    return {"rows": rows, "size": size, "gpus": gpus}


_ROWS: Fact = (100, 1, 1_000_000)
_SIZE: Fact = (30, 1, 1_000_000)
_GPUS: Fact = (2, 0, 64)


@derive_facts("02.lines", rows=_ROWS, size=_SIZE, gpus=_GPUS, fresh=_draw_run)
def _derive_lines(rows: int, size: int, gpus: int) -> dict[str, object]:
    (full, rest), batches, busy = divmod(rows, size), -(-rows // size), max(gpus, 1)
    last = _count_replicas(rest, gpus) if rest else 0
    printed = full * _count_replicas(size, gpus) + last
    return {
        "printed": printed,
        "sum": f"{full} × {_count_replicas(size, gpus)}" + f" + {last}" * (last > 0),
        "batches": batches,
        "one_batch": busy,
        "each_gpu": batches * busy if batches * busy != printed else -1,  # wrong only with idle GPUs
        "outside_too": batches * (busy + 1),
    }


@judge("02.anywhere", a_function("anywhere"))
def _judge_anywhere(answer: Callable[..., Any]) -> Hints:
    for gpus in (0, 1, 3, 2, 4):
        with Machine(gpus).open():  # a simulated computer with this number of GPUs
            yield from _judge_made_model(gpus, answer)


def _judge_made_model(gpus: int, answer: Callable[..., Any]) -> Hints:
    """Yield hints on the model that ``answer`` makes on a computer with ``gpus`` GPUs."""
    seen: list[tuple[str, int]] = []

    class PlacementRecorder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((str(x.device), len(x)))
            return super().forward(x)

    home = "cuda:0" if gpus else "cpu"
    case = {"case": Named("case" if gpus else "none"), "gpus": gpus, "home": home}
    try:
        made = read_returned(answer(PlacementRecorder(5, 2)))
    except (RuntimeError, AssertionError, ValueError) as error:
        yield Named("raised", error=error, **case)
        return
    if not isinstance(made, nn.Module):
        raise wrong_return(made, Text("a model", "一个模型"))
    places = sorted({str(weight.device) for weight in made.parameters()})
    if places != [home]:
        where = Text(", ".join(places), "、".join(places)) if places else Named("nowhere")
        yield Named("misplaced", places=where, **case)
        return
    try:
        made(torch.ones(12, 5, device=home))
    except RuntimeError as error:
        yield Named("raised", error=error, **case)
        return
    busy = len({device for device, _ in seen})
    if busy != max(gpus, 1):
        yield Named("fixed_ids" if busy > 1 else "one_device", busy=busy, **case)
    if gpus < 2 and any(name.startswith("module.") for name in made.state_dict()):
        yield Named("wrapped_alone", **case)


@judge("02.move", a_function("move"))
def _judge_move(answer: Callable[..., Any]) -> Hints:
    two, three = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3, 4, 5])
    with some_gpus(2) as devices:
        for name, given, wanted, missed in (
            ("tensor", two, devices[-1], "stayed"),
            ("dict", {"rows": two, "name": "a"}, devices[0], "skipped"),
            ("pair", (two, three), devices[-1], "skipped"),
            ("nested", {"images": [two, three], "count": 3}, devices[-1], "inside"),
            ("deeper", [[two], {"rows": three}], devices[0], "inside"),
            ("deepest", ([two], ({"rows": {"left": three}},)), devices[-1], "inside"),
        ):
            case, form = {"case": Named("case", given=Named(name)), "wanted": wanted}, _describe_form(given)
            try:
                got = read_returned(answer(given, wanted))
            except (RuntimeError, AttributeError) as error:
                yield Named("raised", error=error, **case)
                return
            changed = any(tensor.device.type != "cpu" for tensor in _list_tensors(given))
            if changed or _describe_form(given) != form:
                yield Named("callers", **case)
            if _describe_form(got) != form:
                yield Named("form", got=f"`{_describe_form(got)[:60]}`", want=f"`{form}`", **case)
            for tensor, before in zip(_list_tensors(got), _list_tensors(given), strict=True):
                if tensor.dtype != before.dtype:
                    yield Named("dtype", before=before.dtype, after=tensor.dtype, **case)
                if not torch.equal(tensor.cpu(), before):
                    yield Named("values", **case)
                if str(tensor.device) != wanted:
                    name = missed if tensor.device.type == "cpu" else "fixed"
                    yield Named(name, device=tensor.device, **case)
                if before.requires_grad and (tensor.is_leaf or not tensor.requires_grad):
                    yield Named("cut_off", **case)


def _list_tensors(batch: object) -> list[torch.Tensor]:
    """Return all tensors of a batch, at any depth."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _list_tensors(part)]


def _describe_form(batch: object) -> str:
    """Return the form of a batch in words, ``dict(images=list(tensor, tensor), count=3)``."""
    if isinstance(batch, torch.Tensor):
        return f"tensor{list(batch.shape)}"
    if isinstance(batch, dict):
        inside = [f"{key}={_describe_form(value)}" for key, value in batch.items()]
    elif isinstance(batch, (list, tuple)):
        inside = [_describe_form(value) for value in batch]
    else:
        return quote_value(batch).strip("`")
    return f"{type(batch).__name__}({', '.join(inside)})"


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


class _HasModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


@judge("02.inner", a_function("inner"))
def _judge_inner(answer: Callable[..., Any]) -> Hints:
    with some_gpus(2):
        for what, model in (
            ("plain", _Classifier()),
            ("wrapped", _Classifier()),
            ("own_module", _HasModule()),
        ):
            given = nn.DataParallel(model) if what == "wrapped" else model
            try:
                got = read_returned(answer(given))
            except (AttributeError, RuntimeError) as error:
                yield Named("raised", what=Named(what), error=error)
                return
            if got is model:
                continue
            if isinstance(got, nn.DataParallel):
                yield Named("wrapper")
            if got is getattr(model, "module", None):
                yield Named("own_module")
            yield Named("copied" if isinstance(got, type(model)) else "other", what=Named(what))
