"""Exercises of lesson 05: a model wrapped where it is, whose messages, weights loaded, keys without ``module.``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from labkit.base.language import series
from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, numbers, read_returned, wrong_return
from simgpu import Machine


@judge("05.around", a_function("wrap"))
def _judge_wrap(answer: Callable[..., Any]) -> Hints:
    for gpus in (3, 2, 9):
        with Machine(gpus).open():  # a simulated computer with this number of GPUs
            yield from _judge_wrap_on([f"cuda:{gpu}" for gpu in range(gpus)], answer)


def _judge_wrap_on(devices: list[str], answer: Callable[..., Any]) -> Hints:
    for home in (devices[1], devices[0], devices[-1]):
        busy: set[str] = set()

        class DeviceRecorder(nn.Linear):
            def forward(self, x: torch.Tensor, busy: set[str] = busy) -> torch.Tensor:
                busy.add(str(x.device))
                return super().forward(x)

        model = DeviceRecorder(5, 2).to(home)
        try:
            made = read_returned(answer(model))
            if made is model or not isinstance(made, nn.Module):
                yield Named("not_wrapped")
            if str(model.weight.device) != home:
                yield Named("moved", home=home, device=model.weight.device)
            if (ids := list(getattr(made, "device_ids", []))) and home != f"cuda:{ids[0]}":
                yield Named("home", home=home, ids=ids)
            if len(set(ids)) < len(ids):
                yield Named("twice", home=home, ids=ids)
            made(torch.ones(2 * len(devices), 5))
        except (RuntimeError, AssertionError) as error:
            yield Named("raised", home=home, error=str(error).splitlines()[0])
            return
        if len(busy) < len(devices):
            yield Named("fewer", home=home, busy=len(busy), gpus=len(devices))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.submodule = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(1, 1)


@judge("05.load", a_function("load"))
def _judge_load(answer: Callable[..., Any]) -> Hints:
    for what in ("plain", "wrapped"):
        for prefix in ("module.", ""):
            saved, model = _Net().state_dict(), _Net()
            facts = {"what": Named(what), "keys": [prefix + key for key in saved][:2]}
            state = {prefix + key: saved[key] for key in reversed(saved)}
            given = nn.DataParallel(model) if what == "wrapped" else model
            try:
                if (result := answer(given, state)) is ...:
                    read_returned(result)
            except (AttributeError, RuntimeError) as error:
                yield Named("keys", error=" ".join(str(error).split()), **facts)
                return
            if not all(torch.equal(value.cpu(), saved[key]) for key, value in model.state_dict().items()):
                yield Named("nothing", **facts)
    for given in (_Net(), nn.DataParallel(_Net())):
        for missing in ("head.bias", "submodule.bias"):
            state = _Net().state_dict()
            del state[missing]
            try:
                answer(given, state)
            except Exception:
                continue
            yield Named("silent", missing=missing)


# The line that each message of the clinic comes from.
_LINES = {"A": 5, "B": 3, "C": 2, "D": 4, "E": 6, "F": 1}


def _read_lines(answer: object) -> tuple[int, ...]:
    """Return the lines in the order of the messages; the answer may name letters: ``A5 B3`` or ``F: 1, A: 5``."""
    beside = re.findall(r"([a-f])\W{0,3}(\d)", answer.lower()) if isinstance(answer, str) else []
    return numbers([int(line) for _, line in sorted(beside)] if beside else answer)


@judge("05.match", _read_lines)
def _judge_match(lines: tuple[int, ...]) -> Hints:
    if len(lines) == 1:  # typed without anything between: 123456
        lines = tuple(map(int, str(abs(lines[0]))))
    missing = sorted({*_LINES.values()} - {*lines})
    if missing or len(lines) != len(_LINES):
        yield Named("six", missing=series(missing) or "?")
    for (message, line), given in zip(_LINES.items(), lines, strict=True):
        if given != line:
            yield Named(message)


@judge("05.plain", a_function("plain"))
def _judge_plain(answer: Callable[..., Any]) -> Hints:
    for wanted in (
        ["weight", "bias"],
        ["encoder.module.weight", "submodule.bias"],  # a block inside is wrapped too
        ["module.weight", "model.bias"],
    ):
        yield from _judge_keys(answer, [f"module.{key}" for key in wanted], wanted)
    for kept in (["weight", "head.bias"], ["encoder.module.weight", "submodule.bias"]):
        yield from _judge_keys(answer, kept, kept)
    yield from _judge_keys(answer, ["module.weight", "head.bias"], ["weight", "head.bias"])


def _judge_keys(answer: Callable[..., Any], keys: list[str], wanted: list[str]) -> Hints:
    values = [torch.tensor([float(at)]) for at in range(len(keys))]
    got = read_returned(answer(given := dict(zip(keys, values, strict=True))))
    if list(given) != keys:
        yield Named("callers")
    if not isinstance(got, Mapping):
        if isinstance(got, (list, tuple)) and list(got) == wanted:
            yield Named("no_values")
        raise wrong_return(got, Text("a dict", "一个字典"))
    if sorted(got) == sorted(wanted):
        same = all(
            isinstance(got[key], torch.Tensor)
            and got[key].dtype == mine.dtype
            and torch.equal(got[key], mine)
            for key, mine in zip(wanted, values, strict=True)
        )
        if not same:
            yield Named("changed")
        if got is given:
            yield Named("same_dict")
        return
    mistakes = {
        "lstrip": [key.lstrip("module.") for key in keys],  # noqa: B005 (the mistake itself)
        "replace": [key.replace("module.", "") for key in keys],
        "sliced": [key[7:] for key in keys],
        "unchanged": keys,
    }
    name = next((name for name, made in mistakes.items() if list(got) == made), "other")
    yield Named(name, case=Named("case"), keys=keys, got=list(got), wanted=wanted)
