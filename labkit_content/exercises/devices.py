"""Exercises of lesson 05: which device_ids, whose messages, and keys without ``module.``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from labkit.base.language import series
from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, gpu_number, numbers, read_returned, wrong_return


def _gpu_numbers(answer: object) -> tuple[int, ...]:
    return numbers(map(gpu_number, answer) if isinstance(answer, (list, tuple)) else answer)


@judge("05.ids", _gpu_numbers)
def _ids(ids: tuple[int, ...]) -> Hints:
    if ids == (1, 0):
        return
    if len(set(ids)) < len(ids):
        yield Named("twice")
    if any(gpu not in (0, 1) for gpu in ids):
        yield Named("from_one")
    if ids == (1,):
        yield Named("one_only")
    if ids == (0, 1):
        yield Named("default")
    yield Named("home")


# The line that each message of the clinic comes from.
_LINES = {"A": 5, "B": 3, "C": 2, "D": 4, "E": 6, "F": 1}


def _lines(answer: object) -> tuple[int, ...]:
    """The lines in the order of the messages; each may be written beside its letter, ``A5 B3`` or ``F: 1, A: 5``."""
    beside = re.findall(r"([a-f])\W{0,3}(\d)", answer.lower()) if isinstance(answer, str) else []
    return numbers([int(line) for _, line in sorted(beside)] if beside else answer)


@judge("05.match", _lines)
def _match(lines: tuple[int, ...]) -> Hints:
    if len(lines) == 1:  # typed without anything between: 123456
        lines = tuple(map(int, str(abs(lines[0]))))
    missing = sorted({*_LINES.values()} - {*lines})
    if missing or len(lines) != len(_LINES):
        yield Named("six", missing=series(missing) or "?")
    for (message, line), given in zip(_LINES.items(), lines, strict=True):
        if given != line:
            yield Named(message)


@judge("05.plain", a_function("plain"))
def _plain(answer: Callable[..., Any]) -> Hints:
    for wanted in (
        ["weight", "bias"],
        ["encoder.module.weight", "submodule.bias"],  # a block inside is wrapped too
        ["module.weight", "model.bias"],
    ):
        yield from _stripped(answer, [f"module.{key}" for key in wanted], wanted)
    yield from _stripped(answer, ["weight", "head.bias"], ["weight", "head.bias"])


def _stripped(answer: Callable[..., Any], keys: list[str], wanted: list[str]) -> Hints:
    values = [torch.tensor([float(at)]) for at in range(len(keys))]
    got = read_returned(answer(dict(zip(keys, values, strict=True))))
    if not isinstance(got, Mapping):
        if isinstance(got, (list, tuple)) and list(got) == wanted:
            yield Named("no_values")
        raise wrong_return(got, Text("a dict", "一个字典"))
    if list(got) == wanted:
        same = all(
            isinstance(value, torch.Tensor) and torch.equal(value, mine)
            for value, mine in zip(got.values(), values, strict=True)
        )
        if not same:
            yield Named("changed")
        return
    mistakes = {
        "lstrip": [key.lstrip("module.") for key in keys],  # noqa: B005 (the mistake itself)
        "replace": [key.replace("module.", "") for key in keys],
        "sliced": [key[7:] for key in keys],
        "unchanged": keys,
    }
    name = next((name for name, made in mistakes.items() if list(got) == made), "other")
    yield Named(name, case=Named("case"), keys=keys, got=list(got), wanted=wanted)
